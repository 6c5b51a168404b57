"""Estimates a run from the requester's own runs that were like it. Pure."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import median

import msgspec

from khala.domain import search_terms
from khala.domain.chat import WireStruct
from khala.domain.decimals import format_decimal

MAX_RUNS = 9
"""Runs of which an estimate is made."""
MIN_SIMILAR_RUNS = 3
"""With fewer runs with a similar task, the newest runs of the agent count instead."""
MIN_SIMILARITY = 0.3
"""The share of words in common from which two tasks are similar."""
MAX_TEXT_CHARACTERS = 400
"""Characters of an earlier task that are compared."""


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended with an answer, and the beginning of its task. `usd` is None if the cost is unknown."""

    task: str
    steps: int
    seconds: float
    usd: Decimal | None


class RunEstimate(WireStruct, frozen=True, kw_only=True):
    """The medians of `of` earlier runs. Without such runs, and without known costs, figures are absent."""

    steps: int | None = None
    seconds: float | None = None
    usd: str | None = None
    of: int


def estimate(task: str, runs: Sequence[EndedRun]) -> RunEstimate:
    """Estimate a run for this task from earlier runs of its agent, the newest first."""
    asked = search_terms.terms(task[:MAX_TEXT_CHARACTERS])
    likeness = [(overlap(asked, search_terms.terms(run.task)), run) for run in runs]
    similar = sorted((one for one in likeness if one[0] >= MIN_SIMILARITY), key=lambda one: -one[0])
    chosen = [run for _, run in similar] if len(similar) >= MIN_SIMILAR_RUNS else runs
    return _of(chosen[:MAX_RUNS])


def overlap(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The weight of the terms in common, as a share of the weight of both: from 0 to 1."""
    common = sum(weight for term, weight in one.items() if term in other)
    total = sum(one.values()) + sum(other.values()) - common
    return common / total if total else 0.0


def _of(runs: Sequence[EndedRun]) -> RunEstimate:
    if not runs:
        return RunEstimate(of=0)
    costs = [run.usd for run in runs if run.usd is not None]
    return RunEstimate(
        steps=round(median(run.steps for run in runs)),
        seconds=round(median(run.seconds for run in runs), 3),
        usd=format_decimal(median(costs)) if costs else None,
        of=len(runs),
    )
