"""Reads plans from Markdown checklists.

- The first heading of level 1 is the title. The text after it, up to the next heading or task, is the goal.
- An item with a box, `- [ ]` or `- [x]`, is a step; `[x]` says that it is done. In a document without boxes, the items
  of numbered lists are the steps. Ids and dependencies may be in the text (`task_text`). A step without an id has its
  number as its id.
- Another heading, or an item whose nested tasks have ids, is the phase of the steps below it. A dependency on such an
  item is one on all steps below it.
- Nested items with a box, and the items below `Acceptance:`, are acceptance criteria. Items and lines such as
  `Depends on: …`, `Priority: …` and `Agent: …` are what they say. All other text of a step is its instructions. Other
  text of a phase is left out.
"""

import re
from collections.abc import Iterator, Sequence

from khala.domain.errors import InvalidInput
from khala.domain.plans.documents.markdown_blocks import MarkdownBlock, parse_blocks, without_box
from khala.domain.plans.documents.plan_document import (
    DocumentPlaces,
    PlanDocument,
    check_document,
    clean_block,
    clean_line,
)
from khala.domain.plans.documents.task_text import TaskText, read_label, read_references, read_task_text
from khala.domain.plans.plan import MAX_STEPS, MAX_TITLE_CHARACTERS, PlannedStep

MAX_TASK_CHARACTERS = 2_000
"""Characters of a task's text, with its id and dependencies. What is too long for a title begins the instructions."""
_PRIORITY = re.compile(r"[Pp]?(-?\d{1,9})")
_NO_DEPENDENCY = {"none", "-", "n/a"}


def read_markdown(text: str) -> PlanDocument:
    """The plan in this document. Raises `InvalidInput` with the line, or `PayloadTooLarge`."""
    return _MarkdownReader(parse_blocks(text)).read()


class _MarkdownReader:
    """Collects the steps of one document."""

    def __init__(self, document: MarkdownBlock) -> None:
        self._document = document
        self._steps: list[_StepDraft] = []
        self._groups: dict[str, list[_StepDraft]] = {}
        """The steps below the items that are phases, by the ids of the items."""
        self._numbered = False
        """Whether the items of numbered lists are steps without a box."""

    def read(self) -> PlanDocument:
        self._read_lists()
        if not self._steps:
            self._numbered = True
            self._read_lists()
        self._name_steps()
        title, goal = self._read_opening()
        document = PlanDocument(
            title=clean_line(title.text) if title else "",
            goal=_raw_text(goal),
            steps=tuple(draft.step(self._resolve(draft)) for draft in self._steps),
            completed=tuple(draft.id for draft in self._steps if draft.completed),
        )
        steps = [_place(draft.line) for draft in self._steps]
        places = DocumentPlaces(_place(title.line if title else 1), _place(goal[0].line if goal else 1), steps)
        try:
            check_document(document, places)
        except InvalidInput as error:
            message = error.message + _id_hint(document)
            raise InvalidInput(message, path=error.path.partition(".")[0]) from error
        return document

    def _read_opening(self) -> tuple[MarkdownBlock | None, Sequence[MarkdownBlock]]:
        """The title, and the blocks of the goal."""
        blocks = self._document.children
        title: MarkdownBlock | None = None
        first = next((place for place, block in enumerate(blocks) if block.type == "heading"), None)
        if first is not None and blocks[first].level == 1 and not any(self._has_tasks(one) for one in blocks[:first]):
            title, blocks = blocks[first], blocks[first + 1 :]
        is_end = (block.type == "heading" or self._has_tasks(block) for block in blocks)
        return title, blocks[: next((place for place, end in enumerate(is_end) if end), len(blocks))]

    def _has_tasks(self, block: MarkdownBlock) -> bool:
        if self._numbered and block.type == "ordered_list":
            return True
        return block.type.endswith("_list") and any(item.box or self._nested_tasks(item) for item in block.children)

    def _read_lists(self) -> None:
        phase: str | None = None
        title_is_read = False
        for block in self._document.children:
            if block.type == "heading":
                is_title = block.level == 1 and not title_is_read and not self._steps
                phase = None if is_title else clean_line(block.text) or None
                title_is_read = True
            elif self._has_tasks(block):
                for item in block.children:
                    self._read_item(item, phase, boxed=not (self._numbered and block.type == "ordered_list"))

    def _read_item(self, item: MarkdownBlock, phase: str | None, *, boxed: bool) -> None:
        nested = self._nested_tasks(item)
        if item.box is None and boxed and not nested:
            return
        is_step = item.box is not None or not boxed
        draft = _StepDraft(item, phase)
        if not nested or (is_step and not any(_StepDraft(one, None).task.id for one in nested)):
            self._add(draft)
            return
        first = len(self._steps)
        for one in nested:
            self._read_item(one, draft.title or phase, boxed=True)
        if draft.task.id is not None:
            self._groups.setdefault(draft.task.id, self._steps[first:])

    def _add(self, draft: "_StepDraft") -> None:
        if len(self._steps) >= MAX_STEPS:
            raise InvalidInput(f"A plan has at most {MAX_STEPS:,} steps.", path=_place(draft.line))
        draft.read_body()
        self._steps.append(draft)

    @staticmethod
    def _nested_tasks(item: MarkdownBlock) -> Sequence[MarkdownBlock]:
        return [nested for nested in item.items() if nested.box is not None]

    def _name_steps(self) -> None:
        """Give each step without an id its number, with a suffix if another step has that id."""
        taken = {draft.id for draft in self._steps if draft.id}
        for number, draft in enumerate(self._steps, 1):
            if not draft.id:
                draft.id = next(name for name in _names(number) if name not in taken)
                taken.add(draft.id)

    def _resolve(self, draft: "_StepDraft") -> tuple[str, ...]:
        """The dependencies of a step: those on a phase are on all its steps."""
        ids = {one.id for one in self._steps}
        resolved: list[str] = []
        for name in draft.depends_on:
            if name not in ids and name in self._groups:
                resolved += [one.id for one in self._groups[name]]
            elif name in ids or name.lower() not in _NO_DEPENDENCY:
                resolved.append(name)
        return tuple(resolved)


def _id_hint(document: PlanDocument) -> str:
    """How to write an id, if a step depends on a word that was read as the beginning of another step's title."""
    ids = {step.id for step in document.steps}
    words = {step.title.partition(":")[0] for step in document.steps if ":" in step.title}
    names = (name for step in document.steps for name in step.depends_on)
    name = next((name for name in names if name in words and name not in ids), None)
    return "" if name is None else f" Write an item '- Id: {name}' below a step to give it this id."


class _StepDraft:
    """A step while its item is read."""

    def __init__(self, item: MarkdownBlock, phase: str | None) -> None:
        self._item = item
        self._phase = phase
        self.line = item.line
        self.completed = item.box in ("x", "X")
        first, *following = item.text.split("\n")
        labels = [(label, line) for line in following if (label := read_label(line.strip())) or line.strip()]
        self._labels = [label for label, _ in labels if label]
        text = clean_line(" ".join([without_box(first), *(line for label, line in labels if not label)]))
        if len(text) > MAX_TASK_CHARACTERS:
            message = f"The text of the task has {len(text):,} characters. At most {MAX_TASK_CHARACTERS:,} are allowed."
            raise InvalidInput(message, path=_place(self.line))
        self._text = text
        self.task = read_task_text(text)
        self.id = self.task.id or ""
        self.depends_on: list[str] = []
        self._acceptance: list[str] = []
        self._instructions: list[MarkdownBlock] = []
        self._priority = 0
        self._agent: str | None = None

    @property
    def title(self) -> str:
        return self.task.title

    def read_body(self) -> None:
        """Read everything below the item's first paragraph."""
        blocks = self._item.children
        for label in self._labels:
            self._apply(label.name, label.value)
        awaits_criteria = False
        for block in blocks[1:] if self._item.text else blocks:
            if awaits_criteria and block.type.endswith("_list"):
                self._read_criteria(block)
            elif block.type.endswith("_list"):
                self._read_list(block)
            elif block.type == "paragraph" and _is_acceptance(block.text):
                awaits_criteria = True
                continue
            elif not (block.type == "paragraph" and self._read_labels(block.text)):
                self._instructions.append(block)
            awaits_criteria = False
        self.depends_on = [*self.task.depends_on, *self.depends_on]

    def step(self, depends_on: tuple[str, ...]) -> PlannedStep:
        instructions = _raw_text(self._instructions)
        title = self.title
        if len(title) > MAX_TITLE_CHARACTERS:
            instructions = "\n\n".join(filter(None, (title, instructions)))
            title = title[: MAX_TITLE_CHARACTERS - 1].rstrip() + "…"
        return PlannedStep(
            id=self.id,
            title=title,
            instructions=instructions,
            acceptance=tuple(filter(None, self._acceptance)),
            depends_on=depends_on,
            priority=self._priority,
            phase=self._phase,
            agent=self._agent,
        )

    def _read_criteria(self, block: MarkdownBlock) -> None:
        """Read the list below a paragraph `Acceptance:`. Labels may follow the criteria."""
        for item in block.children:
            if item.box is not None or not self._read_labels(item.text):
                self._acceptance.append(item.item_source)

    def _read_list(self, block: MarkdownBlock) -> None:
        for item in block.children:
            if item.box is not None:
                self._acceptance.append(item.item_source)
            elif _is_acceptance(item.text):
                self._acceptance += [criterion.item_source for criterion in item.items()]
            elif not self._read_labels(" ".join([item.text, ", ".join(one.item_source for one in item.items())])):
                self._instructions.append(item)

    def _read_labels(self, text: str) -> bool:
        """Apply the lines of this text that are labels. Whether all are."""
        labels = [read_label(line.strip()) for line in text.split("\n")]
        applied = [label is not None and self._apply(label.name, label.value) for label in labels]
        return all(applied)

    def _apply(self, name: str, value: str) -> bool:
        """Whether the label has a value that fits."""
        value = clean_line(value)
        match name:
            case "id":
                self.id, self.task = value, TaskText(value, self._text, ())
            case "depends on" | "after":
                self.depends_on += read_references(value)
            case "agent":
                self._agent = value or None
            case "priority" if found := _PRIORITY.fullmatch(value):
                self._priority = int(found[1])
            case "acceptance" | "acceptance criteria" if value:
                self._acceptance.append(value)
            case _:
                return False
        return True


def _place(line: int) -> str:
    return f"line {line}"


def _is_acceptance(text: str) -> bool:
    label = read_label(text.strip())
    return label is not None and label.name.startswith("acceptance") and not label.value


def _raw_text(blocks: Sequence[MarkdownBlock]) -> str:
    """The source of these blocks. A text that is one block quote is not quoted."""
    if len(blocks) == 1 and blocks[0].type == "blockquote":
        return clean_block(blocks[0].quoted)
    text = ""
    for before, block in zip([None, *blocks], blocks, strict=False):
        is_tight = before is not None and before.type == block.type == "list_item"
        text += ("\n" if is_tight else "\n\n") + block.source
    return clean_block(text)


def _names(number: int) -> Iterator[str]:
    """`3`, and if that is taken `3-2`, `3-3` and so on."""
    yield str(number)
    for suffix in range(2, MAX_STEPS + 3):
        yield f"{number}-{suffix}"
