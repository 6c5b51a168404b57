"""Khala's own routing and choice of tools, without a database: the same functions that the server calls."""

import time
from collections.abc import Sequence

from khala.domain import agent_seeds, routing
from khala.domain.parts import LikelyAgent
from khala.domain.routing import AgentProfile, Background, Meaning
from khala.domain.tool_relevance import relevant_tools, text_of
from khala.domain.tools import ToolSpec
from khala.domain.vectors import Vector
from khala.models.embeddings.embedder import Embedder
from tests.eval.eval_sets import AgentItem, ToolItem
from tests.eval.retrievers import Ranking, Routed, Router, ToolRetriever


class KhalaRouter:
    """Routes by words, and by meaning with a model. Its constants are in `khala.domain.routing`, so it fits nothing."""

    def __init__(self, name: str, embedder: Embedder | None = None) -> None:
        self.name = name
        self._embedder = embedder
        self._profiles: Sequence[AgentProfile] = ()
        self._vectors: dict[str, Sequence[Vector]] = {}
        self._background: Background | None = None

    async def index(self, agents: Sequence[AgentItem], examples: Sequence[tuple[str, str | None]]) -> None:
        """Take these agents. The examples are not needed."""
        texts = {one.name: routing.texts_of(one.title, one.description, one.examples) for one in agents}
        self._profiles = [routing.profile(name, found) for name, found in texts.items()]
        if self._embedder is not None:
            self._vectors = {name: (await self._embedder.documents(found)).vectors for name, found in texts.items()}
            # As on a server, whose background is that of the built-in agents.
            built_in = [self._vectors[agent.name] for agent in agent_seeds.BUILT_IN if agent.name in self._vectors]
            self._background = routing.background(built_in or list(self._vectors.values()))

    async def route(self, text: str) -> Routed:
        """The decision. If it abstains, the most likely agent is that of the first alternative."""
        decision = routing.decide(text, self._profiles, await self._meaning(text))
        if not decision.abstained:
            return Routed(agent=decision.agent, confidence=decision.confidence, abstained=False)
        best = next(iter(decision.alternatives), LikelyAgent(agent="", confidence=0.0))
        return Routed(agent=best.agent, confidence=best.confidence, abstained=True)

    def cpu_seconds(self) -> float:
        """CPU time of this process."""
        return time.process_time()

    async def _meaning(self, text: str) -> Meaning | None:
        vector = None if self._embedder is None else await self._embedder.query(text)
        if vector is None or self._background is None:
            return None
        closenesses = {
            name: routing.closeness(routing.similarity(vector, other) for other in vectors)
            for name, vectors in self._vectors.items()
        }
        return Meaning(closenesses=closenesses, background=self._background)


class KhalaTools:
    """Chooses tools as a prompt's are chosen. Their order is the rank; there are no scores.

    By words, and by meaning with a model. Its constants are those of the router, so it fits nothing.
    """

    def __init__(self, name: str, embedder: Embedder | None = None) -> None:
        self.name = name
        self._embedder = embedder
        self._specs: Sequence[ToolSpec] = ()
        self._vectors: Sequence[Vector] = ()
        self._background: Background | None = None

    async def index(self, tools: Sequence[ToolItem]) -> None:
        """Take these tools, and embed them if there is a model."""
        self._specs = [
            ToolSpec(
                name=tool.name,
                description=tool.description,
                parameters={
                    "type": "object",
                    "properties": {name: {"description": meaning} for name, meaning in tool.parameters.items()},
                },
            )
            for tool in tools
        ]
        if self._embedder is not None:
            self._vectors = (await self._embedder.documents(list(map(text_of, self._specs)))).vectors
            texts = [routing.texts_of(agent.title, agent.description, agent.examples) for agent in agent_seeds.BUILT_IN]
            self._background = routing.background([(await self._embedder.documents(one)).vectors for one in texts])

    async def tools(self, text: str, limit: int) -> Ranking:
        """The tools that a prompt with so many gets."""
        chosen = relevant_tools(text, self._specs, limit=limit, meaning=await self._meaning(text))
        return [(spec.name, 1 / rank) for rank, spec in enumerate(chosen, 1)]

    async def _meaning(self, text: str) -> Meaning | None:
        """Raises `TimeoutError`: figures without some vectors would be wrong."""
        if self._embedder is None or self._background is None:
            return None
        vector = await self._embedder.query(text)
        if vector is None:
            raise TimeoutError(f"{self._embedder.name} did not embed {text!r}")
        closenesses = {
            spec.name: routing.similarity(vector, other) for spec, other in zip(self._specs, self._vectors, strict=True)
        }
        return Meaning(closenesses=closenesses, background=self._background)

    def cpu_seconds(self) -> float:
        """CPU time of this process."""
        return time.process_time()


def khala_routers(embedder: Embedder | None = None) -> list[Router]:
    """Khala's router by words, and by meaning if there is a model."""
    found: list[Router] = [KhalaRouter("khala-lexical")]
    if embedder is not None:
        found.append(KhalaRouter("khala-hybrid", embedder))
    return found


def khala_tools(embedder: Embedder | None = None) -> list[ToolRetriever]:
    """Khala's choice of tools by words, and by meaning if there is a model."""
    found: list[ToolRetriever] = [KhalaTools("khala-lexical")]
    if embedder is not None:
        found.append(KhalaTools("khala-hybrid", embedder))
    return found
