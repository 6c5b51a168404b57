"""BM25: scores a few hundred short documents by the words that they share with a query. Pure.

Words are compared by their stems. A word counts the more, the fewer documents have it, and less, the longer the
document is. The constants are those of most search engines.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from khala.domain import search_terms

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The constants k1 and b of BM25."""
MAX_DOCUMENT_WORDS = 1_024


class Document(msgspec.Struct, frozen=True):
    """A document: the weighted count of each stem, and the sum of all."""

    counts: Mapping[str, float]
    length: float


def document(fields: Iterable[tuple[str, float]]) -> Document:
    """A document of these texts, each with the weight of its words. Words after the first 1,024 do not count."""
    weighted = ((stem, weight) for text, weight in fields for stem, _ in search_terms.stems(text))
    counts: defaultdict[str, float] = defaultdict(float)
    for stem, weight in islice(weighted, MAX_DOCUMENT_WORDS):
        counts[stem] += weight
    return Document(counts=dict(counts), length=math.fsum(counts.values()))


def rarities(stems: Iterable[str], documents: Sequence[Document]) -> dict[str, float]:
    """The rarity of each of the stems that a document has, in their order: 1 for a stem of one document, else less."""
    return {
        stem: _rarity(having, len(documents)) / _rarity(1, len(documents))
        for stem in dict.fromkeys(stems)
        if (having := sum(stem in one.counts for one in documents))
    }


def scores(rarity: Mapping[str, float], documents: Sequence[Document]) -> list[float]:
    """The score of each document for a query of stems with these rarities. A document without any of them has 0."""
    mean = math.fsum(one.length for one in documents) / max(1, len(documents)) or 1.0
    return [_score(rarity, one, one.length / mean) for one in documents]


def _score(rarity: Mapping[str, float], one: Document, relative_length: float) -> float:
    norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * relative_length)
    found = ((worth, one.counts.get(stem, 0.0)) for stem, worth in rarity.items())
    return math.fsum(worth * count * (SATURATION + 1) / (count + norm) for worth, count in found if count)


def _rarity(having: int, documents: int) -> float:
    """The inverse document frequency."""
    return math.log1p((documents - having + 0.5) / (having + 0.5))
