"""Chooses agents for tasks: by their words, and by meaning where there is an embedding model."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from uuid import UUID

import msgspec

from khala.domain import agent_seeds, routing
from khala.domain.routing import AgentProfile, Background, Meaning, RoutableAgent, RouteDecision
from khala.domain.vectors import Vector
from khala.memory import document_vectors
from khala.memory.job_loop import run_when_requested
from khala.memory.memory_service import FAILURE_SECONDS, MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.port import EmbeddingResult
from khala.signals import metrics
from khala.store.agents import agent_vectors
from khala.store.postgres.database import Database

MAX_CACHED_PROFILES = 512
MAX_PENDING = 256
"""Agents that wait to be embedded. More are embedded after a later task."""

BUILT_IN: Sequence[RoutableAgent] = tuple(
    RoutableAgent(
        name=agent.name,
        texts=routing.texts_of(agent.title, agent.description, agent.examples),
        models=[name for name in (agent.model, *agent.fallbacks) if name is not None],
    )
    for agent in agent_seeds.BUILT_IN
)


class OwnAgent(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a user's agent that is embedded at the cost of the user."""

    id: UUID
    owner_id: UUID
    texts: Sequence[str]

    @property
    def text(self) -> str:
        """All texts of the agent."""
        return "\n".join(self.texts)


class BuiltInVectors(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of the built-in agents' texts, by name, and what follows from them about the model."""

    generation: int
    vectors: Mapping[str, Sequence[Vector]]
    background: Background

    def closeness(self, name: str, vector: Vector) -> float:
        """How close the agent is to the task with this vector."""
        return routing.closeness(routing.similarity(vector, other) for other in self.vectors[name])


class AgentRouter:
    """Routes tasks to agents. Unless all agents that may be chosen have vectors, only words count.

    Agents are embedded in the background after a task for which their vectors were missing. Those of users are stored,
    and count against the budgets of these users; those of the built-in agents are computed by each process.
    """

    def __init__(self, db: Database, embedder: Embedder | None, memories: MemoryService) -> None:
        self._db = db
        self._embedder = embedder
        self._memories = memories
        self._profiles: OrderedDict[tuple[str, UUID | None], AgentProfile] = OrderedDict()
        self._built_in: BuiltInVectors | None = None
        self._pending: dict[UUID, OwnAgent] = {}
        self._missing = asyncio.Event()

    async def prepare(self) -> None:
        """Create the table of vectors, if there are vectors at all. Call it once at the start."""
        if self._memories.by_meaning:
            await agent_vectors.create_table(self._db)

    async def route(self, payer_id: UUID, task: str, agents: Sequence[RoutableAgent]) -> RouteDecision:
        """The agent for this task, among the built-in agents and those of the user.

        The vector of the task counts for the user or thread `payer_id`. If its budgets do not allow the call, or the
        model does not answer, only words count.
        """
        meaning = await self._meaning(payer_id, task, agents)
        decision = routing.decide(task, [self._profile(agent) for agent in agents], meaning)
        metrics.ROUTES.labels("abstained" if decision.abstained else "routed", decision.by).inc()
        return decision

    def _profile(self, agent: RoutableAgent) -> AgentProfile:
        """The profile of an agent, whose version never changes."""
        key = (agent.name, agent.id)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = routing.profile(agent.name, agent.texts)
            if len(self._profiles) > MAX_CACHED_PROFILES:
                self._profiles.popitem(last=False)
        self._profiles.move_to_end(key)
        return found

    async def _meaning(self, payer_id: UUID, task: str, agents: Sequence[RoutableAgent]) -> Meaning | None:
        """How close the task is to all agents, or None if one has no vectors."""
        if not self._memories.by_meaning or not agents:
            return None
        own = {
            agent.id: OwnAgent(id=agent.id, owner_id=payer_id, texts=agent.texts)
            for agent in agents
            if agent.id is not None
        }
        if self._built_in is None:
            self._request(own.values())
        if self._built_in is None or not self._pending.keys().isdisjoint(own):
            return None  # The vector of the task would be of no use yet, and somebody pays for it.
        query = await self._memories.query(task[: routing.MAX_TASK_CHARACTERS], payer_id)
        if query.vector is None:
            return None
        async with self._db.driver() as driver:
            found = await agent_vectors.similarities(driver, list(own), query.vector, query.generation) if own else {}
        built_in = self.built_in(query.generation)
        if built_in is None or len(found) < len(own):
            self._request(agent for agent_id, agent in own.items() if agent_id not in found)
            return None
        closenesses = {
            agent.name: (
                built_in.closeness(agent.name, query.vector) if agent.id is None else routing.closeness(found[agent.id])
            )
            for agent in agents
        }
        return Meaning(closenesses=closenesses, background=built_in.background)

    def built_in(self, generation: int) -> BuiltInVectors | None:
        """The vectors of the built-in agents, or None if they are not known in this generation."""
        if self._built_in is not None and self._built_in.generation != generation:
            self._built_in = None
        return self._built_in

    def request_built_in(self) -> None:
        """Let the background loop embed the built-in agents, if their vectors are missing."""
        if self._built_in is None:
            self._missing.set()

    def _request(self, agents: Iterable[OwnAgent]) -> None:
        """Let the background loop embed these agents, unless they have vectors, and the built-in ones."""
        paused = set(self._memories.meter.paused())
        missing = (agent for agent in agents if agent.owner_id not in paused and agent.id not in self._pending)
        self._pending |= {agent.id: agent for agent in islice(missing, max(0, MAX_PENDING - len(self._pending)))}
        self._missing.set()

    async def run(self) -> None:
        """Embed agents whose vectors were missing, for ever."""
        if self._embedder is not None:
            await run_when_requested(
                "agent_embedding",
                self._missing,
                self.embed_missing,
                self._pending.clear,
                failure_seconds=FAILURE_SECONDS,
            )

    async def embed_missing(self) -> None:
        """Embed the built-in agents, and users' agents that were missing. Raises `ModelFailed`.

        The agents of a user whose budget is used up stay without vectors until a later task.
        """
        built_in = self._built_in = self._built_in or await self._embed_built_in()
        while self._pending:
            agent_id, agent = next(iter(self._pending.items()))
            async with self._db.driver() as driver:
                is_known = await agent_vectors.exist(driver, agent_id, built_in.generation)
            if not is_known and await self._memories.meter.affordable([agent]):
                await self._embed_own(agent)
            self._pending.pop(agent_id, None)

    async def _embed_own(self, agent: OwnAgent) -> None:
        embedded = await self._embed(agent.texts)
        self._memories.meter.count(agent.owner_id, embedded.tokens)
        generation = await self._memories.generation(len(embedded.vectors[0]))
        await agent_vectors.store(self._db, agent.id, generation, embedded.vectors)
        metrics.AGENTS_EMBEDDED.inc()

    async def _embed_built_in(self) -> BuiltInVectors:
        found = (await self._embed([text for agent in BUILT_IN for text in agent.texts])).vectors
        generation = await self._memories.generation(len(found[0]))
        rest = iter(found)
        vectors = {agent.name: list(islice(rest, len(agent.texts))) for agent in BUILT_IN}
        background = routing.background(list(vectors.values()))
        return BuiltInVectors(generation=generation, vectors=vectors, background=background)

    async def _embed(self, texts: Sequence[str]) -> EmbeddingResult:
        """The vectors of these texts. That of a text which the model refuses is near to no task."""
        embedder = self._memories.embedder
        result = await document_vectors.embed(embedder, texts)
        vectors = await document_vectors.with_zeros(embedder, result.vectors)
        return EmbeddingResult(vectors=tuple(vectors), tokens=result.tokens)
