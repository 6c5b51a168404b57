"""Commands: what people may ask of a plan, and the events that follow. A command that does not fit is an error."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeAlias, assert_never

import msgspec

from khala.domain.errors import Conflict, InvalidInput, NotFound
from khala.domain.plans.attempts import interrupt_steps
from khala.domain.plans.config_changes import PlanConfigChanges
from khala.domain.plans.dependencies import check_steps, name_steps
from khala.domain.plans.events import (
    AgentSwitched,
    BudgetChanged,
    ConfigChanged,
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

ATTRIBUTED = Edited | StepSkipped | StepCancelled
"""The events by which a person may leave out the last step of a plan."""
STOPPED = "The plan has stopped for good. To go on with its steps, export it and create a plan from the document."


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


class ChangeConfig(CommandStruct, frozen=True, kw_only=True):
    """Change the rules of the plan."""

    changes: PlanConfigChanges


class ChangeIterations(CommandStruct, frozen=True, kw_only=True):
    """Allow more iterations, or fewer if `by` is negative.

    `base` is the number that `by` is added to. If the plan already has the sum, nothing changes.
    """

    by: int
    base: int | None = None


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
    """Change the title, the goal and the steps. None: as before.

    `change` has whole steps, which replace those with the same ids. `order` has the ids of all steps after the edit.
    """

    title: str | None = None
    goal: str | None = None
    add: tuple[PlannedStep, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[PlannedStep, ...] = ()
    order: tuple[str, ...] = ()


PlanCommand: TypeAlias = (
    Start
    | Pause
    | Resume
    | Stop
    | ChangeMode
    | ChangeBudget
    | ChangeConfig
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
        raise Conflict(STOPPED)
    match command:
        case Start() | Pause() | Resume() | Stop():
            return _change_status(plan, command, now)
        case RetryStep() | SkipStep() | CancelStep():
            return [_change_step(_find(plan, command.step_id), command, now)]
        case ChangeMode():
            return [ModeChanged(at=now, mode=command.mode)] if command.mode != plan.mode else []
        case ChangeBudget():
            return [BudgetChanged(at=now, budget=command.budget)] if command.budget != plan.budget else []
        case ChangeConfig():
            config = msgspec.structs.replace(plan.config, budget=plan.budget)
            changed = command.changes.apply(config)
            return [ConfigChanged(at=now, config=changed)] if changed != config else []
        case ChangeIterations():
            return _change_iterations(plan, command, now)
        case SwitchAgent():
            return _switch_agent(plan, command.agent, now)
        case Edit():
            return _edit(plan, command, now)
        case _:
            assert_never(command)


def pause_for_review(plan: Plan, events: Iterable[PlanEvent], now: datetime) -> list[PlanEvent]:
    """The events that follow if somebody else than the plan's person has caused these.

    A change of the steps or rules pauses a running plan: its steps act for that person, who has not seen the change.
    """
    if plan.status != "running" or not any(isinstance(event, Edited | ConfigChanged) for event in events):
        return []
    return [Pausing(at=now, reason="requested")]


def attribute(events: Iterable[PlanEvent], *, by_requester: bool) -> list[PlanEvent]:
    """The events of a command, with whether the person for whom the plan acts has given it."""
    return [
        msgspec.structs.replace(event, by_requester=by_requester) if isinstance(event, ATTRIBUTED) else event
        for event in events
    ]


def _change_status(plan: Plan, command: Start | Pause | Resume | Stop, now: datetime) -> list[PlanEvent]:
    match command:
        case Start() if plan.status == "idle":
            return [Started(at=now)]
        case Pause() if plan.status == "running":
            return [Pausing(at=now, reason="requested"), *(interrupt_steps(plan, now) if command.force else [])]
        case Pause(force=True) if plan.status == "pausing":
            return [*interrupt_steps(plan, now)]
        case Resume() if plan.status in ("pausing", "paused"):
            return [Resumed(at=now)]
        case Stop() if plan.status != "stopping":
            return [Stopping(at=now, reason="interrupted"), *interrupt_steps(plan, now)]
        case _:
            raise Conflict(_refusal(plan, command))


def _refusal(plan: Plan, command: Start | Pause | Resume | Stop) -> str:
    """Why the command does not fit the plan's status, and which one does."""
    match command:
        case Start() if plan.status in ("pausing", "paused"):
            return f"The plan was started before, and is {plan.status}. Resume it."
        case Resume() if plan.status == "idle":
            return "The plan was not started yet. Start it."
        case _:
            name = {Start: "started", Pause: "paused", Resume: "resumed", Stop: "stopped"}[type(command)]
            return f"The plan is {plan.status}, and can't be {name} now."


def _change_step(step: PlanStep, command: RetryStep | SkipStep | CancelStep, now: datetime) -> PlanEvent:
    canceled_run = step.run_id if step.status == "running" else None
    match command:
        case RetryStep() if step.ended:
            return StepReopened(at=now, step_id=command.step_id)
        case SkipStep() if not step.satisfied and step.status != "cancelled":
            return StepSkipped(at=now, step_id=command.step_id, by_person=True, canceled_run=canceled_run)
        case CancelStep() if not step.ended:
            return StepCancelled(at=now, step_id=command.step_id, canceled_run=canceled_run)
        case _:
            raise Conflict(f"The step is {step.status}.")


def _switch_agent(plan: Plan, agent: str, now: datetime) -> list[PlanEvent]:
    if agent not in plan.config.agents:
        raise InvalidInput(f"The plan has no agent {agent!r}. It has: {', '.join(plan.config.agents)}.", path="agent")
    if agent == plan.agent and plan.chosen_by_person and agent not in plan.limited_agents:
        return []
    return [AgentSwitched(at=now, agent=agent, reason="requested", by_person=True)]


def _change_iterations(plan: Plan, command: ChangeIterations, now: datetime) -> list[PlanEvent]:
    by, base = command.by, command.base
    if base is not None and plan.max_iterations == base + by:
        return []
    if base is not None and plan.max_iterations != base:
        raise Conflict(f"The plan has {plan.max_iterations:,} iterations, not {base:,}.")
    allowed = plan.max_iterations + by
    if not max(1, plan.iteration) <= allowed <= MAX_ITERATIONS:
        raise InvalidInput(
            f"A plan has 1 to {MAX_ITERATIONS:,} iterations, and this one has begun {plan.iteration}.", path="by"
        )
    if by > 0:
        return [IterationsAdded(at=now, count=by)]
    return [IterationsRemoved(at=now, count=-by)] if by else []


def _edit(plan: Plan, edit: Edit, now: datetime) -> list[PlanEvent]:
    if edit in (Edit(), Edit(title=plan.title), Edit(goal=plan.goal), Edit(title=plan.title, goal=plan.goal)):
        return []
    for step_id in (*edit.remove, *(step.id for step in edit.change)):
        if _find(plan, step_id).status in ("running", "completed"):
            raise Conflict(f"Step {step_id!r} is {plan.steps[step_id].status}, and can't be changed.")
    _check_once([*edit.remove, *(step.id for step in edit.change)])
    changed = {step.id: step for step in edit.change}
    places = {step.id: f"change[{number}]" for number, step in enumerate(edit.change)}
    kept = {step_id: changed.get(step_id, step.planned) for step_id, step in plan.steps.items()}
    for step_id in edit.remove:
        kept.pop(step_id, None)
    _check_removed(edit, kept.values())
    added = [f"add[{number}]" for number in range(len(edit.add))]
    check_steps([*kept.values(), *edit.add], [*(places.get(step_id, "") for step_id in kept), *added])
    if edit.order and sorted(edit.order) != sorted([*kept, *(step.id for step in edit.add)]):
        raise InvalidInput("The order must have the id of each step once.", path="order")
    return [
        Edited(
            at=now,
            title=edit.title,
            goal=edit.goal,
            added=edit.add,
            removed=edit.remove,
            changed=edit.change,
            order=edit.order,
        )
    ]


def _check_removed(edit: Edit, kept: Iterable[PlannedStep]) -> None:
    paths = {step_id: f"remove[{number}]" for number, step_id in enumerate(edit.remove)}
    for added in edit.add:
        paths.pop(added.id, None)
    for step in kept:
        for dependency in paths.keys() & step.depends_on:
            message = f"Step {step.id!r} depends on {dependency!r}, which is to be removed."
            raise InvalidInput(message, path=paths[dependency])


def _check_once(step_ids: Sequence[str]) -> None:
    repeated = next((step_id for step_id, count in Counter(step_ids).items() if count > 1), None)
    if repeated is not None:
        raise InvalidInput(f"Step {repeated!r} is removed or changed twice.", path="change")


def _find(plan: Plan, step_id: str) -> PlanStep:
    step = plan.steps.get(step_id)
    if step is None:
        raise NotFound(f"The plan has no step {step_id!r}. It has: {name_steps(list(plan.steps))}.")
    return step
