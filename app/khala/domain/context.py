"""The context of a model call: decides which items enter a prompt within a budget of tokens, and reports what does not.

A context has sections, and a section has items, the most important first. The budget is divided in three steps:

1. The shortest forms of all required items are taken first.
2. The rest is divided among the sections by their shares. What a section does not need is divided among the others by
   their shares (max-min fairness), up to the maximum share of each.
3. Each section takes its items in order, and stops at the first that does not fit into its part.

So the sum never exceeds the budget, and a larger budget never drops or shortens what a smaller one had.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.parts import RelevanceBasis

ContentT = TypeVar("ContentT")

SectionName: TypeAlias = Literal["instructions", "folderFiles", "memories", "summary", "turns", "files", "tools"]
ContextPurpose: TypeAlias = Literal["answer", "summary"]
"""What a model call is for: an answer to the person, or a summary of older turns."""
LeftOutReason: TypeAlias = Literal["limit", "share", "shortened", "summarised", "unrelated", "unread"]
"""Why something is not in a prompt: the prompt's limit or the section's maximum share is used up, only its beginning is
included, a summary replaces it, a tool does not relate to the conversation, or a file was not read.
"""

SHARES: Mapping[SectionName, int] = {
    "instructions": 5, "folderFiles": 15, "memories": 10, "summary": 10, "turns": 30, "files": 30, "tools": 15,
}  # fmt: skip
"""The shares of the sections in the budget that the required items leave, in proportion to each other."""
MAX_SHARES: Mapping[SectionName, int] = {"folderFiles": 30, "memories": 20, "tools": 40}
"""The maximum share of a section, in percent, however little the others need."""


class ContextOverflow(Exception):
    """The required items alone are larger than the budget."""


class ContextForm(msgspec.Struct, Generic[ContentT], frozen=True):
    """One form of an item, for example its beginning only, and the number of its tokens."""

    content: ContentT
    tokens: int


class ContextItem(Generic[ContentT]):
    """An item of a section. It enters the context in one of its forms, or not at all unless it is required.

    `reference` names it without its text, such as `message:ID`. `measure` returns its forms, the longest first; it is
    called at most once, and only if the item may fit. `size` is the approximate number of its tokens until then.
    """

    __slots__ = ("_forms", "_measure", "_size", "reference", "required")

    def __init__(
        self,
        reference: str,
        measure: Callable[[], Sequence[ContextForm[ContentT]]],
        *,
        size: int = 0,
        required: bool = False,
    ) -> None:
        self.reference = reference
        self.required = required
        self._measure = measure
        self._size = size
        self._forms: tuple[ContextForm[ContentT], ...] | None = None

    @property
    def forms(self) -> tuple[ContextForm[ContentT], ...]:
        """The forms, the longest first. A form that is not shorter than the one before it is left out."""
        if self._forms is None:
            forms: list[ContextForm[ContentT]] = []
            for form in self._measure():
                if not forms or form.tokens < forms[-1].tokens:
                    forms.append(form)
            self._forms = tuple(forms)
        return self._forms

    @property
    def size(self) -> int:
        """The tokens of the longest form, or their approximate number if the item was not measured."""
        return self._forms[0].tokens if self._forms else self._size


class LeftOut(WireStruct, frozen=True, kw_only=True):
    """Something that is not in a prompt, or not as a whole.

    `what` refers to it, without its text: `message:ID`, `step:NUMBER`, `blob:ID`, `memory:ID`, `tools` or `summary`.
    An entry with a `count` stands for so many items, and `what` is the most important of them, which is the newest of
    messages and steps. `tokens` is the approximate number of missing tokens. `by` says of unrelated tools whether only
    their words were compared with the conversation, or also their meaning.
    """

    what: str
    tokens: int
    why: LeftOutReason
    count: int = 1
    by: RelevanceBasis | None = None


class ContextSection(WireStruct, frozen=True, kw_only=True):
    """A section of a prompt: the number of its tokens and items, and what was left out."""

    name: SectionName
    tokens: int
    items: int
    left_out: Sequence[LeftOut]


class ContextRecord(WireStruct, frozen=True, kw_only=True):
    """The context of one model call, as stored in its receipt: numbers and references, no text.

    `limit` bounds the tokens of the prompt. `estimated`: they are estimates, because the model's vocabulary is unknown.
    """

    at: datetime
    purpose: ContextPurpose
    limit: int
    estimated: bool = False
    sections: Sequence[ContextSection]

    @property
    def tokens(self) -> int:
        """The tokens of the whole prompt."""
        return sum(section.tokens for section in self.sections)


class ContextCall(ContextRecord, frozen=True, kw_only=True):
    """One model call of a run: what it was told, its outcome, and the input tokens that its provider counted.

    `model` is `provider:name`. `input_tokens` is absent if the provider did not report them.
    """

    model: str
    outcome: str
    input_tokens: int | None = None


class SectionInput(msgspec.Struct, Generic[ContentT], kw_only=True):
    """The items that a section may have.

    The items of a group, the most important first, enter in their shortest forms; then each grows as long as possible.
    The next group begins when all items of this one are in their longest forms. `max_tokens` bounds the section, too.
    """

    name: SectionName
    groups: Sequence[Sequence[ContextItem[ContentT]]]
    max_tokens: float = float("inf")
    left_out: Sequence[LeftOut] = ()
    """What was left out before the budget was divided."""


class FilledSection(msgspec.Struct, Generic[ContentT], kw_only=True):
    """The items of a section that enter the context, in the order of the input, each in its form."""

    chosen: Sequence[tuple[ContextItem[ContentT], ContextForm[ContentT]]]
    report: ContextSection

    @property
    def contents(self) -> list[ContentT]:
        """The contents of the chosen forms."""
        return [form.content for _, form in self.chosen]


class _Growth(msgspec.Struct, Generic[ContentT], frozen=True):
    """One step in filling a section: the item gets its next longer form, for so many tokens more."""

    item: ContextItem[ContentT]
    form: ContextForm[ContentT]
    tokens: int


def build_context(
    sections: Sequence[SectionInput[ContentT]], budget: int
) -> dict[SectionName, FilledSection[ContentT]]:
    """Fill the sections within `budget` tokens.

    Raises `ContextOverflow` if the required items are larger than that.
    """
    remaining = budget - sum(
        item.forms[-1].tokens for section in sections for group in section.groups for item in group if item.required
    )
    if remaining < 0:
        raise ContextOverflow
    growths = {section.name: _growths(section, remaining) for section in sections}
    allotments = _divide(sections, growths, remaining)
    return {section.name: _fill(section, growths[section.name], allotments[section.name]) for section in sections}


def _growths(section: SectionInput[ContentT], most: int) -> list[_Growth[ContentT]]:
    """The steps of filling the section, until they need more than `most` tokens. Later items are not measured."""
    growths: list[_Growth[ContentT]] = []
    for growth in _all_growths(section):
        growths.append(growth)
        most -= growth.tokens
        if most < 0:
            break
    return growths


def _all_growths(section: SectionInput[ContentT]) -> Iterator[_Growth[ContentT]]:
    for group in section.groups:
        for item in group:
            if not item.required:
                yield _Growth(item, item.forms[-1], item.forms[-1].tokens)
        for item in group:
            for longer, shorter in zip(item.forms[-2::-1], item.forms[:0:-1], strict=True):
                yield _Growth(item, longer, longer.tokens - shorter.tokens)


def _divide(
    sections: Sequence[SectionInput[ContentT]], growths: Mapping[SectionName, Sequence[_Growth[ContentT]]], budget: int
) -> dict[SectionName, int]:
    """The tokens for each section. Computed in fractions, because rounding would let a larger budget drop an item."""
    needs = {section.name: _need(section, growths[section.name], budget) for section in sections}
    allotments: dict[SectionName, int] = {}
    remaining = Fraction(budget)
    while needs:
        shares = sum(SHARES[name] for name in needs)
        met = [name for name, need in needs.items() if need * shares <= remaining * SHARES[name]]
        if not met:
            return allotments | {name: int(remaining * SHARES[name] / shares) for name in needs}
        for name in met:
            need = needs.pop(name)
            allotments[name] = int(need)
            remaining -= need
    return allotments


def _need(section: SectionInput[ContentT], growths: Sequence[_Growth[ContentT]], budget: int) -> Fraction:
    """The tokens that the section can use."""
    tokens = min(sum(growth.tokens for growth in growths), section.max_tokens)
    return min(Fraction(tokens), Fraction(budget * MAX_SHARES.get(section.name, 100), 100))


def _fill(
    section: SectionInput[ContentT], growths: Sequence[_Growth[ContentT]], allotment: int
) -> FilledSection[ContentT]:
    items = [item for group in section.groups for item in group]
    forms = {id(item): item.forms[-1] for item in items if item.required}
    for growth in growths:
        allotment -= growth.tokens
        if allotment < 0:
            break
        forms[id(growth.item)] = growth.form
    chosen = [(item, forms[id(item)]) for item in items if id(item) in forms]
    report = ContextSection(
        name=section.name,
        tokens=sum(form.tokens for _, form in chosen),
        items=len(chosen),
        left_out=(*section.left_out, *_shortened(chosen), *_missing(section.name, items, forms)),
    )
    return FilledSection(chosen=chosen, report=report)


def _shortened(chosen: Sequence[tuple[ContextItem[ContentT], ContextForm[ContentT]]]) -> Iterator[LeftOut]:
    shortened = [(item, form) for item, form in chosen if form is not item.forms[0]]
    if shortened:
        tokens = sum(item.size - form.tokens for item, form in shortened)
        yield LeftOut(what=shortened[0][0].reference, tokens=tokens, why="shortened", count=len(shortened))


def _missing(
    name: SectionName, items: Sequence[ContextItem[ContentT]], forms: Mapping[int, ContextForm[ContentT]]
) -> Iterator[LeftOut]:
    missing = [item for item in items if id(item) not in forms]
    if missing:
        why: LeftOutReason = "share" if name in MAX_SHARES else "limit"
        tokens = sum(item.size for item in missing)
        yield LeftOut(what=missing[0].reference, tokens=tokens, why=why, count=len(missing))
