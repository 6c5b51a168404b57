"""The order of steps: what depends on what, and what may start next."""

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from khala.domain.errors import InvalidInput
from khala.domain.plans.plan import MAX_STEPS, Counts, Plan, PlannedStep, PlanStep


def check_steps(steps: Sequence[PlannedStep]) -> None:
    """Raise `InvalidInput` for an id that occurs twice, a dependency that does not exist, or a cycle, named whole."""
    if len(steps) > MAX_STEPS:
        raise InvalidInput(f"A plan has at most {MAX_STEPS:,} steps.")
    by_id: dict[str, PlannedStep] = {}
    for step in steps:
        if by_id.setdefault(step.id, step) is not step:
            raise InvalidInput(f"There are two steps with the id {step.id!r}.")
    for step in steps:
        for dependency in step.depends_on:
            if dependency not in by_id:
                raise InvalidInput(f"Step {step.id!r} depends on {dependency!r}, which does not exist.")
    try:
        TopologicalSorter({step.id: step.depends_on for step in steps}).prepare()
    except CycleError as error:
        path = " → ".join(reversed(error.args[1]))
        raise InvalidInput(f"These steps depend on each other: {path}.") from error


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
