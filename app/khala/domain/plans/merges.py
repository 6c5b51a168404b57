"""The order in which the work of steps side by side is merged. Pure."""

from datetime import datetime, timedelta

from khala.domain.agents import COMMAND_PREFIX
from khala.domain.plans.dependencies import ready_steps
from khala.domain.plans.plan import Plan


def steps_to_merge_first(plan: Plan, step_id: str) -> list[str]:
    """The steps under way whose work is to be merged before that of this one, which is done but for its merge.

    These are the commands' steps before it, in the order in which steps start. There are none if that would hold
    something up: a step that depends on this one or needs its place, or a budget of time.
    """
    step = plan.steps.get(step_id)
    if step is None or step.status != "running" or step.budget.seconds is not None:
        return []
    in_order = sorted(plan.steps, key=lambda other: plan.steps[other].planned.priority)
    before = [other for other in in_order[: in_order.index(step_id)] if _merges(plan, other)]
    return before if before and not _holds_up(plan, step_id) else []


def merge_deadline(plan: Plan, step_id: str, now: datetime) -> datetime:
    """The time until which a step may wait for its turn: the half of what is left until it takes too long."""
    step = plan.steps[step_id]
    end = (step.started_at or now) + timedelta(seconds=plan.config.step_timeout_seconds)
    return now + max(timedelta(), end - now) / 2


def _merges(plan: Plan, step_id: str) -> bool:
    step = plan.steps[step_id]
    return step.status == "running" and (step.agent or "").startswith(COMMAND_PREFIX)


def _holds_up(plan: Plan, step_id: str) -> bool:
    """Whether another step could start if this one were completed, and can't now."""
    if plan.status != "running":
        return False
    if ready_steps(plan) and len(plan.running_steps) >= plan.config.parallel:
        return True
    return any(
        step.status == "open"
        and step_id in step.planned.depends_on
        and all(other == step_id or plan.steps[other].satisfied for other in step.planned.depends_on)
        for step in plan.steps.values()
    )
