"""Metrics of retrieval, abstention and calibration. All are pure functions."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

BINS = 10
"""The expected calibration error groups confidences into this many bins of equal width."""


class Abstention(msgspec.Struct, frozen=True, kw_only=True):
    """Precision, recall and F1 of abstaining, where the questions without an answer are the ones to abstain from."""

    precision: float
    recall: float
    f1: float


def recall_at(limit: int, expected: Collection[str], ranked: Sequence[str]) -> float:
    """The share of the expected ids among the first `limit`. Raises `ValueError` if nothing is expected."""
    if not expected:
        raise ValueError("recall is not defined where nothing is expected")
    return len(set(expected) & set(ranked[:limit])) / len(set(expected))


def reciprocal_rank(expected: Collection[str], ranked: Sequence[str]) -> float:
    """1 divided by the rank of the first expected id; 0 if there is none."""
    return next((1 / rank for rank, name in enumerate(ranked, 1) if name in expected), 0.0)


def is_stale_first(expected: Collection[str], stale: Collection[str], ranked: Sequence[str]) -> bool:
    """Whether a superseded id stands before all ids that supersede it."""
    first = next((name for name in ranked if name in expected or name in stale), None)
    return first is not None and first in stale


def abstention(decisions: Iterable[tuple[bool, bool]]) -> Abstention:
    """The figures of pairs (abstained, nothing to answer with). What is undefined, such as 0 of 0, counts as 0."""
    pairs = list(decisions)
    right = sum(abstained and absent for abstained, absent in pairs)
    precision = ratio(right, sum(abstained for abstained, _ in pairs))
    recall = ratio(right, sum(absent for _, absent in pairs))
    return Abstention(precision=precision, recall=recall, f1=ratio(2 * precision * recall, precision + recall))


def expected_calibration_error(answers: Iterable[tuple[float, bool]], bins: int = BINS) -> float:
    """The mean distance between confidence and accuracy of pairs (confidence from 0 to 1, right), weighted by bin.

    The bins have equal width; a confidence on a border belongs to the upper bin, and 1 to the last.
    """
    grouped: dict[int, list[tuple[float, bool]]] = {}
    total = 0
    for confidence, right in answers:
        if not 0 <= confidence <= 1:
            raise ValueError(f"{confidence} is no probability")
        grouped.setdefault(min(bins - 1, int(confidence * bins)), []).append((confidence, right))
        total += 1
    distances = (
        abs(sum(confidence for confidence, _ in one) - sum(right for _, right in one)) for one in grouped.values()
    )
    return ratio(sum(distances), total)


def accuracy(rights: Iterable[bool]) -> float:
    """The share of right answers; 0 without answers."""
    return mean([float(right) for right in rights])


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle; 0 without values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def mean(values: Sequence[float]) -> float:
    """The mean; 0 without values."""
    return ratio(sum(values), len(values))


def ratio(part: float, whole: float) -> float:
    """The quotient; 0 if the divisor is 0."""
    return part / whole if whole else 0.0
