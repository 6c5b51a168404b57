"""The order of steps: what depends on what, and what may start next."""

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from khala.domain.errors import InvalidInput
from khala.domain.plans.plan import MAX_STEPS, Counts, Plan, PlannedStep, PlanStep
from khala.domain.plans.step_limits import MAX_ID_CHARACTERS, check_step

MAX_DEPENDENCIES = 10_000
"""Dependencies of all steps of a plan together: they are followed at each event."""
MAX_NAMED_STEPS = 10
"""Steps that the error of an unknown dependency names."""
MAX_SHOWN_STEPS = 40
"""Steps of a cycle that its error names."""


def check_steps(
    steps: Sequence[PlannedStep], places: Sequence[str] | None = None, *, completed: Sequence[str] = ()
) -> None:
    """Raise `InvalidInput` for a step over its limits, an id that occurs twice, an unknown dependency, or a cycle.

    `places` are the paths of the steps in the document or request; `steps[0]` and so on without them. `completed` are
    the ids of steps that are done at creation.
    """
    if len(steps) > MAX_STEPS:
        raise InvalidInput(f"A plan has at most {MAX_STEPS:,} steps.", path="steps")
    if sum(len(step.depends_on) for step in steps) > MAX_DEPENDENCIES:
        raise InvalidInput(f"The steps of a plan have at most {MAX_DEPENDENCIES:,} dependencies.", path="steps")
    if places is None:
        places = [f"steps[{number}]" for number in range(len(steps))]
    by_id: dict[str, str] = {}
    for step, place in zip(steps, places, strict=True):
        check_step(step, place)
        if step.id in by_id:
            raise InvalidInput(f"There are two steps with the id {step.id!r}.", path=place)
        by_id[step.id] = place
    for step_id in completed:
        if step_id not in by_id:
            raise InvalidInput(f"There is no step {step_id[:MAX_ID_CHARACTERS]!r}.", path="completed")
    for step in steps:
        for dependency in step.depends_on:
            if dependency not in by_id:
                raise InvalidInput(_unknown_step(step.id, dependency, list(by_id)), path=by_id[step.id])
    try:
        TopologicalSorter({step.id: step.depends_on for step in steps}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        place = next((by_id[step_id] for step_id in reversed(cycle) if by_id[step_id]), "")
        raise InvalidInput(f"These steps depend on each other: {_show(cycle)}.", path=place) from error


def _show(cycle: Sequence[str]) -> str:
    """A cycle for people. The middle of a long one is left out."""
    shown = list(reversed(cycle))
    if len(shown) > MAX_SHOWN_STEPS:
        shown[MAX_SHOWN_STEPS // 2 : -MAX_SHOWN_STEPS // 2] = [f"… ({len(cycle) - 1:,} steps) …"]
    return " → ".join(shown)


def blocked_steps(plan: Plan) -> set[str]:
    """The open steps that can't run, because a step before them ended without completing."""
    dependents: dict[str, list[str]] = {}
    for step_id, step in plan.steps.items():
        for dependency in step.planned.depends_on:
            dependents.setdefault(dependency, []).append(step_id)
    blocked: set[str] = set()
    waiting = [step_id for step_id, step in plan.steps.items() if step.ended and not step.satisfied]
    while waiting:
        for dependent in dependents.get(waiting.pop(), ()):
            if dependent not in blocked and plan.steps[dependent].status == "open":
                blocked.add(dependent)
                waiting.append(dependent)
    return blocked


def ready_steps(plan: Plan) -> list[PlanStep]:
    """The open steps whose dependencies are done, in the order in which they start."""
    ready = [step for step in plan.steps.values() if step.status == "open" and _dependencies_are_done(plan, step)]
    return sorted(ready, key=lambda step: step.planned.priority)


def count_steps(plan: Plan) -> Counts:
    """The number of steps of each status."""
    blocked = blocked_steps(plan)
    return Counts(**Counter("blocked" if step_id in blocked else step.status for step_id, step in plan.steps.items()))


def _dependencies_are_done(plan: Plan, step: PlanStep) -> bool:
    return all(plan.steps[dependency].satisfied for dependency in step.planned.depends_on)


def name_steps(known: Sequence[str]) -> str:
    """The ids of these steps for people, the first of many."""
    return ", ".join(map(repr, known[:MAX_NAMED_STEPS])) + (", …" if len(known) > MAX_NAMED_STEPS else "")


def _unknown_step(step_id: str, dependency: str, known: Sequence[str]) -> str:
    missing = dependency[:MAX_ID_CHARACTERS]
    return f"Step {step_id!r} depends on {missing!r}, which does not exist. There are: {name_steps(known)}."
