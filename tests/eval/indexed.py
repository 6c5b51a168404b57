"""Finds memories, agents and tools by an index of their texts alone: baselines for Khala's own search."""

from collections.abc import Iterable, Sequence

from khala.models.embeddings.embedder import Embedder
from tests.eval.calibration import Calibration, best_floor, fit_calibration
from tests.eval.eval_sets import AgentItem, MemoryItem, ToolItem
from tests.eval.retrievers import MemoryRetriever, Ranking, Routed, Router, ToolRetriever
from tests.eval.text_indexes import Bm25Index, EmbeddingIndex, TextIndex
from tests.eval.words import trigrams, words


class IndexedMemories:
    """Memories by their text, with or without keywords. It does not know which memories are superseded."""

    floor: float | None = None

    def __init__(self, name: str, index: TextIndex, *, keywords: bool = False) -> None:
        self.name = name
        self._index = index
        self._keywords = keywords

    async def index(self, memories: Sequence[MemoryItem]) -> None:
        """Replace the index."""
        await self._index.build(
            {one.id: f"{one.text}\n{one.keywords}" if self._keywords else one.text for one in memories}
        )

    async def search(self, question: str, limit: int) -> Ranking:
        """The memories that are nearest to the question."""
        return await self._index.search(question, limit)

    def cpu_seconds(self) -> float:
        """CPU time of the index."""
        return self._index.cpu_seconds()


class IndexedRouter:
    """Agents by title, description and examples; the lead of the first over the second gives the confidence."""

    def __init__(self, name: str, index: TextIndex) -> None:
        self.name = name
        self._index = index
        self._calibration = Calibration(slope=0.0, intercept=0.0)
        self._floor = 0.0

    async def index(self, agents: Sequence[AgentItem], examples: Sequence[tuple[str, str | None]]) -> None:
        """Index the agents, and fit confidence and floor to the examples."""
        await self._index.build({one.name: "\n".join((one.title, one.description, *one.examples)) for one in agents})
        leads = [(*await self._lead(text), agent) for text, agent in examples]
        self._calibration = fit_calibration([(lead, named == agent) for named, lead, agent in leads])
        self._floor = best_floor(
            [(self._calibration.probability(lead), named == agent, agent is None) for named, lead, agent in leads]
        )

    async def route(self, text: str) -> Routed:
        """The agent with the best score; it abstains below the floor, and if no agent has anything of the text."""
        agent, lead = await self._lead(text)
        confidence = self._calibration.probability(lead) if agent else 0.0
        return Routed(agent=agent, confidence=confidence, abstained=not agent or confidence < self._floor)

    def cpu_seconds(self) -> float:
        """CPU time of the index."""
        return self._index.cpu_seconds()

    async def _lead(self, text: str) -> tuple[str, float]:
        first, second = [*await self._index.search(text, 2), ("", 0.0), ("", 0.0)][:2]
        return first[0], first[1] - second[1]


class IndexedTools:
    """Tools by the words of name, description and parameters."""

    def __init__(self, name: str, index: TextIndex) -> None:
        self.name = name
        self._index = index

    async def index(self, tools: Sequence[ToolItem]) -> None:
        """Replace the index."""
        await self._index.build({tool.name: "\n".join(_tool_texts(tool)) for tool in tools})

    async def tools(self, text: str, limit: int) -> Ranking:
        """The tools that are nearest to the task."""
        return await self._index.search(text, limit)

    def cpu_seconds(self) -> float:
        """CPU time of the index."""
        return self._index.cpu_seconds()


def _tool_texts(tool: ToolItem) -> Iterable[str]:
    yield tool.name.replace("_", " ")
    yield tool.description
    for name, meaning in tool.parameters.items():
        yield f"{name.replace('_', ' ')}: {meaning}"


def memory_baselines(embedder: Embedder | None = None, *, keywords: bool = True) -> list[MemoryRetriever]:
    """Words and trigrams, each also with keywords if the memories have some; and the embedding model, if any."""
    found: list[MemoryRetriever] = [IndexedMemories(name, index) for name, index in _indexes(embedder)]
    if keywords:
        found += [
            IndexedMemories("bm25-words+keywords", Bm25Index(words), keywords=True),
            IndexedMemories("bm25-trigrams+keywords", Bm25Index(trigrams), keywords=True),
        ]
    return found


def router_baselines(embedder: Embedder | None = None) -> list[Router]:
    """Words, trigrams and the embedding model, if there is one."""
    return [IndexedRouter(name, index) for name, index in _indexes(embedder)]


def tool_baselines(embedder: Embedder | None = None) -> list[ToolRetriever]:
    """Words, trigrams and the embedding model, if there is one."""
    return [IndexedTools(name, index) for name, index in _indexes(embedder)]


def _indexes(embedder: Embedder | None) -> Iterable[tuple[str, TextIndex]]:
    yield "bm25-words", Bm25Index(words)
    yield "bm25-trigrams", Bm25Index(trigrams)
    if embedder is not None:
        yield "embeddings", EmbeddingIndex(embedder)
