"""The port to embedding models: takes texts and returns one vector for each."""

from array import array
from collections.abc import Sequence
from math import fsum, isfinite, sqrt
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    Vector: TypeAlias = array[float]
else:
    Vector = array  # has no type parameters before Python 3.12
"""32-bit floats. Its length is 1, so that the inner product of two vectors is the cosine of their angle."""
Purpose: TypeAlias = Literal["document", "query"]
"""Whether a text is stored to be found, or searches for stored ones: some models embed the two differently."""

MAX_DIMENSIONS = 4_000
"""pgvector's limit for vectors of 16-bit floats that have an index."""


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of some texts, in the order of the texts.

    `estimated`: the server reported no usage, so the tokens are an estimate.
    """

    vectors: tuple[Vector, ...]
    tokens: int
    estimated: bool = False


class EmbeddingModel(Protocol):
    """A model that can be called."""

    name: str
    """The configured name, such as `openai:text-embedding-3-small@512`. Another name means other vectors."""
    provider: str
    model: str
    """The provider's name of the model, for prices and metrics."""
    max_texts: int
    """Texts of one call."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        """Call the model once, without retries. Raises `khala.models.port.ModelFailed`."""
        ...

    async def aclose(self) -> None:
        """Release connections and memory."""
        ...


class BadVectorError(ValueError):
    """A vector cannot be used. The message says why."""


def unit_vector(values: Sequence[float]) -> Vector:
    """The vector of length 1 with the direction of `values`.

    Raises `BadVectorError` if they are too many, are not all finite numbers, or are all zero.
    """
    if not 0 < len(values) <= MAX_DIMENSIONS:
        raise BadVectorError(f"A vector has {len(values)} dimensions; 1 to {MAX_DIMENSIONS} are supported.")
    length = sqrt(fsum(value * value for value in values))
    if not isfinite(length):
        raise BadVectorError("A vector has values that are not finite numbers.")
    if length == 0:
        raise BadVectorError("A vector has only zeros.")
    return array("f", (value / length for value in values))
