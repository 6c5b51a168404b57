"""Laws of documents of plans: a document that is written reads the same, and no input does harm."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from khala.domain.errors import InvalidInput
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.documents.markdown_reader import read_markdown
from khala.domain.plans.documents.markdown_writer import write_markdown
from khala.domain.plans.documents.plan_document import PlanDocument, clean_block, clean_line
from khala.domain.plans.documents.prd_json import read_prd, write_prd
from khala.domain.plans.plan import PlannedStep

PIECES = [
    "a", "Ü", "\u3000", "T001", "US-001: ", "1. ", "2) ", "build", "- ", "* ", "+ ", "[ ] ", "[x] ", "#", "## ", " ##",
    ">", "> ", "```", "~~~", "---", "===", "<!-- ", "-->", "<div>", "    ", "\t", "\n", "\n\n", "\n\n\n", "\r\n",
    "\x0b", "\0", "Depends on: ", "(after: ", "none", ")", "Id: ", "Priority: 7", "Agent: ", "Acceptance:", "**", "`",
    "\\", "[a]: b", "|",
]  # fmt: skip
"""What Markdown and the readers find a meaning in."""
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
lines = texts.map(clean_line)
filled_lines = lines.filter(bool)
optional_lines = lines.map(lambda text: text or None)
blocks = texts.map(clean_block)
step_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,6}", fullmatch=True) | st.sampled_from(
    ["1", "2", "3", "1.1", "T001", "US-001", "none", "n", "A1", "x-1.2", "build", "10000", "step"]
)


@st.composite
def documents(draw: st.DrawFn) -> PlanDocument:
    """Documents as they are read: their texts are clean, and their steps depend on steps anywhere, without a cycle."""
    names = draw(st.lists(step_ids, min_size=1, max_size=5, unique=True))
    order = draw(st.permutations(names))
    steps = tuple(
        PlannedStep(
            id=name,
            title=draw(filled_lines),
            instructions=draw(blocks),
            acceptance=tuple(draw(st.lists(filled_lines, max_size=3))),
            depends_on=tuple(draw(st.lists(st.sampled_from(order[: order.index(name)]), max_size=3)))
            if order.index(name)
            else (),
            priority=draw(st.integers(-3, 1_000_000)),
            phase=draw(optional_lines),
            agent=draw(optional_lines.filter(lambda text: text is None or len(text) <= 63)),
        )
        for name in names
    )
    completed = draw(st.sets(st.sampled_from(names)))
    return PlanDocument(
        title=draw(lines),
        goal=draw(blocks),
        steps=steps,
        completed=tuple(name for name in names if name in completed),
    )


@given(document=documents())
@settings(max_examples=200, deadline=None)
def test_a_checklist_that_is_written_reads_the_same(document: PlanDocument) -> None:
    assert read_markdown(write_markdown(document)) == document


@given(document=documents(), former=documents())
@settings(deadline=None)
def test_a_prd_that_is_written_reads_the_same_even_over_another(document: PlanDocument, former: PlanDocument) -> None:
    content = write_prd(document)
    assert read_prd(content) == document
    assert read_prd(write_prd(document, over=write_prd(former))) == document
    assert write_prd(document, over=content) == content


@given(document=documents(), fields=st.dictionaries(st.sampled_from(["labels", "notes", "x"]), st.lists(st.booleans())))
@settings(deadline=None)
def test_fields_that_a_plan_does_not_have_survive(document: PlanDocument, fields: dict[str, Sequence[bool]]) -> None:
    content = msgspec.json.decode(write_prd(document))
    content |= fields | {"branchName": "b"}
    content["userStories"] = [story | fields for story in content["userStories"]]
    assert msgspec.json.decode(write_prd(document, over=msgspec.json.encode(content))) == content


@given(text=st.text() | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@example("- [ ] a\n" + "  " * 30 + "- [ ] 1.1 b")
@example("- " * 500 + "[ ] a")
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_plan_or_invalid_and_reading_is_stable(text: str) -> None:
    try:
        document = read_markdown(text)
    except InvalidInput:
        return
    check_steps(document.steps)
    assert read_markdown(write_markdown(document)) == document


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
stories = st.fixed_dictionaries(
    {"id": step_ids | values, "title": texts | values, "passes": st.booleans() | values},
    optional=dict.fromkeys(("description", "acceptanceCriteria", "priority", "dependsOn", "phase", "agent"), values),
)
files = st.fixed_dictionaries(
    {"userStories": st.lists(stories, max_size=3) | values}, optional={"name": texts | values}
)


@given(content=st.binary() | st.one_of(values, files).map(lambda value: msgspec.json.encode(value)))
@example(b"[" * 100_000)
@example(b'{"userStories": ' + b"[" * 100_000)
@example(b'{"userStories": [], "x": ' + b"[" * 100_000)
@example(b'{"userStories": [], "name": "\\ud800"}')
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_plan_or_invalid(content: bytes) -> None:
    try:
        document = read_prd(content)
    except InvalidInput:
        return
    check_steps(document.steps)
    assert read_prd(write_prd(document, over=content)) == document


@given(document=documents(), data=st.data())
@settings(deadline=None)
def test_a_cycle_and_an_unknown_step_are_refused_with_their_place(document: PlanDocument, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(document.steps) - 1))
    step = document.steps[place]
    depends_on = data.draw(st.sampled_from([(step.id,), ("unknown-step",)]))
    broken = msgspec.structs.replace(step, depends_on=depends_on)
    refused = msgspec.structs.replace(document, steps=(*document.steps[:place], broken, *document.steps[place + 1 :]))
    with pytest.raises(InvalidInput) as in_json:
        read_prd(write_prd(refused))
    assert in_json.value.path == f"userStories[{place}]"
    text = write_markdown(refused)
    with pytest.raises(InvalidInput) as in_markdown:
        read_markdown(text)
    line = text.split("\n")[int(in_markdown.value.path.removeprefix("line ")) - 1]
    assert step.title in line
    assert repr(step.id) in in_markdown.value.message or f"{step.id} → {step.id}" in in_markdown.value.message
