"""Plans in words, for models: an overview whose size is bounded, and one step in full."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from khala.domain.plans.dependencies import blocked_steps, count_steps
from khala.domain.plans.plan import Plan, PlanStep, StepStatus

MAX_OVERVIEW_BYTES = 2_400
"""Bytes of an overview, so that it is part of a call's result."""
MAX_LINE_CHARACTERS = 160
MAX_GOAL_CHARACTERS = 300
MAX_STEP_BYTES = 24_000
_MARKS: dict[StepStatus, str] = {
    "open": " ", "running": ">", "completed": "x", "failed": "!", "skipped": "-", "cancelled": "-",
}  # fmt: skip
_RANKS: dict[StepStatus, int] = {"running": 0, "failed": 1, "open": 2, "skipped": 3, "cancelled": 3, "completed": 4}
"""The order in which steps are named where not all fit."""


def describe_plan(plan: Plan) -> str:
    """The plan's state and its steps, in at most `MAX_OVERVIEW_BYTES`. Of a long plan, the steps that matter now."""
    head = f"{_cut(plan.title, MAX_LINE_CHARACTERS)}: {_state(plan)}\nGoal: {_cut(plan.goal, MAX_GOAL_CHARACTERS)}\n"
    blocked = blocked_steps(plan)
    lines = {step_id: _line(step, blocked) for step_id, step in plan.steps.items()}
    shown = _fitting(plan, lines, MAX_OVERVIEW_BYTES - len(head.encode()))
    return head + "\n".join(shown)


def describe_step(plan: Plan, step_id: str) -> str:
    """Everything about one step, in at most `MAX_STEP_BYTES`."""
    step = plan.steps[step_id]
    planned = step.planned
    depends_on = ", ".join(planned.depends_on) or "none"
    criteria = "\n".join(f"- {criterion}" for criterion in planned.acceptance)
    parts = [
        _line(step, blocked_steps(plan)),
        f"Attempts: {step.attempts}. Priority: {planned.priority}. Depends on: {depends_on}.",
        planned.instructions,
        f"Acceptance:\n{criteria}" if criteria else "",
        f"Summary: {step.summary}" if step.summary else "",
        f"Error: {step.error}" if step.error else "",
    ]
    text = "\n\n".join(filter(None, parts))
    return text.encode()[:MAX_STEP_BYTES].decode(errors="ignore")


def _state(plan: Plan) -> str:
    """Such as `paused (budget), mode all; 2 of 9 steps completed, 1 failed`."""
    reason = plan.pause_reason or plan.end
    counts = count_steps(plan)
    completed = f"{counts.completed} of {len(plan.steps)} steps completed"
    named = [("running", counts.running), ("failed", counts.failed), ("blocked", counts.blocked)]
    named += [("skipped", counts.skipped), ("cancelled", counts.cancelled)]
    others = [f"{count} {name}" for name, count in named if count]
    return f"{plan.status}{f' ({reason})' if reason else ''}, mode {plan.mode}; {', '.join([completed, *others])}"


def _line(step: PlanStep, blocked: AbstractSet[str]) -> str:
    """Such as `[!] US-001 Add the table (attempts: 2): no such column`."""
    planned = step.planned
    state = "blocked" if planned.id in blocked else "" if step.status in ("open", "completed") else step.status
    notes: list[str] = [state] if state else []
    if step.attempts > 1:
        notes.append(f"attempts: {step.attempts}")
    if step.status == "open" and planned.depends_on:
        notes.append(f"after {', '.join(planned.depends_on)}")
    result = step.error if step.status == "failed" else step.summary
    text = f"{planned.id} {planned.title}"
    if notes:
        text += f" ({'; '.join(notes)})"
    if result:
        text += f": {result}"
    return f"[{_MARKS[step.status]}] {_cut(text, MAX_LINE_CHARACTERS)}"


def _fitting(plan: Plan, lines: dict[str, str], room: int) -> Sequence[str]:
    """The lines that fit, in the plan's order, and how many are left out."""
    if sum(len(line.encode()) + 1 for line in lines.values()) <= room:
        return list(lines.values())
    room -= len(_left_out(len(lines)).encode())
    chosen: set[str] = set()
    for step_id in sorted(lines, key=lambda name: _RANKS[plan.steps[name].status]):
        room -= len(lines[step_id].encode()) + 1
        if room < 0:
            break
        chosen.add(step_id)
    return [*(line for step_id, line in lines.items() if step_id in chosen), _left_out(len(lines) - len(chosen))]


def _left_out(count: int) -> str:
    return f"… and {count:,} more steps."


def _cut(text: str, max_characters: int) -> str:
    """The text on one line, with an ellipsis if it is longer."""
    text = " ".join(text[: 4 * max_characters].split())
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
