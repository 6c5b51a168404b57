"""Compares tools with a text by their meaning, for prompts that get only the relevant ones of many tools."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog

from khala.domain import routing, tool_relevance
from khala.domain.errors import Unavailable
from khala.domain.routing import Meaning
from khala.domain.tools import ToolSpec
from khala.domain.vectors import Vector
from khala.memory import document_vectors
from khala.memory.agent_router import AgentRouter
from khala.memory.job_loop import run_when_requested
from khala.memory.memory_service import FAILURE_SECONDS, MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.signals import metrics
from khala.store.memories.search import MemoryQuery

MAX_CACHED_TOOLS = 8_192
"""Texts of tools whose vectors a process keeps. Tools of equal name and description share one."""
MAX_PENDING = 1_024
"""Texts that wait to be embedded. More are embedded after a later run."""
BATCH = 64
"""Texts that are embedded at once."""
WAIT_SECONDS = 0.5
"""Time that a run waits for the vector of its text. A model call that follows takes longer."""
PAUSE_SECONDS = 60.0
"""Time without such waits after one that was too long."""
USER_SOURCE = "user"
"""The source of the tools that users define."""

ToolMeanings: TypeAlias = Callable[[str, Sequence[ToolSpec]], Awaitable[Meaning | None]]
"""Returns how close tools are to a text, or None if only words can be compared."""

log = structlog.get_logger()


class ToolText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a tool, and the payer of the run for which it is compared.

    `is_own`: the payer has defined the tool, so its vector counts against their budgets.
    """

    key: bytes
    text: str
    owner_id: UUID
    is_own: bool


class ToolRouter:
    """Compares tools with texts. Unless all tools in question have vectors, only words count.

    Tools are embedded in the background after a run for which their vectors were missing, by each process, once for
    each text and model. Those that users have defined count against the budgets of these users. The vector of a run's
    text counts for the run's payer.
    """

    def __init__(self, embedder: Embedder | None, memories: MemoryService, agents: AgentRouter) -> None:
        self._embedder = embedder
        self._memories = memories
        self._agents = agents
        self._vectors: OrderedDict[bytes, Vector] = OrderedDict()
        self._generation = 0
        """The generation of all these vectors."""
        self._pending: dict[bytes, ToolText] = {}
        self._missing = asyncio.Event()
        self._paused_until = float("-inf")

    async def meaning(self, payer_id: UUID, text: str, specs: Sequence[ToolSpec]) -> Meaning | None:
        """How close the tools, whose names are unique, are to the text; None if only words can be compared now.

        That is so without an embedding model, while a tool has no vector, if the model does not answer within half a
        second, and if the budgets of the payer, a user or a thread, do not allow its call.
        """
        found = await self._meaning(payer_id, text.strip()[: routing.MAX_TASK_CHARACTERS], specs)
        metrics.TOOL_CHOICES.labels("words" if found is None else "meaning").inc()
        return found

    async def _meaning(self, payer_id: UUID, text: str, specs: Sequence[ToolSpec]) -> Meaning | None:
        if not self._memories.by_meaning or not text or not 0 < len(specs) <= MAX_CACHED_TOOLS:
            return None
        tools = {spec.name: _tool_text(spec, payer_id) for spec in specs}
        generation, vectors = self._generation, self._known(tools)
        if len(vectors) < len(tools):
            self._request(tools.values())
            return None
        query = await self._query(payer_id, text)
        if query is None or query.vector is None:
            return None
        if query.generation != generation:
            self._forget(generation)
            self._request(tools.values())
            return None
        built_in = self._agents.built_in(query.generation)
        if built_in is None:
            self._agents.request_built_in()
            return None
        closenesses = await asyncio.to_thread(_closenesses, query.vector, vectors)
        return Meaning(closenesses=closenesses, background=built_in.background)

    def _known(self, tools: Mapping[str, ToolText]) -> dict[str, Vector]:
        """The vectors of the tools that have one, by name."""
        known = {name: tool.key for name, tool in tools.items() if tool.key in self._vectors}
        for key in known.values():
            self._vectors.move_to_end(key)
        return {name: self._vectors[key] for name, key in known.items()}

    async def _query(self, payer_id: UUID, text: str) -> MemoryQuery | None:
        """The text with its vector, or None if that takes too long or the database is out of reach."""
        assert self._embedder is not None
        if time.monotonic() < self._paused_until and not self._embedder.has_query(text):
            return None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._memories.query(text, payer_id)
        except Unavailable:
            return None
        except TimeoutError:
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            log.warning(
                "tools_chosen_by_words", reason="The vector of a text took too long.", pause_seconds=PAUSE_SECONDS
            )
            return None

    def _request(self, tools: Iterable[ToolText]) -> None:
        """Let the background loops embed these tools, and the agents that show how near unrelated texts are."""
        paused = set(self._memories.meter.paused())
        affordable = (tool for tool in tools if not tool.is_own or tool.owner_id not in paused)
        missing = (tool for tool in affordable if tool.key not in self._vectors and tool.key not in self._pending)
        self._pending |= {tool.key: tool for tool in islice(missing, max(0, MAX_PENDING - len(self._pending)))}
        self._missing.set()
        self._agents.request_built_in()

    def _forget(self, generation: int) -> None:
        """Forget the vectors of this generation, because the model has changed."""
        if self._generation == generation:
            self._vectors.clear()

    async def run(self) -> None:
        """Embed tools whose vectors were missing, for ever."""
        if self._embedder is not None:
            await run_when_requested(
                "tool_embedding",
                self._missing,
                self.embed_missing,
                self._pending.clear,
                failure_seconds=FAILURE_SECONDS,
            )

    async def embed_missing(self) -> None:
        """Embed the tools that were missing. Raises `ModelFailed`.

        The tools of a user whose budget is used up stay without vectors until a later run.
        """
        while self._pending:
            batch = list(islice(self._pending.values(), BATCH))
            own = [tool for tool in batch if tool.is_own]
            await self._embed([tool for tool in batch if not tool.is_own])
            await self._embed(await self._memories.meter.affordable(own))
            for tool in batch:
                self._pending.pop(tool.key, None)

    async def _embed(self, tools: Sequence[ToolText]) -> None:
        """Embed these tools. One that the model refuses is near to no text."""
        if not tools:
            return
        embedder = self._memories.embedder
        result = await document_vectors.embed(embedder, [tool.text for tool in tools])
        self._memories.meter.count_batch([tool for tool in tools if tool.is_own], result.tokens)
        vectors = await document_vectors.with_zeros(embedder, result.vectors)
        generation = await self._memories.generation(len(vectors[0]))
        if generation != self._generation:
            self._vectors.clear()
            self._generation = generation
        self._vectors |= {tool.key: vector for tool, vector in zip(tools, vectors, strict=True)}
        while len(self._vectors) > MAX_CACHED_TOOLS:
            self._vectors.popitem(last=False)
        metrics.TOOLS_EMBEDDED.inc(len(tools))


async def by_words(_text: str, _specs: Sequence[ToolSpec]) -> Meaning | None:
    """No meaning: words choose the tools."""
    return None


def _tool_text(spec: ToolSpec, payer_id: UUID) -> ToolText:
    text = tool_relevance.text_of(spec)
    key = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return ToolText(key=key, text=text, owner_id=payer_id, is_own=spec.source == USER_SOURCE)


def _closenesses(vector: Vector, tools: Mapping[str, Vector]) -> dict[str, float]:
    return {name: routing.similarity(vector, other) for name, other in tools.items()}
