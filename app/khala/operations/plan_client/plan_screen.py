"""Draws a plan in a rectangle of a terminal: control line, steps, and the output of the steps under way."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from rich.cells import chop_cells
from rich.text import Text

from khala.domain.plans.plan import MAX_TITLE_CHARACTERS, Counts
from khala.domain.plans.step_limits import MAX_ID_CHARACTERS
from khala.domain.plans.views import PlanEntry, StepDetail
from khala.operations.plan_client.event_lines import reason_of
from khala.operations.plan_client.text import one_line
from khala.operations.plan_client.view_state import PlanViewState

MAX_OUTPUT_LINES = 12
"""Lines of output that are shown of one step."""
MIN_STEP_LINES = 3
MAX_DETAIL_CHARACTERS = 300
MARKS = {
    "open": ("○", "-", "dim"),
    "blocked": ("◌", "#", "yellow"),
    "running": ("▶", ">", "cyan"),
    "completed": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "skipped": ("↷", "~", "yellow"),
    "cancelled": ("⊘", "/", "yellow"),
}
"""The mark of each status in Unicode and in ASCII, and its style."""
STATUS_STYLES = {"running": "green", "stopped": "bold", "idle": "dim"}
FINISHED = ("completed", "skipped", "cancelled", "failed")


class ScreenSize(msgspec.Struct, frozen=True):
    """The columns and lines of a terminal. `ascii_only`: it can't show other characters."""

    columns: int
    lines: int
    ascii_only: bool = False


def draw(state: PlanViewState, size: ScreenSize, now: datetime, notice: str = "") -> Text:
    """The plan in at most `size.lines` lines, none of them wider than `size.columns`."""
    head = [*_control_lines(state.plan, size.columns), *_notice_lines(notice, size)][: max(1, size.lines - 1)]
    room = max(0, size.lines - len(head))
    outputs = _output_room(state, room)
    steps = _step_lines(state, size, room - sum(outputs), now)
    tails = [
        line
        for step, most in zip(state.running, outputs, strict=False)
        for line in _tail(state, step, most, size.columns)
    ]
    lines = [*head, *steps, *tails][: size.lines]
    for line in lines:
        if size.ascii_only:
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.truncate(size.columns, overflow="crop" if size.ascii_only else "ellipsis")
    return Text("\n").join(lines)


def progress(counts: Counts) -> str:
    """`3 of 5 done`: the steps that are completed, and all."""
    return f"{counts.completed} of {sum(msgspec.structs.astuple(counts))} done"


def problems(counts: Counts) -> list[tuple[str, str]]:
    """The statuses of steps that are not as a person wants them, and `1 failed` for each."""
    named = [(name, getattr(counts, name)) for name in ("failed", "blocked", "skipped", "cancelled")]
    return [(name, f"{count} {name}") for name, count in named if count]


def _control_lines(plan: PlanEntry, columns: int) -> Iterator[Text]:
    yield Text(one_line(plan.title, MAX_TITLE_CHARACTERS), style="bold")
    spent = plan.spent
    words = [
        Text(plan.status, style=STATUS_STYLES.get(plan.status, "yellow")),
        Text(progress(plan.counts)),
        *(Text(words, style=MARKS[name][2]) for name, words in problems(plan.counts)),
        Text(one_line(f"agent {plan.agent}", MAX_TITLE_CHARACTERS)),
        Text(f"tries: {plan.iteration} of {plan.max_iterations}"),
        Text(f"${spent.usd:.4f}" + ("" if plan.budget.usd is None else f" of ${plan.budget.usd:.2f}")),
        Text(f"{spent.tokens:,} tokens"),
    ]
    yield from _flow(words, columns)
    if plan.agent_reason:
        yield Text(one_line(f"fallback agent {plan.agent}: {plan.agent_reason}", MAX_DETAIL_CHARACTERS), style="yellow")
    if reason := reason_of(plan):
        yield Text(f"{plan.status}: {reason}", style="bold")


def _flow(words: Sequence[Text], columns: int) -> Iterator[Text]:
    """The words with two spaces between them, on as many lines as they need."""
    line = Text()
    for word in words:
        if line.cell_len and line.cell_len + 2 + word.cell_len > columns:
            yield line
            line = Text()
        line = Text("  ").join([line, word]) if line.cell_len else word.copy()
    yield line


def _notice_lines(notice: str, size: ScreenSize) -> list[Text]:
    """The notice, on as many lines as it needs."""
    words = [Text(word) for word in one_line(notice, 600).split()]
    lines: list[Text] = []
    for word in words:
        if lines and lines[-1].cell_len + 1 + word.cell_len <= size.columns:
            lines[-1] = Text(" ").join([lines[-1], word])
        else:
            lines.append(word)
    for line in lines:
        line.stylize("yellow")
    return lines


def _output_room(state: PlanViewState, room: int) -> list[int]:
    """How many lines each running step gets for its heading and its output."""
    free = max(0, room - min(len(state.steps), max(MIN_STEP_LINES, room // 2)))
    running = len(state.running)
    return [min(MAX_OUTPUT_LINES + 1, free // running)] * running if running and free // running > 1 else []


def _step_lines(state: PlanViewState, size: ScreenSize, room: int, now: datetime) -> list[Text]:
    """The steps, or those around the first one that has not ended."""
    steps = list(state.steps.values())
    if room <= 0:
        return []
    if len(steps) <= room:
        return [_step_line(step, size, now) for step in steps]
    shown = max(1, room - 2)
    first = next((number for number, step in enumerate(steps) if step.status not in FINISHED), len(steps))
    start = max(0, min(first - shown // 3, len(steps) - shown))
    lines = [_step_line(step, size, now) for step in steps[start : start + shown]]
    before, after = start, len(steps) - start - shown
    above = [Text(f"  {before} steps before", style="dim")] if before else []
    below = [Text(f"  {after} steps after", style="dim")] if after else []
    return [*above, *lines, *below][:room]


def _step_line(step: StepDetail, size: ScreenSize, now: datetime) -> Text:
    status = "blocked" if step.blocked else step.status
    unicode_mark, ascii_mark, style = MARKS[status]
    line = Text(f"{ascii_mark if size.ascii_only else unicode_mark} ", style=style)
    title = one_line(step.planned.title, MAX_TITLE_CHARACTERS)
    line.append(f"{one_line(step.id, MAX_ID_CHARACTERS)} ", style="bold")
    line.append(title, style="dim" if status == "open" else "")
    if details := _step_details(step, status, now):
        line.append(
            f"  {one_line(details, MAX_DETAIL_CHARACTERS)}",
            style="red" if step.error and status != "completed" else "dim",
        )
    return line


def _step_details(step: StepDetail, status: str, now: datetime) -> str:
    """The status in words where the mark does not say all: time, error, summary, the next try."""
    match status:
        case "running":
            elapsed = "" if step.started_at is None else _duration((now - step.started_at).total_seconds())
            return f"try {step.attempts}  {elapsed}  {step.agent or ''}"
        case "completed":
            return step.summary or ""
        case "open" if step.not_before is not None and step.not_before > now:
            return f"again in {_duration((step.not_before - now).total_seconds())}  {step.error or ''}"
        case "open":
            return step.error or ""
        case _:
            return f"{status}  {step.error or ''}"


def _tail(state: PlanViewState, step: StepDetail, most: int, columns: int) -> list[Text]:
    """The end of the output of a running step, below a heading."""
    tail = None if step.run_id is None else state.outputs.get(step.run_id)
    kept = [] if tail is None else tail.last(most - 1)
    lines = [row for line in kept for row in chop_cells(line, columns) or [""]][1 - most :] if most > 1 else []
    heading = Text(f"-- {one_line(step.id, MAX_ID_CHARACTERS)}", style="cyan")
    return [heading, *(Text(line, style="dim") for line in lines)] if lines else []


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
