"""The fold of a plan's events: the plan as it is after them."""

from collections.abc import Iterable
from typing import assert_never

from khala.domain.plans.events import (
    AgentLimited,
    AgentRateLimited,
    AgentSwitched,
    AgentUnavailable,
    AllLimited,
    BudgetChanged,
    Created,
    Edited,
    IterationsAdded,
    IterationsRemoved,
    ModeChanged,
    NoProgress,
    Paused,
    Pausing,
    PlanEvent,
    RecoveryAttempted,
    Resumed,
    Started,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepReopened,
    StepRetrying,
    StepSkipped,
    StepStarted,
    StepUnfinished,
    Stopped,
    Stopping,
)
from khala.domain.plans.plan import Plan, PlanStep


def create(event: Created) -> Plan:
    """The plan after its first event."""
    return Plan(
        config=event.config,
        mode=event.mode,
        max_iterations=event.max_iterations,
        steps={step.id: PlanStep(planned=step) for step in event.steps},
        budget=event.config.budget,
        agent=event.config.agents[0],
    )


def fold(events: Iterable[PlanEvent]) -> Plan:
    """The plan after these events, of which the first one is `Created`."""
    following = iter(events)
    first = next(following)
    assert isinstance(first, Created)
    plan = create(first)
    for event in following:
        apply(plan, event)
    return plan


def apply(plan: Plan, event: PlanEvent) -> None:
    """Change the plan by the next event."""
    match event:
        case StepStarted():
            _start(plan, plan.steps[event.step_id], event)
        case (
            StepCompleted() | StepFailed() | StepRetrying() | StepUnfinished() | AgentRateLimited() | AgentUnavailable()
        ):
            _end_attempt(plan, plan.steps[event.step_id], event)
        case StepReopened() | StepSkipped() | StepCancelled():
            _change_step(plan.steps[event.step_id], event)
        case AgentSwitched() | AgentLimited() | RecoveryAttempted():
            _apply_to_agents(plan, event)
        case Created() | AllLimited():
            pass
        case Started() | Pausing() | Paused() | Resumed() | Stopping() | Stopped():
            _apply_to_status(plan, event)
        case BudgetChanged():
            plan.budget = event.budget
        case ModeChanged():
            plan.mode = event.mode
        case IterationsAdded():
            plan.max_iterations += event.count
        case IterationsRemoved():
            plan.max_iterations -= event.count
        case NoProgress():
            plan.fruitless = 0
        case Edited():
            _edit(plan, event)
        case _:
            assert_never(event)


def _apply_to_status(plan: Plan, event: Started | Pausing | Paused | Resumed | Stopping | Stopped) -> None:
    match event:
        case Started():
            plan.status = "running"
        case Pausing():
            plan.status, plan.pause_reason = "pausing", event.reason
        case Paused():
            plan.status, plan.pause_reason = "paused", event.reason
        case Resumed():
            plan.status, plan.pause_reason = "running", None
            plan.limited_agents.clear()
            for step in plan.steps.values():
                step.not_before = None
        case Stopping():
            plan.status, plan.pause_reason, plan.end = "stopping", None, event.reason
        case Stopped():
            plan.status, plan.pause_reason, plan.end = "stopped", None, event.reason
        case _:
            assert_never(event)


def _apply_to_agents(plan: Plan, event: AgentSwitched | AgentLimited | RecoveryAttempted) -> None:
    match event:
        case AgentSwitched():
            is_primary = event.agent == plan.config.agents[0]
            plan.agent, plan.agent_reason = event.agent, None if is_primary else event.reason
            plan.chosen_by_person, plan.probed_at = event.by_person, plan.iteration
            plan.limited_agents.discard(event.agent)
            for step in plan.steps.values():
                _forget_rate_limits(step)
        case AgentLimited():
            plan.limited_agents.add(event.agent)
        case RecoveryAttempted():
            plan.probed_at = plan.iteration
            if event.available:
                plan.limited_agents.discard(event.agent)
        case _:
            assert_never(event)


def _start(plan: Plan, step: PlanStep, event: StepStarted) -> None:
    step.status, step.attempts, step.agent = "running", event.attempt, event.agent
    step.started_at, step.not_before, step.error = event.at, None, None
    plan.iteration += 1


def _end_attempt(
    plan: Plan,
    step: PlanStep,
    event: StepCompleted | StepFailed | StepRetrying | StepUnfinished | AgentRateLimited | AgentUnavailable,
) -> None:
    plan.spent += event.spent
    plan.last_ended_at, step.started_at = event.at, None
    plan.fruitless = plan.fruitless + 1 if isinstance(event, StepUnfinished) else 0
    match event:
        case StepCompleted():
            step.status, step.summary = "completed", event.summary
        case StepFailed():
            step.status, step.error = "failed", event.error
        case StepRetrying():
            step.status, step.error, step.not_before = "open", event.error, event.not_before
            step.failures += 1
        case StepUnfinished():
            step.status = "open"
        case AgentRateLimited():
            step.status, step.not_before = "open", event.not_before
            step.rate_limits += 1
        case AgentUnavailable():
            step.status, step.error = "open", event.error
        case _:
            assert_never(event)


def _change_step(step: PlanStep, event: StepReopened | StepSkipped | StepCancelled) -> None:
    step.started_at = None
    match event:
        case StepReopened(interrupted=True):
            step.status = "open"
            step.interruptions += event.lost
        case StepReopened():
            step.status, step.not_before, step.by_person = "open", None, False
            step.failures = step.rate_limits = step.interruptions = 0
        case StepSkipped():
            step.status, step.by_person = "skipped", event.by_person
        case StepCancelled():
            step.status = "cancelled"
        case _:
            assert_never(event)


def _forget_rate_limits(step: PlanStep) -> None:
    """Let a step start at once that waits for an agent's rate limit."""
    if step.rate_limits:
        step.rate_limits, step.not_before = 0, None


def _edit(plan: Plan, event: Edited) -> None:
    for step_id in event.removed:
        del plan.steps[step_id]
    for changed in event.changed:
        plan.steps[changed.id].planned = changed
    for added in event.added:
        plan.steps[added.id] = PlanStep(planned=added)
