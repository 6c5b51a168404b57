"""Compares tools with a text by their meaning, for prompts that get only the relevant ones of many tools."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog

from khala.domain import routing, tool_relevance
from khala.domain.errors import Unavailable
from khala.domain.routing import Background, Meaning
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
MAX_COMPARED_TEXTS = 8
"""Texts of a run that are remembered with the closeness of the tools: the conversation, and searches for tools."""
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


class ComparedText(msgspec.Struct, kw_only=True):
    """A text with its vector, and how close it is to the tools with which it was compared, by their keys."""

    generation: int
    vector: Vector
    background: Background
    closenesses: dict[bytes, float] = {}


class RunMeanings:
    """How close tools are to the texts of one run: see `ToolRouter.meaning`.

    Each text is compared once with each tool, however many steps the run has.
    """

    def __init__(self, router: "ToolRouter", payer_id: UUID) -> None:
        self._router = router
        self._payer_id = payer_id
        self._compared: OrderedDict[str, ComparedText] = OrderedDict()

    async def __call__(self, text: str, specs: Sequence[ToolSpec]) -> Meaning | None:
        """How close the tools are to the text."""
        found = await self._router.meaning(self._payer_id, text, specs, self._compared)
        while len(self._compared) > MAX_COMPARED_TEXTS:
            self._compared.popitem(last=False)
        return found


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

    def of_run(self, payer_id: UUID) -> ToolMeanings:
        """How close tools are to the texts of a run for which this user or thread pays."""
        return RunMeanings(self, payer_id)

    async def meaning(
        self, payer_id: UUID, text: str, specs: Sequence[ToolSpec], compared: MutableMapping[str, ComparedText]
    ) -> Meaning | None:
        """How close the tools, whose names are unique, are to the text; None if only words can be compared now.

        That is so without an embedding model, while a tool has no vector, if the model does not answer within half a
        second, and if the budgets of the payer, a user or a thread, do not allow its call.

        `compared`: texts that were compared before. The text is added to them.
        """
        found = await self._meaning(payer_id, text.strip()[: routing.MAX_TASK_CHARACTERS], specs, compared)
        metrics.TOOL_CHOICES.labels("words" if found is None else "meaning").inc()
        return found

    async def _meaning(
        self, payer_id: UUID, text: str, specs: Sequence[ToolSpec], compared: MutableMapping[str, ComparedText]
    ) -> Meaning | None:
        if not self._memories.by_meaning or not text or not 0 < len(specs) <= MAX_CACHED_TOOLS:
            return None
        tools = {spec.name: _tool_text(spec, payer_id) for spec in specs}
        generation, vectors = self._generation, self._known(tools.values())
        if any(tool.key not in vectors for tool in tools.values()):
            self._request(tools.values())
            return None
        one = compared.get(text)
        if one is None or one.generation != generation:
            one = await self._comparable(payer_id, text, generation, tools.values())
        if one is None:
            return None
        compared[text] = one
        missing = {key: vector for key, vector in vectors.items() if key not in one.closenesses}
        if missing:
            one.closenesses |= await asyncio.to_thread(_closenesses, one.vector, missing)
        return Meaning(
            closenesses={name: one.closenesses[tool.key] for name, tool in tools.items()}, background=one.background
        )

    async def _comparable(
        self, payer_id: UUID, text: str, generation: int, tools: Iterable[ToolText]
    ) -> ComparedText | None:
        """The text with its vector, or None if that is unknown or not of this generation, which the tools have."""
        query = await self._query(payer_id, text)
        if query is None or query.vector is None:
            return None
        if query.generation != generation:
            self._forget(generation)
            self._request(tools)
            return None
        built_in = self._agents.built_in(query.generation)
        if built_in is None:
            self._agents.request_built_in()
            return None
        return ComparedText(generation=generation, vector=query.vector, background=built_in.background)

    def _known(self, tools: Iterable[ToolText]) -> dict[bytes, Vector]:
        """The vectors of the tools that have one, by key."""
        known = [tool.key for tool in tools if tool.key in self._vectors]
        for key in known:
            self._vectors.move_to_end(key)
        return {key: self._vectors[key] for key in known}

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


def _closenesses(vector: Vector, tools: Mapping[bytes, Vector]) -> dict[bytes, float]:
    asked = list(vector)  # Else each comparison would make its numbers anew.
    return {key: routing.similarity(asked, other) for key, other in tools.items()}
