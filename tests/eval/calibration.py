"""Fits on the tune half: a score's probability of being right (Platt scaling), and the floor below which to abstain."""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

PENALTY = 1e-5
MAX_ITERATIONS = 100
TOLERANCE = 1e-9


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The probability that an answer with this score is right: a logistic function of the score."""

    slope: float
    intercept: float

    def probability(self, score: float) -> float:
        """From 0 to 1; it does not decrease with the score."""
        exponent = max(-500.0, min(500.0, self.slope * score + self.intercept))
        return 1 / (1 + math.exp(-exponent))


def fit_calibration(answers: Sequence[tuple[float, bool]]) -> Calibration:
    """Fit pairs (score, right) by Newton's method, with a small penalty on both; the slope is never negative."""
    slope = 0.0
    rights = sum(right for _, right in answers)
    intercept = math.log((rights + 1) / (len(answers) - rights + 1))
    for _ in range(MAX_ITERATIONS):
        change = _newton_step(answers, slope, intercept)
        slope, intercept = slope + change[0], intercept + change[1]
        if max(map(abs, change)) < TOLERANCE:
            break
    if slope < 0:
        return Calibration(slope=0.0, intercept=math.log((rights + 1) / (len(answers) - rights + 1)))
    return Calibration(slope=slope, intercept=intercept)


def _newton_step(answers: Sequence[tuple[float, bool]], slope: float, intercept: float) -> tuple[float, float]:
    fitted = Calibration(slope=slope, intercept=intercept)
    by_slope, by_intercept = -PENALTY * slope, -PENALTY * intercept
    slopes, mixed, intercepts = PENALTY, 0.0, PENALTY
    for score, right in answers:
        probability = fitted.probability(score)
        weight = probability * (1 - probability)
        by_slope += (right - probability) * score
        by_intercept += right - probability
        slopes += weight * score * score
        mixed += weight * score
        intercepts += weight
    determinant = slopes * intercepts - mixed * mixed
    return (
        (intercepts * by_slope - mixed * by_intercept) / determinant,
        (slopes * by_intercept - mixed * by_slope) / determinant,
    )


def best_floor(answers: Sequence[tuple[float, bool, bool]]) -> float:
    """The floor with the most right decisions for triples (score, right if answered, right if abstained).

    Of equal floors it is the lowest. Candidates lie in the middle between two adjacent scores, so that a floor
    separates scores by a margin.
    """
    scores = sorted({score for score, _, _ in answers})
    candidates = [0.0, *(sum(pair) / 2 for pair in pairwise(scores))]
    return max(
        candidates,
        key=lambda floor: sum(absent if score < floor else answered for score, answered, absent in answers),
    )
