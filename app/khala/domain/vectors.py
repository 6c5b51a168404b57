"""Vectors: the meaning of a text as numbers. Pure."""

from array import array
from collections.abc import Sequence
from math import fsum, isfinite, sqrt
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Vector: TypeAlias = array[float]
else:
    Vector = array  # has no type parameters before Python 3.12
"""32-bit floats. Its length is 1, so that the inner product of two vectors is the cosine of their angle."""
MAX_DIMENSIONS = 4_000
"""pgvector's limit for vectors of 16-bit floats that have an index."""


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


def zero_vector(dimensions: int) -> Vector:
    """The vector of a text without meaning: its inner product with each vector is 0."""
    return array("f", bytes(4 * dimensions))
