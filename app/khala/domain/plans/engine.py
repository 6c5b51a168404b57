"""The engine: what is due in a plan now, and when to look again.

A driver holds the plan under a lease. It stores the events that `advance` and `attempts.report` return, folds them into
the plan, and calls `advance` again until nothing is due. Then it makes the attempts that the plan says are running,
cancels all others, and waits until `next_time` or until something happens.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_never

from khala.domain.plans.dependencies import ready_steps
from khala.domain.plans.events import (
    AgentSwitched,
    Paused,
    Pausing,
    PlanEvent,
    RecoveryAttempted,
    StepStarted,
    Stopped,
    Stopping,
)
from khala.domain.plans.plan import Plan, PlanEnd, PlanStep

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def report_probe(plan: Plan, *, available: bool, now: datetime) -> list[PlanEvent]:
    """The events that follow from a probe of the primary agent."""
    primary = plan.config.agents[0]
    if plan.agent == primary or plan.status == "stopped":
        return []
    probed = RecoveryAttempted(at=now, agent=primary, available=available)
    return [probed, AgentSwitched(at=now, agent=primary, reason="recovered")] if available else [probed]


def advance(plan: Plan, now: datetime, *, under_way: bool) -> Sequence[PlanEvent]:
    """The events that are due now; none if there is nothing to do. `under_way`: the driver still has an attempt."""
    match plan.status:
        case "idle" | "paused" | "stopped":
            return []
        case "stopping":
            return [] if under_way else [Stopped(at=now, reason=plan.end or "interrupted")]
        case "pausing":
            is_busy = under_way or plan.running_steps
            return [] if is_busy else [Paused(at=now, reason=plan.pause_reason or "requested")]
        case "running":
            return _advance_running(plan, now, under_way=under_way)
        case _:
            assert_never(plan.status)


def _advance_running(plan: Plan, now: datetime, *, under_way: bool) -> Sequence[PlanEvent]:
    is_idle = not under_way and not plan.running_steps
    if not ready_steps(plan):
        return [Stopping(at=now, reason=_ending(plan))] if is_idle else []
    if plan.iteration >= plan.max_iterations:
        return [Stopping(at=now, reason="max_iterations")] if is_idle else []
    if _budget_is_spent(plan):
        return [Pausing(at=now, reason="budget")]
    if needs_probe(plan, now):
        return []
    return [
        StepStarted(at=now, step_id=step.planned.id, attempt=step.attempts + 1, agent=_agent_of(plan, step))
        for step in _startable(plan, now)
    ]


def needs_probe(plan: Plan, now: datetime) -> bool:
    """Whether the primary agent is to be probed before the next step starts."""
    return (
        plan.status == "running"
        and plan.config.recover_primary
        and plan.agent != plan.config.agents[0]
        and not plan.chosen_by_person
        and plan.probed_at < plan.iteration
        and bool(_startable(plan, now))
    )


def next_time(plan: Plan) -> datetime | None:
    """The time at which something is due even if nothing happens, or None."""
    if plan.status != "running":
        return None
    times = [_timeout(plan, step) for step in plan.steps.values() if step.status == "running"]
    if _room(plan):
        times += [_start_time(plan, step) for step in ready_steps(plan)]
    return min(times, default=None)


def expired_steps(plan: Plan, now: datetime) -> list[str]:
    """The ids of steps whose attempt takes too long. Their driver cancels it, and reports a failure."""
    return [step_id for step_id in plan.running_steps if _timeout(plan, plan.steps[step_id]) <= now]


def _startable(plan: Plan, now: datetime) -> list[PlanStep]:
    """The steps that start now, in order."""
    room = min(_room(plan), plan.max_iterations - plan.iteration)
    return [step for step in ready_steps(plan) if _start_time(plan, step) <= now][:room]


def _room(plan: Plan) -> int:
    """How many more steps may run at once."""
    parallel = 1 if plan.mode == "step" else plan.config.parallel
    return max(0, parallel - len(plan.running_steps))


def _start_time(plan: Plan, step: PlanStep) -> datetime:
    """The time from which a ready step may start."""
    delay = timedelta(milliseconds=plan.config.step_delay_ms)
    return max(step.not_before or LONG_AGO, plan.last_ended_at + delay if plan.last_ended_at else LONG_AGO)


def _timeout(plan: Plan, step: PlanStep) -> datetime:
    return (step.started_at or LONG_AGO) + timedelta(seconds=plan.config.step_timeout_seconds)


def _agent_of(plan: Plan, step: PlanStep) -> str:
    own = step.planned.agent
    return own if own is not None and own not in plan.limited_agents else plan.agent


def _budget_is_spent(plan: Plan) -> bool:
    limits = (plan.budget.usd, plan.budget.tokens, plan.budget.seconds)
    spent = (plan.spent.usd, plan.spent.tokens, plan.spent.seconds)
    return any(limit is not None and used >= limit for limit, used in zip(limits, spent, strict=True))


def _ending(plan: Plan) -> PlanEnd:
    """How a plan ends of which no step can run any more."""
    return "completed" if all(step.satisfied for step in plan.steps.values()) else "no_tasks"
