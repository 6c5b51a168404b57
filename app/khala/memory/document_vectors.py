"""Vectors of documents, although the model refuses some of their texts."""

from collections.abc import Sequence

import msgspec
import structlog

from khala.domain.vectors import Vector, zero_vector
from khala.models.embeddings.embedder import Embedder
from khala.models.port import ModelFailed

CANARY = "A lighthouse keeper writes a letter to his sister about the storm of last night."
"""The text whose vector shows whether the model is the one that computed the stored vectors. Every model embeds it."""
TEXT_FAILURES = ("refused", "context_exceeded", "invalid_response")
"""Failures that one text may cause. For some texts, some servers send vectors that are not numbers."""

log = structlog.get_logger()


class DocumentVectors(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of some texts, in the order of the texts. None stands for a text that the model refuses."""

    vectors: Sequence[Vector | None]
    tokens: int


async def embed(embedder: Embedder, texts: Sequence[str], *, is_available: bool = False) -> DocumentVectors:
    """The vectors of these texts. A text that the model refuses does not hold up the others.

    The refused texts are found by bisection: each takes two calls for each doubling of the number of texts. Raises
    `ModelFailed` if the model is unavailable. `is_available`: it is known to embed other texts.
    """
    try:
        result = await embedder.documents(texts)
    except ModelFailed as failure:
        if failure.code not in TEXT_FAILURES or not (is_available or await _is_available(embedder)):
            raise
        if len(texts) == 1:
            log.warning("text_not_embedded", characters=len(texts[0]), reason=failure.message)
            return DocumentVectors(vectors=(None,), tokens=0)
        middle = len(texts) // 2
        first = await embed(embedder, texts[:middle], is_available=True)
        second = await embed(embedder, texts[middle:], is_available=True)
        return DocumentVectors(vectors=(*first.vectors, *second.vectors), tokens=first.tokens + second.tokens)
    return DocumentVectors(vectors=result.vectors, tokens=result.tokens)


async def with_zeros(embedder: Embedder, vectors: Sequence[Vector | None]) -> list[Vector]:
    """The vectors, with one that is near to no text for each text that the model refuses.

    Raises `ModelFailed`, also if they have different numbers of dimensions.
    """
    dimensions = {len(vector) for vector in vectors if vector is not None}
    if not dimensions:
        dimensions = {len((await embedder.documents([CANARY])).vectors[0])}
    if len(dimensions) > 1:
        raise ModelFailed("invalid_response", "The embedding model has changed.", retryable=True)
    zero = zero_vector(dimensions.pop())
    return [zero if vector is None else vector for vector in vectors]


async def _is_available(embedder: Embedder) -> bool:
    """Whether the model embeds any text: otherwise it refuses the key or the model's name, and not a text."""
    try:
        await embedder.documents([CANARY])
    except ModelFailed:
        return False
    return True
