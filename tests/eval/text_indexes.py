"""Indexes of texts: BM25 over words or trigrams in memory, and vectors of an embedding model, compared exactly."""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from khala.domain.vectors import Vector
from khala.models.embeddings.embedder import Embedder
from tests.eval.retrievers import Ranking

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The constants k1 and b of BM25."""

Tokenizer = Callable[[str], Sequence[str]]


class TextIndex(Protocol):
    """Texts by id. Scores are between 0 and 1 and comparable between questions."""

    async def build(self, texts: Mapping[str, str]) -> None:
        """Replace the index by these texts."""

    async def search(self, question: str, limit: int) -> Ranking:
        """The nearest texts, best first."""

    def cpu_seconds(self) -> float:
        """CPU time of all processes that serve the index, so far."""


class Bm25Index:
    """Okapi BM25. A score is the share of the best score that the question can have."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._size = 0
        self._postings: dict[str, list[tuple[str, float]]] = {}

    async def build(self, texts: Mapping[str, str]) -> None:
        """Replace the index."""
        counts = {name: Counter(self._tokenizer(text)) for name, text in texts.items()}
        lengths = {name: sum(count.values()) for name, count in counts.items()}
        average = sum(lengths.values()) / max(1, len(lengths)) or 1.0
        self._size = len(counts)
        self._postings = {}
        for name, count in counts.items():
            norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths[name] / average)
            for token, times in count.items():
                share = times * (SATURATION + 1) / (times + norm)
                self._postings.setdefault(token, []).append((name, share))

    async def search(self, question: str, limit: int) -> Ranking:
        """Texts with a common token, best first; of equal ones the earlier id."""
        scores: dict[str, float] = {}
        best = 0.0
        for token in sorted(set(self._tokenizer(question))):
            postings = self._postings.get(token, [])
            weight = math.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            best += weight * (SATURATION + 1)
            for name, share in postings:
                scores[name] = scores.get(name, 0.0) + weight * share
        return [(name, score / best) for name, score in _best(scores, limit)]

    def cpu_seconds(self) -> float:
        """CPU time of this process."""
        return time.process_time()


class EmbeddingIndex:
    """Vectors of an embedding model. A score is the cosine, or 0 if that is negative."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Vector] = {}

    async def build(self, texts: Mapping[str, str]) -> None:
        """Replace the index. Raises `khala.models.port.ModelFailed`."""
        result = await self._embedder.documents(list(texts.values()))
        self._vectors = dict(zip(texts, result.vectors, strict=True))

    async def search(self, question: str, limit: int) -> Ranking:
        """The texts with the largest cosine. Raises `TimeoutError`: figures without some answers would be wrong."""
        asked = await self._embedder.query(question)
        if asked is None:
            raise TimeoutError(f"{self._embedder.name} did not embed {question!r}")
        scores = {
            name: min(1.0, max(0.0, sum(one * other for one, other in zip(asked, vector, strict=True))))
            for name, vector in self._vectors.items()
        }
        return _best(scores, limit)

    def cpu_seconds(self) -> float:
        """CPU time of this process; not of a server that runs the model."""
        return time.process_time()


def _best(scores: Mapping[str, float], limit: int) -> Ranking:
    return heapq.nsmallest(limit, scores.items(), key=lambda item: (-item[1], item[0]))
