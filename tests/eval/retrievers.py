"""The ports of the evaluation: what a retriever of memories, a router and a chooser of tools have to offer."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from tests.eval.eval_sets import AgentItem, MemoryItem, ToolItem

Ranking: TypeAlias = Sequence[tuple[str, float]]
"""Ids with scores, best first. Scores of one system are comparable between questions."""


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a router. `confidence` is the probability that `agent` is right, even if it abstained."""

    agent: str
    confidence: float
    abstained: bool


class MemoryRetriever(Protocol):
    """Searches the memories of one owner at a time."""

    name: str
    floor: float | None
    """The score below which it abstains. None: the evaluation fits it. An empty answer abstains in any case."""

    async def index(self, memories: Sequence[MemoryItem]) -> None:
        """Forget what was indexed, and index these memories."""

    async def search(self, question: str, limit: int) -> Ranking:
        """The memories that answer the question best."""

    def cpu_seconds(self) -> float:
        """CPU time of all processes that serve the search, so far."""


class Router(Protocol):
    """Chooses an agent."""

    name: str

    async def index(self, agents: Sequence[AgentItem], examples: Sequence[tuple[str, str | None]]) -> None:
        """Take these agents. `examples` are the utterances of the tune half with their agents, to calibrate with."""

    async def route(self, text: str) -> Routed:
        """The agent for a task."""

    def cpu_seconds(self) -> float:
        """CPU time of all processes that serve the router, so far."""


class ToolRetriever(Protocol):
    """Chooses the tools that are offered for a task."""

    name: str

    async def index(self, tools: Sequence[ToolItem]) -> None:
        """Take these tools."""

    async def tools(self, text: str, limit: int) -> Ranking:
        """The names of the tools that the task needs most."""

    def cpu_seconds(self) -> float:
        """CPU time of all processes that serve the choice, so far."""
