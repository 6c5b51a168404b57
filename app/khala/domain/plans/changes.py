"""Changes that a model requests of a plan, as commands. What is already so needs no command.

So the same request again does nothing, and a call whose outcome is unknown can be repeated.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from khala.domain import unknown_fields
from khala.domain.errors import Conflict, InvalidInput
from khala.domain.plans.commands import Edit, PlanCommand, RetryStep, SkipStep
from khala.domain.plans.named_agents import agents_of_changes, agents_of_steps
from khala.domain.plans.plan import Plan, PlannedStep

T = TypeVar("T")


class PlanChangeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The changes. `change` has the fields that differ, and the id; `order` the steps that come first."""

    title: str | None = None
    goal: str | None = None
    add: tuple[PlannedStep, ...] = ()
    remove: tuple[str, ...] = ()
    change: Sequence[Mapping[str, Any]] = ()
    order: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @property
    def agents(self) -> dict[str, str]:
        """The agents that steps are given, by their paths."""
        return agents_of_steps(self.add, "add") | agents_of_changes(self.change, "change")


def read_request(fields: Mapping[str, Any]) -> PlanChangeRequest:
    """The request with these fields. Raises `InvalidInput` with a path."""
    for name in ("add", "change"):
        for number, step in enumerate(fields.get(name, ())):
            for unknown in unknown_fields.find(step, PlannedStep):
                raise InvalidInput(unknown.message, path=f"{name}[{number}].{unknown.path}")
    request = _convert(fields, PlanChangeRequest, "")
    _check_once([*(step.id for step in request.add), *request.remove, *(step.get("id") for step in request.change)])
    _check_once([*request.retry, *request.skip])
    return request


def _check_once(named: Sequence[Any]) -> None:
    """Raise `InvalidInput` if a step is named twice, because then the order of the changes would decide."""
    for place, step_id in enumerate(named):
        if step_id in named[:place]:
            raise InvalidInput(f"Step {step_id!r} is named twice.")


def commands_for(plan: Plan, request: PlanChangeRequest) -> Iterator[PlanCommand]:
    """The commands that make the changes. The caller applies each before it takes the next one.

    Raises `InvalidInput` with a path, and `Conflict` for a step that is completed and would be done again.
    """
    edit = _edit(plan, request)
    if edit != Edit():
        yield edit
    for step_id in request.retry:
        status = plan.steps[step_id].status if step_id in plan.steps else None
        if status == "completed":
            raise Conflict(f"Step {step_id!r} is completed. Only a person can have it done again.")
        if status not in ("open", "running"):
            yield RetryStep(step_id=step_id)
    for step_id in request.skip:
        step = plan.steps.get(step_id)
        if step is None or step.status != "skipped" or not step.by_person:
            yield SkipStep(step_id=step_id)


def _edit(plan: Plan, request: PlanChangeRequest) -> Edit:
    planned = {step_id: step.planned for step_id, step in plan.steps.items()}
    changed = [_changed(planned, fields, f"change[{number}]") for number, fields in enumerate(request.change)]
    edit = Edit(
        title=request.title if request.title != plan.title else None,
        goal=request.goal if request.goal != plan.goal else None,
        add=tuple(step for step in request.add if planned.get(step.id) != step),
        remove=tuple(step_id for step_id in dict.fromkeys(request.remove) if step_id in planned),
        change=tuple(step for step in changed if planned[step.id] != step),
    )
    return msgspec.structs.replace(edit, order=_order(plan, request.order, edit))


def _changed(planned: Mapping[str, PlannedStep], fields: Mapping[str, Any], place: str) -> PlannedStep:
    step_id = fields.get("id")
    step = planned.get(step_id) if isinstance(step_id, str) else None
    if step is None:
        raise InvalidInput(f"The plan has no step {step_id!r}.", path=f"{place}.id")
    return _convert(msgspec.to_builtins(step) | fields, PlannedStep, place)


def _convert(fields: Mapping[str, Any], kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=(place + path.removesuffix("`")).removeprefix(".")) from error


def _order(plan: Plan, first: Sequence[str], edit: Edit) -> tuple[str, ...]:
    """The ids of all steps after the edit in their new order; empty if it is the one that they have without it."""
    without = [step_id for step_id in plan.steps if step_id not in edit.remove]
    without += [step.id for step in edit.add if step.id not in plan.steps]
    unknown = next((step_id for step_id in first if step_id not in without), None)
    if unknown is not None:
        raise InvalidInput(f"The plan has no step {unknown!r}.", path="order")
    order = list(dict.fromkeys((*first, *without)))
    return tuple(order) if order != without else ()
