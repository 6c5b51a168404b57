"""Repeated commands: whether a plan already is as a command asks.

A client that has lost the response to a command repeats it, and is told the present state instead of a conflict.
"""

from khala.domain.plans.commands import CancelStep, Pause, PlanCommand, Resume, RetryStep, SkipStep, Start, Stop
from khala.domain.plans.plan import Plan, PlanStep


def is_satisfied(plan: Plan, command: PlanCommand) -> bool:
    """Whether nothing is left to do for this command."""
    match command:
        case Start() | Resume():
            return plan.status == "running"
        case Pause():
            return plan.status in ("pausing", "paused") and not (command.force and plan.running_steps)
        case Stop():
            return plan.status in ("stopping", "stopped")
        case RetryStep() | SkipStep() | CancelStep():
            step = plan.steps.get(command.step_id)
            return plan.status != "stopped" and step is not None and _is_changed(step, command)
        case _:
            return False


def _is_changed(step: PlanStep, command: RetryStep | SkipStep | CancelStep) -> bool:
    match command:
        case RetryStep():
            return not step.ended
        case SkipStep():
            return step.status == "skipped" and step.by_person
        case CancelStep():
            return step.status == "cancelled"
