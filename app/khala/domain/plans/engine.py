"""The engine: what is due in a plan now, and when to look again.

A driver holds the plan under a lease. It stores the events that `advance` and `attempts.report` return, folds them into
the plan, and calls `advance` again until nothing is due. Then it makes the attempts that the plan says are running,
cancels all others, and waits until `next_time` or until something happens.
"""

from collections.abc import Mapping, Sequence
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
from khala.domain.plans.plan import MAX_PARALLEL, Plan, PlanBudget, PlanEnd, PlanStep
from khala.domain.plans.shares import next_share

LONG_AGO = datetime.min.replace(tzinfo=UTC)
NO_WAITS: Mapping[str, timedelta] = {}


def report_probe(plan: Plan, *, available: bool, now: datetime) -> list[PlanEvent]:
    """The events that follow from a probe of the primary agent."""
    primary = plan.config.agents[0]
    if plan.agent == primary or plan.status == "stopped":
        return []
    probed = RecoveryAttempted(at=now, agent=primary, available=available)
    return [probed, AgentSwitched(at=now, agent=primary, reason="recovered")] if available else [probed]


def advance(plan: Plan, now: datetime, *, max_started: int = MAX_PARALLEL) -> Sequence[PlanEvent]:
    """The events that are due now; none if there is nothing to do. At most `max_started` steps start."""
    match plan.status:
        case "idle" | "paused" | "stopped":
            return []
        case "stopping":
            return [] if plan.busy else [Stopped(at=now, reason=plan.end or "interrupted")]
        case "pausing":
            return [] if plan.busy else [Paused(at=now, reason=plan.pause_reason or "requested")]
        case "running":
            return _advance_running(plan, now, max_started)
        case _:
            assert_never(plan.status)


def _advance_running(plan: Plan, now: datetime, max_started: int) -> Sequence[PlanEvent]:
    if not ready_steps(plan):
        return [] if plan.busy else [Stopping(at=now, reason=_ending(plan))]
    if plan.iteration >= plan.max_iterations:
        return [] if plan.busy else [Stopping(at=now, reason="max_iterations")]
    if not plan.busy and next_share(plan, (), 1) is None:
        return [Pausing(at=now, reason="budget")]
    return [] if needs_probe(plan, now) else _start_steps(plan, now, max_started)


def _start_steps(plan: Plan, now: datetime, max_started: int) -> list[StepStarted]:
    """Start the steps for which there is room, and enough of the budget."""
    room = _room(plan)
    shares = _running_shares(plan)
    started: list[StepStarted] = []
    for step in _startable(plan, now)[:max_started]:
        share = _share(plan, shares, room - len(started))
        if share is None:
            break
        shares.append(share)
        agent = _agent_of(plan, step)
        started.append(
            StepStarted(at=now, step_id=step.planned.id, attempt=step.attempts + 1, agent=agent, budget=share)
        )
    return started


def _share(plan: Plan, running: Sequence[PlanBudget], places: int) -> PlanBudget | None:
    """The budget of the next attempt. If none is under way, it may have all that is left."""
    share = next_share(plan, running, places)
    return next_share(plan, (), 1) if share is None and not running else share


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


def next_time(plan: Plan, waits: Mapping[str, timedelta] = NO_WAITS) -> datetime | None:
    """The time at which something is due even if nothing happens, or None. `waits` as in `expired_steps`."""
    times = [_timeout(plan, step_id, waits) for step_id in plan.running_steps]
    if plan.status == "running" and _may_start(plan):
        times += [_start_time(plan, step) for step in ready_steps(plan)]
    return min(times, default=None)


def _may_start(plan: Plan) -> bool:
    """Whether a step that is ready needs nothing but time."""
    room = _room(plan)
    return room > 0 and plan.iteration < plan.max_iterations and _share(plan, _running_shares(plan), room) is not None


def expired_steps(plan: Plan, now: datetime, waits: Mapping[str, timedelta] = NO_WAITS) -> list[str]:
    """The ids of steps whose attempt takes too long. Their driver cancels it, and reports a failure.

    `waits` has the time, by step, for which an attempt waited for people. That does not count.
    """
    return [step_id for step_id in plan.running_steps if _timeout(plan, step_id, waits) <= now]


def _startable(plan: Plan, now: datetime) -> list[PlanStep]:
    """The steps that start now, in order."""
    room = min(_room(plan), plan.max_iterations - plan.iteration)
    return [step for step in ready_steps(plan) if _start_time(plan, step) <= now][:room]


def _room(plan: Plan) -> int:
    """How many more steps may run at once."""
    parallel = 1 if plan.mode == "step" else plan.config.parallel
    return max(0, parallel - len(plan.running_steps))


def _running_shares(plan: Plan) -> list[PlanBudget]:
    """The shares of the budget that the attempts under way have."""
    return [plan.steps[step_id].budget for step_id in plan.running_steps]


def _start_time(plan: Plan, step: PlanStep) -> datetime:
    """The time from which a ready step may start."""
    delay = timedelta(milliseconds=plan.config.step_delay_ms)
    return max(step.not_before or LONG_AGO, plan.last_ended_at + delay if plan.last_ended_at else LONG_AGO)


def _timeout(plan: Plan, step_id: str, waits: Mapping[str, timedelta]) -> datetime:
    limit = timedelta(seconds=plan.config.step_timeout_seconds) + waits.get(step_id, timedelta())
    return (plan.steps[step_id].started_at or LONG_AGO) + limit


def _agent_of(plan: Plan, step: PlanStep) -> str:
    own = step.planned.agent
    return own if own is not None and own not in plan.limited_agents else plan.agent


def _ending(plan: Plan) -> PlanEnd:
    """How a plan ends of which no step can run any more."""
    return "completed" if all(step.satisfied for step in plan.steps.values()) else "no_tasks"
