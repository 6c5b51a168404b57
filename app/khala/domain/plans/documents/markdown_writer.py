"""Writes plans as Markdown checklists, so that reading them gives the same plans."""

from collections.abc import Iterator

from khala.domain.plans.documents.plan_document import PlanDocument, clean_block, clean_line
from khala.domain.plans.documents.task_text import TaskText, read_label, read_task_text
from khala.domain.plans.plan import PlannedStep


def write_markdown(document: PlanDocument) -> str:
    """The document as a checklist.

    Titles, phases and criteria are on one line each. Text that Markdown could read in another way is in a block quote.
    """
    text = ""
    for section in _sections(document):
        is_tight = _is_short_item(section) and _is_short_item(text.rpartition("\n")[2])
        text += ("\n" if is_tight else "\n\n") + section
    return text.lstrip("\n") + "\n"


def _is_short_item(text: str) -> bool:
    return text.startswith("- ") and "\n" not in text


def _sections(document: PlanDocument) -> Iterator[str]:
    if title := clean_line(document.title):
        yield _heading("#", title)
    if goal := _text(document.goal):
        yield goal
    completed = set(document.completed)
    phase: str | None = None
    for step in document.steps:
        if step.phase != phase:
            phase = step.phase
            yield _heading("##", clean_line(phase or ""))
        yield _item(step, done=step.id in completed)


def _heading(marks: str, text: str) -> str:
    """An empty heading ends a phase. A text that ends in `#` needs marks at its end too."""
    return f"{marks} {text} {marks}" if text.endswith("#") else f"{marks} {text}".rstrip()


def _item(step: PlannedStep, *, done: bool) -> str:
    title = clean_line(step.title)
    named = f"{step.id}: {title}"
    has_plain_id = read_task_text(named) == TaskText(step.id, title, ())
    labels = [] if has_plain_id else [f"- Id: {step.id}"]
    labels += _labels(step)
    blocks = [text for text in (_text(step.instructions), "\n".join(labels)) if text]
    body = "".join("\n\n" + "\n".join(f"  {line}" if line else "" for line in block.split("\n")) for block in blocks)
    return f"- [{'x' if done else ' '}] {named if has_plain_id else title}{body}"


def _labels(step: PlannedStep) -> Iterator[str]:
    if step.depends_on:
        yield f"- Depends on: {', '.join(step.depends_on)}"
    if step.priority:
        yield f"- Priority: {step.priority}"
    if step.agent:
        yield f"- Agent: {clean_line(step.agent)}"
    if step.acceptance:
        yield "- Acceptance:"
    yield from (f"  - [ ] {clean_line(criterion)}" for criterion in step.acceptance)


def _text(text: str) -> str:
    """The text, as a block quote unless each of its lines can only be a paragraph's."""
    text = clean_block(text)
    if "\n\n\n" not in text and all(_is_plain(line) for line in text.split("\n")):
        return text
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def _is_plain(line: str) -> bool:
    return not line or (line[0].isalpha() and line == line.strip() and read_label(line) is None)
