"""The fold of a plan's events: the plan as it is after them."""

from collections.abc import Iterable
from typing import assert_never

from khala.domain.plans.events import (
    AgentLimited,
    AgentRateLimited,
    AgentSwitched,
    AgentUnavailable,
    AllLimited,
    AttemptCharged,
    BudgetChanged,
    ConfigChanged,
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
from khala.domain.plans.plan import Plan, PlanConfig, PlanStep

CANCELING = StepFailed | StepRetrying | StepReopened | StepSkipped | StepCancelled
"""The events that may give up a run that has not ended."""


def create(event: Created) -> Plan:
    """The plan after its first event."""
    plan = Plan(
        title=event.title,
        goal=event.goal,
        config=event.config,
        mode=event.mode,
        max_iterations=event.max_iterations,
        steps={step.id: PlanStep(planned=step) for step in event.steps},
        budget=event.config.budget,
        agent=event.config.agents[0],
        needs=event.needs,
    )
    for step_id in event.completed:
        plan.steps[step_id].status = "completed"
    return plan


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
    if isinstance(event, CANCELING) and event.canceled_run is not None:
        plan.canceled_runs[event.canceled_run] = event.step_id
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
        case AttemptCharged():
            _charge(plan, event)
        case BudgetChanged():
            plan.budget = event.budget
        case ConfigChanged():
            _configure(plan, event.config)
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


def _charge(plan: Plan, event: AttemptCharged) -> None:
    plan.spent += event.spent
    if event.run_id is not None:
        plan.canceled_runs.pop(event.run_id, None)


def _configure(plan: Plan, config: PlanConfig) -> None:
    plan.config, plan.budget = config, config.budget
    if plan.agent not in config.agents:
        plan.agent, plan.agent_reason, plan.chosen_by_person = config.agents[0], None, False


def _start(plan: Plan, step: PlanStep, event: StepStarted) -> None:
    step.status, step.attempts, step.agent, step.run_id = "running", event.attempt, event.agent, event.run_id
    step.started_at, step.not_before, step.error = event.at, None, None
    step.budget = event.budget
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
    plan.title = plan.title if event.title is None else event.title
    plan.goal = plan.goal if event.goal is None else event.goal
    for step_id in event.removed:
        del plan.steps[step_id]
    for changed in event.changed:
        plan.steps[changed.id].planned = changed
    for added in event.added:
        plan.steps[added.id] = PlanStep(planned=added)
    if event.order:
        plan.steps = {step_id: plan.steps[step_id] for step_id in event.order}
