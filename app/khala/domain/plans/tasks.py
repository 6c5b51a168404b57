"""Tasks: the text that tells an agent which step to do. Pure."""

from khala.domain.chat import StepCheckout
from khala.domain.plans.plan import MAX_SUMMARY_CHARACTERS, MAX_TITLE_CHARACTERS, Plan, PlanStep

MAX_TASK_CHARACTERS = 100_000
MAX_SUMMARIES_CHARACTERS = 30_000
"""The most that the summaries of finished steps have together. Less if the step itself needs the room."""
MAX_SUMMARIES = 50
"""Finished steps whose summaries a task has, the newest ones."""
MAX_LINE_CHARACTERS = MAX_TITLE_CHARACTERS + MAX_SUMMARY_CHARACTERS
FINISHED = "Steps that are complete:"
HOW_TO_END = (
    "When the step is complete and you have checked the acceptance criteria, call the tool complete_step with a summary"
    " for the people and agents who do the next steps. If you have no such tool, write the line"
    " <promise>COMPLETE</promise> by itself as the last line of your answer. Do neither if the step is not complete."
)


def task_of(plan: Plan, step: PlanStep) -> str:
    """The task of a step: the plan's goal, summaries of the steps before it, and the step itself.

    Only summaries are shortened. The limits of the other texts leave room for all of them.
    """
    before = [f"# Plan: {plan.title}", plan.goal]
    after = [
        f"# Your step: {step.planned.title}",
        step.planned.instructions,
        _list("Acceptance criteria:", step.planned.acceptance),
        f"The last attempt failed: {step.error}" if step.error else "",
        HOW_TO_END,
    ]
    room = MAX_TASK_CHARACTERS - len(_joined([*before, *after]))
    return _joined([*before, _finished_steps(plan, min(room, MAX_SUMMARIES_CHARACTERS)), *after])


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


def _finished_steps(plan: Plan, room: int) -> str:
    finished = [step for step in plan.steps.values() if step.status == "completed"][-MAX_SUMMARIES:]
    most = min(MAX_LINE_CHARACTERS, (room - len(FINISHED) - 4) // max(1, len(finished)))
    return _list(FINISHED, [_line(step, most) for step in finished])


def _line(step: PlanStep, most: int) -> str:
    """The title of a step and its summary, on one line of `most` characters with its mark."""
    return " ".join(f"{step.planned.title}: {step.summary or 'done'}".split())[: most - len("- \n")]


def _joined(sections: list[str]) -> str:
    return "\n\n".join(section for section in sections if section)


def _list(heading: str, items: "list[str] | tuple[str, ...]") -> str:
    return "\n".join([heading, *(f"- {item}" for item in items)]) if items else ""
