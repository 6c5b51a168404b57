"""Counts and logs what a driver has stored: how attempts ended, and plans that paused or stopped."""

from collections.abc import Iterable
from uuid import UUID

import structlog

from khala.domain.plans.events import (
    AgentRateLimited,
    AgentUnavailable,
    Paused,
    PlanEvent,
    StepCompleted,
    StepFailed,
    StepReopened,
    StepRetrying,
    StepUnfinished,
    Stopped,
)
from khala.signals import metrics

log = structlog.get_logger()

OUTCOMES: dict[type[PlanEvent], str] = {
    StepCompleted: "completed",
    StepFailed: "failed",
    StepRetrying: "retried",
    StepUnfinished: "unfinished",
    StepReopened: "interrupted",
    AgentRateLimited: "rate_limited",
    AgentUnavailable: "unavailable",
}
"""The outcomes of attempts, by the events with which they end."""


def count(plan_id: UUID, events: Iterable[PlanEvent]) -> None:
    """Count events that were committed."""
    for event in events:
        if type(event) in OUTCOMES:
            metrics.PLAN_ATTEMPTS.labels(OUTCOMES[type(event)]).inc()
        elif isinstance(event, Paused | Stopped):
            status = "paused" if isinstance(event, Paused) else "stopped"
            metrics.PLANS_ENDED.labels(status, event.reason).inc()
            log.info(f"plan_{status}", plan_id=str(plan_id), reason=event.reason)
