"""Commands: what people may ask of a plan, and the events that follow. A command that does not fit is an error."""

from datetime import datetime
from typing import TypeAlias, assert_never

import msgspec

from khala.domain.errors import Conflict, InvalidInput, NotFound
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.events import (
    AgentSwitched,
    BudgetChanged,
    Edited,
    IterationsAdded,
    IterationsRemoved,
    ModeChanged,
    Pausing,
    PlanEvent,
    Resumed,
    Started,
    StepCancelled,
    StepReopened,
    StepSkipped,
    Stopping,
)
from khala.domain.plans.plan import MAX_ITERATIONS, Plan, PlanBudget, PlanMode, PlannedStep, PlanStep


class CommandStruct(msgspec.Struct, frozen=True, kw_only=True):
    """A command."""


class Start(CommandStruct, frozen=True, kw_only=True):
    """Start an idle plan."""


class Pause(CommandStruct, frozen=True, kw_only=True):
    """Pause a plan after the steps under way. With `force` these are canceled and opened again."""

    force: bool = False


class Resume(CommandStruct, frozen=True, kw_only=True):
    """Go on. This takes back a pause that has not happened yet, and approves the result of a step in mode `step`."""


class Stop(CommandStruct, frozen=True, kw_only=True):
    """End the plan for good. The steps under way are canceled."""


class ChangeMode(CommandStruct, frozen=True, kw_only=True):
    """Change how the plan goes on after a step."""

    mode: PlanMode


class ChangeBudget(CommandStruct, frozen=True, kw_only=True):
    """Change what the plan may spend."""

    budget: PlanBudget


class ChangeIterations(CommandStruct, frozen=True, kw_only=True):
    """Allow more iterations, or fewer if `by` is negative."""

    by: int


class SwitchAgent(CommandStruct, frozen=True, kw_only=True):
    """Let another of the plan's agents execute the steps that start from now on."""

    agent: str


class RetryStep(CommandStruct, frozen=True, kw_only=True):
    """Open a step again that has ended."""

    step_id: str


class SkipStep(CommandStruct, frozen=True, kw_only=True):
    """Leave a step out. The steps that depend on it may run."""

    step_id: str


class CancelStep(CommandStruct, frozen=True, kw_only=True):
    """End a step without a result. The steps that depend on it do not run."""

    step_id: str


class Edit(CommandStruct, frozen=True, kw_only=True):
    """Add, remove and change steps. `change` has whole steps, which replace those with the same ids."""

    add: tuple[PlannedStep, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[PlannedStep, ...] = ()


PlanCommand: TypeAlias = (
    Start
    | Pause
    | Resume
    | Stop
    | ChangeMode
    | ChangeBudget
    | ChangeIterations
    | SwitchAgent
    | RetryStep
    | SkipStep
    | CancelStep
    | Edit
)


def decide(plan: Plan, command: PlanCommand, now: datetime) -> list[PlanEvent]:
    """The events that follow from a command. Raises `Conflict`, `InvalidInput` or `NotFound`, and nothing changes."""
    if plan.status == "stopped":
        raise Conflict("The plan has stopped.")
    match command:
        case Start() | Pause() | Resume() | Stop():
            return _change_status(plan, command, now)
        case RetryStep() | SkipStep() | CancelStep():
            return [_change_step(_find(plan, command.step_id), command, now)]
        case ChangeMode():
            return [ModeChanged(at=now, mode=command.mode)] if command.mode != plan.mode else []
        case ChangeBudget():
            return [BudgetChanged(at=now, budget=command.budget)]
        case ChangeIterations():
            return _change_iterations(plan, command.by, now)
        case SwitchAgent():
            if command.agent not in plan.config.agents:
                raise InvalidInput(f"The plan has no agent {command.agent!r}. It has: {', '.join(plan.config.agents)}.")
            return [AgentSwitched(at=now, agent=command.agent, reason="requested", by_person=True)]
        case Edit():
            return _edit(plan, command, now)
        case _:
            assert_never(command)


def _change_status(plan: Plan, command: Start | Pause | Resume | Stop, now: datetime) -> list[PlanEvent]:
    match command:
        case Start() if plan.status == "idle":
            return [Started(at=now)]
        case Pause() if plan.status == "running":
            return [Pausing(at=now, reason="requested"), *(_interrupt_steps(plan, now) if command.force else [])]
        case Pause(force=True) if plan.status == "pausing":
            return _interrupt_steps(plan, now)
        case Resume() if plan.status in ("pausing", "paused"):
            return [Resumed(at=now)]
        case Stop() if plan.status != "stopping":
            return [Stopping(at=now, reason="interrupted"), *_interrupt_steps(plan, now)]
        case _:
            raise Conflict(f"The plan is {plan.status}. It can't {type(command).__name__.lower()} now.")


def _interrupt_steps(plan: Plan, now: datetime) -> list[PlanEvent]:
    return [StepReopened(at=now, step_id=step_id, interrupted=True) for step_id in plan.running_steps]


def _change_step(step: PlanStep, command: RetryStep | SkipStep | CancelStep, now: datetime) -> PlanEvent:
    match command:
        case RetryStep() if step.ended:
            return StepReopened(at=now, step_id=command.step_id)
        case SkipStep() if not step.satisfied and step.status != "cancelled":
            return StepSkipped(at=now, step_id=command.step_id, by_person=True)
        case CancelStep() if not step.ended:
            return StepCancelled(at=now, step_id=command.step_id)
        case _:
            raise Conflict(f"The step is {step.status}.")


def _change_iterations(plan: Plan, by: int, now: datetime) -> list[PlanEvent]:
    allowed = plan.max_iterations + by
    if not max(1, plan.iteration) <= allowed <= MAX_ITERATIONS:
        raise InvalidInput(f"A plan has 1 to {MAX_ITERATIONS:,} iterations, and this one has begun {plan.iteration}.")
    if by > 0:
        return [IterationsAdded(at=now, count=by)]
    return [IterationsRemoved(at=now, count=-by)] if by else []


def _edit(plan: Plan, edit: Edit, now: datetime) -> list[PlanEvent]:
    for step_id in (*edit.remove, *(step.id for step in edit.change)):
        if _find(plan, step_id).status in ("running", "completed"):
            raise Conflict(f"Step {step_id!r} is {plan.steps[step_id].status}, and can't be changed.")
    changed = {step.id: step for step in edit.change}
    kept = [changed.get(step_id, step.planned) for step_id, step in plan.steps.items() if step_id not in edit.remove]
    check_steps([*kept, *edit.add])
    return [Edited(at=now, added=edit.add, removed=edit.remove, changed=edit.change)]


def _find(plan: Plan, step_id: str) -> PlanStep:
    step = plan.steps.get(step_id)
    if step is None:
        raise NotFound(f"The plan has no step {step_id!r}.")
    return step
