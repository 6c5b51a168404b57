"""Tasks: the text that tells an agent which step to do. Pure."""

from khala.domain.chat import StepCheckout
from khala.domain.plans.plan import MAX_SUMMARY_CHARACTERS, Plan, PlanStep

MAX_TASK_CHARACTERS = 60_000
MAX_SUMMARIES = 50
"""Finished steps whose summaries a task has, the newest ones."""
HOW_TO_END = (
    "When the step is complete and you have checked the acceptance criteria, call the tool complete_step with a summary"
    " for the people and agents who do the next steps. If you have no such tool, write the line"
    " <promise>COMPLETE</promise> by itself as the last line of your answer. Do neither if the step is not complete."
)


def task_of(plan: Plan, step: PlanStep) -> str:
    """The task of a step: the plan's goal, summaries of the steps before it, and the step itself."""
    sections = [
        f"# Plan: {plan.title}",
        plan.goal,
        _finished_steps(plan),
        f"# Your step: {step.planned.title}",
        step.planned.instructions,
        _list("Acceptance criteria:", step.planned.acceptance),
        f"The last attempt failed: {step.error}" if step.error else "",
        HOW_TO_END,
    ]
    return "\n\n".join(section for section in sections if section)[:MAX_TASK_CHARACTERS]


def checkout_of(plan: Plan, step: PlanStep) -> StepCheckout | None:
    """How the work of the attempt that starts is committed; None if the plan does not ask for it."""
    git = plan.config.git
    if git is None:
        return None
    return StepCheckout(
        title=step.planned.title,
        worktree=plan.config.parallel > 1 and plan.mode != "step",
        allow_dirty=git.allow_dirty,
        resumes=step.summary is None,
    )


def _finished_steps(plan: Plan) -> str:
    finished = [step for step in plan.steps.values() if step.status == "completed"][-MAX_SUMMARIES:]
    room = MAX_TASK_CHARACTERS // 2 // max(1, len(finished))
    lines = [f"{step.planned.title}: {_short(step.summary or 'done', room)}" for step in finished]
    return _list("Steps that are complete:", lines)


def _short(text: str, room: int) -> str:
    return " ".join(text.split())[: min(room, MAX_SUMMARY_CHARACTERS)]


def _list(heading: str, items: "list[str] | tuple[str, ...]") -> str:
    return "\n".join([heading, *(f"- {item}" for item in items)]) if items else ""
