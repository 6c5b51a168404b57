"""New plans: the first event of a plan, with the defaults of what its author leaves open."""

from collections.abc import Sequence
from datetime import datetime

from khala.domain.plans.events import Created
from khala.domain.plans.plan import MAX_ITERATIONS, PlanConfig, PlanMode, PlannedStep

MIN_ITERATIONS = 100
"""Iterations of a short plan, by default."""


def default_iterations(steps: int, config: PlanConfig) -> int:
    """The iterations in which each step can be retried as often as the rules allow."""
    return min(MAX_ITERATIONS, max(MIN_ITERATIONS, steps * (1 + config.max_retries)))


def created_event(
    title: str,
    goal: str,
    steps: Sequence[PlannedStep],
    config: PlanConfig,
    mode: PlanMode,
    *,
    now: datetime,
    max_iterations: int | None = None,
) -> Created:
    """The first event of a plan without completed steps. Its iterations have a default."""
    return Created(
        at=now,
        title=title,
        goal=goal,
        config=config,
        mode=mode,
        max_iterations=max_iterations or default_iterations(len(steps), config),
        steps=tuple(steps),
    )
