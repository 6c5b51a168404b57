"""Laws of the context of a model call: within its budget, monotone, deterministic, in order, with pairs together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from hypothesis import assume, example, given
from hypothesis import strategies as st

from khala.domain.chat import Message
from khala.domain.context import (
    MAX_SHARES,
    ContextForm,
    ContextItem,
    ContextOverflow,
    FilledSection,
    SectionInput,
    SectionName,
    build_context,
)
from khala.domain.fold import FileBlock
from khala.domain.parts import Compaction, RecalledMemory
from khala.domain.routing import Background, Meaning
from khala.domain.run_progress import RunProgress, RunStep
from khala.domain.tool_relevance import matching_tools, relevant_tools
from khala.domain.tools import ToolSpec
from khala.models.port import ModelFailed
from khala.models.token_counter import estimate_tool
from khala.runs.prompt import FittedPrompt, PromptInput, ToolOffer, fit
from tests.unit.test_prompt import TOKEN_COUNTER, assert_paired, blob, block, call, message, spec

Drawn: TypeAlias = dict[SectionName, list[list[tuple[list[int], bool]]]]
"""The items of each section, in groups: the tokens of their forms, and whether they are required."""
Filled: TypeAlias = dict[SectionName, FilledSection[int]]

tokens = st.one_of(st.integers(0, 12), st.integers(0, 400))
required = st.tuples(st.lists(tokens, min_size=1, max_size=3), st.just(value=True))
optional = st.tuples(st.lists(tokens, min_size=1, max_size=3), st.just(value=False))
names: Sequence[SectionName] = ("instructions", "folderFiles", "memories", "summary", "turns", "files", "tools")
sections = st.fixed_dictionaries(
    {name: st.lists(st.lists(st.one_of(optional, optional, required), max_size=4), max_size=3) for name in names}
)
budgets = st.integers(0, 1500)


def build(drawn: Drawn, budget: int, *, max_tokens: float = float("inf")) -> Filled | None:
    """The filled sections; None if the required items do not fit."""
    inputs = [
        SectionInput(
            name=name,
            groups=[
                [
                    ContextItem(
                        f"{name}:{place}:{index}",
                        lambda sizes=sizes: [ContextForm(size, size) for size in sorted(sizes, reverse=True)],  # type: ignore[misc]
                        size=max(sizes),
                        required=required,
                    )
                    for index, (sizes, required) in enumerate(group)
                ]
                for place, group in enumerate(groups)
            ],
            max_tokens=max_tokens if name == "tools" else float("inf"),
        )
        for name, groups in drawn.items()
    ]
    try:
        return build_context(inputs, budget)
    except ContextOverflow:
        return None


def chosen(filled: Filled) -> dict[str, int]:
    return {item.reference: form.tokens for section in filled.values() for item, form in section.chosen}


@given(sections, budgets)
def test_the_sections_never_exceed_the_budget(drawn: Drawn, budget: int) -> None:
    required = sum(min(sizes) for groups in drawn.values() for group in groups for sizes, needed in group if needed)
    filled = build(drawn, budget)
    assert (filled is None) == (required > budget)
    if filled is not None:
        assert sum(chosen(filled).values()) <= budget
        assert sum(section.report.tokens for section in filled.values()) == sum(chosen(filled).values())


@given(sections, budgets, st.integers(1, 300))
@example(
    {"memories": [[([100], False)]], "tools": [[([99], False), ([100], False)]], "turns": [[([60], False)] * 9]}, 300, 1
)
def test_a_larger_budget_never_drops_or_shortens_what_a_smaller_one_had(drawn: Drawn, budget: int, more: int) -> None:
    smaller, larger = build(drawn, budget), build(drawn, budget + more)
    assume(smaller is not None)
    assert smaller is not None
    assert larger is not None
    after = chosen(larger)
    for reference, size in chosen(smaller).items():
        assert after[reference] >= size


@given(sections, budgets)
def test_the_same_input_gives_the_same_context(drawn: Drawn, budget: int) -> None:
    first, second = build(drawn, budget), build(drawn, budget)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert chosen(first) == chosen(second)
        assert [section.report for section in first.values()] == [section.report for section in second.values()]


@given(sections, budgets)
def test_items_enter_in_order_and_whatever_is_missing_is_reported(drawn: Drawn, budget: int) -> None:
    filled = build(drawn, budget)
    assume(filled is not None)
    assert filled is not None
    for name, groups in drawn.items():
        section = filled[name]
        present = {item.reference: form for item, form in section.chosen}
        expected = [
            (f"{name}:{place}:{index}", sizes, needed)
            for place, group in enumerate(groups)
            for index, (sizes, needed) in enumerate(group)
        ]
        flags = [reference in present for reference, _, needed in expected if not needed]
        assert flags == sorted(flags, reverse=True), "an item is missing before one that is present"
        missing = sum(max(sizes) - (present[ref].tokens if ref in present else 0) for ref, sizes, _ in expected)
        assert sum(left.tokens for left in section.report.left_out) == missing
        assert section.report.items == len(present)
        absent = [left for left in section.report.left_out if left.why != "shortened"]
        assert sum(left.count for left in absent) == len(expected) - len(present)


@given(sections, budgets, st.integers(0, 500))
def test_a_section_stays_within_its_maximum_share(drawn: Drawn, budget: int, most: int) -> None:
    free = {name: [[(sizes, False) for sizes, _ in group] for group in groups] for name, groups in drawn.items()}
    filled = build(free, budget, max_tokens=most)
    assert filled is not None
    for name, percent in MAX_SHARES.items():
        assert filled[name].report.tokens <= budget * percent / 100
    assert filled["tools"].report.tokens <= most


@given(st.integers(100, 2000))
def test_what_one_section_does_not_need_goes_to_the_others(budget: int) -> None:
    one = [[([budget], False)]]
    alone = build({"turns": one, "files": [], "memories": [[([1], False)]]}, budget + 1)
    assert alone is not None
    assert chosen(alone) == {"turns:0:0": budget, "memories:0:0": 1}


# The same laws, for whole prompts.

letters = st.integers(0, 2500).map(lambda size: "x" * size)
histories = st.lists(
    st.tuples(letters, st.lists(st.integers(0, 1500), max_size=3), st.sampled_from(["user", "assistant", "file"])),
    min_size=1, max_size=8,
)  # fmt: skip
progresses = st.lists(st.tuples(letters, st.lists(st.integers(0, 3000), max_size=3)), max_size=5)
memories = st.lists(st.integers(0, 900), max_size=5)
tools = st.lists(st.integers(0, 800), max_size=6)
limits = st.integers(50, 8000)


def _history(drawn: list[tuple[str, list[int], str]]) -> list[Message]:
    found = []
    for place, (text, outputs, kind) in enumerate(drawn, 1):
        if kind == "assistant":
            used = [block(100 * place + at, "o" * size, step=1) for at, size in enumerate(outputs)]
            found.append(message(place, text, *used, role="assistant"))
        else:
            files = [FileBlock(blob=blob(100 * place + at)) for at, _ in enumerate(outputs) if kind == "file"]
            found.append(message(place, text, *files))
    return [*found, message(99, "question")]


def _progress(drawn: list[tuple[str, list[int]]], summary: str) -> RunProgress:
    steps, number = [], 0
    for place, (text, outputs) in enumerate(drawn):
        number += bool(outputs)
        calls = [call(f"r{place}c{at}", "o" * size) for at, size in enumerate(outputs)]
        steps.append(RunStep(text=text, step=number if calls else 0, calls=calls))
    return RunProgress(steps=steps, compaction=Compaction(summary=summary) if summary else None)


def _prompt(
    drawn: list[tuple[str, list[int], str]],
    done: list[tuple[str, list[int]]],
    recalled: list[int],
    summary: str,
    offered: list[int],
    limit: int,
) -> FittedPrompt | None:
    history = _history(drawn)
    files = {
        one.blob.blob_id: b"f" * (37 * one.blob.blob_id.int % 3000)
        for each in history
        for one in each.content or ()
        if isinstance(one, FileBlock)
    }
    content = PromptInput(
        history=history,
        progress=_progress(done, summary),
        memories=[RecalledMemory(id=message(n, "").id, text="m" * size, score=0.5) for n, size in enumerate(recalled)],
        files=files,
    )
    offer = ToolOffer(specs=[spec(f"tool{place}", size) for place, size in enumerate(offered)])
    try:
        return fit(content, system="system", tools=offer, limit=limit, token_counter=TOKEN_COUNTER)
    except ModelFailed:
        return None


def _size(found: FittedPrompt) -> int:
    prompt = found.prompt
    return len(prompt.system) + TOKEN_COUNTER.turns(prompt.turns) + sum(map(estimate_tool, prompt.tools))


@given(histories, progresses, memories, letters, tools, limits)
def test_a_prompt_is_within_its_limit_and_calls_keep_their_outcomes_and_the_question_its_text(
    drawn: list[tuple[str, list[int], str]],
    done: list[tuple[str, list[int]]],
    recalled: list[int],
    summary: str,
    offered: list[int],
    limit: int,
) -> None:
    found = _prompt(drawn, done, recalled, summary, offered, limit)
    assume(found is not None)
    assert found is not None
    assert _size(found) <= limit
    assert sum(section.tokens for section in found.sections) <= limit
    assert_paired(found.prompt.turns)
    assert "question" in [turn.text for turn in found.prompt.turns]
    uses = [use.id for turn in found.prompt.turns for use in turn.uses]
    earlier = [(place, outputs) for place, (_, outputs, kind) in enumerate(drawn, 1) if kind == "assistant"]
    everything = [f"c{100 * place + at}" for place, outputs in earlier for at in range(len(outputs))]
    everything += [f"r{place}c{at}" for place, (_, outputs) in enumerate(done) for at in range(len(outputs))]
    positions = [everything.index(use) for use in uses]
    assert all(before < after for before, after in pairwise(positions)), "calls are not in their order"


@given(histories, progresses, memories, letters, tools, limits, st.integers(1, 2000))
def test_a_larger_limit_never_drops_a_message_a_step_a_memory_or_a_tool(
    drawn: list[tuple[str, list[int], str]],
    done: list[tuple[str, list[int]]],
    recalled: list[int],
    summary: str,
    offered: list[int],
    limit: int,
    more: int,
) -> None:
    smaller = _prompt(drawn, done, recalled, summary, offered, limit)
    larger = _prompt(drawn, done, recalled, summary, offered, limit + more)
    assume(smaller is not None)
    assert smaller is not None
    assert larger is not None
    assert len(larger.dropped) <= len(smaller.dropped)
    assert {tool.name for tool in smaller.prompt.tools} <= {tool.name for tool in larger.prompt.tools}
    calls = [{use.id for turn in each.prompt.turns for use in turn.uses} for each in (smaller, larger)]
    assert calls[0] <= calls[1]
    items = [{section.name: section.items for section in each.sections} for each in (smaller, larger)]
    assert all(items[1][name] >= count for name, count in items[0].items())


words = st.sampled_from(["read", "write", "issue", "calendar", "event", "file", "search", "image"])
specs = st.lists(st.lists(words, min_size=1, max_size=4), max_size=12).map(
    lambda drawn: [
        ToolSpec(name=f"{each[0]}_{place}", description=" ".join(each[1:]), parameters={"type": "object"})
        for place, each in enumerate(drawn)
    ]
)


@given(st.lists(words, max_size=5).map(" ".join), specs, st.sets(st.integers(0, 11)), st.integers(0, 12))
def test_relevant_tools_are_at_most_the_limit_and_have_all_pinned_ones_first(
    text: str, offered: list[ToolSpec], pins: set[int], limit: int
) -> None:
    pinned = {offered[pin].name for pin in pins if pin < len(offered)}
    found = [one.name for one in relevant_tools(text, offered, pinned, limit)]
    assert set(found[: len(pinned)]) == pinned
    assert len(found) == min(len(offered), max(limit, len(pinned)))
    assert len(set(found)) == len(found)
    assert found == [one.name for one in relevant_tools(text, offered, pinned, limit)]
    matching = [one.name for one in matching_tools(text, offered, 12)]
    best = [name for name in found if name not in pinned]
    expected = [name for name in matching if name not in pinned]
    if not pinned:
        assert best[: len(expected)] == expected[: len(best)]


@given(st.lists(words, max_size=5).map(" ".join), specs.filter(bool), st.data())
def test_a_tool_that_is_closer_in_meaning_ranks_no_lower_and_is_found(
    text: str, offered: list[ToolSpec], data: st.DataObject
) -> None:
    closenesses = {one.name: data.draw(st.floats(-1, 1)) for one in offered}
    chosen = data.draw(st.sampled_from(offered))
    background = Background(mean=0.1, deviation=0.1)

    def rank(closeness: float) -> int:
        meaning = Meaning(closenesses=closenesses | {chosen.name: closeness}, background=background)
        return relevant_tools(text, offered, meaning=meaning).index(chosen)

    low, high = sorted((closenesses[chosen.name], data.draw(st.floats(-1, 1))))
    assert rank(high) <= rank(low)
    meaning = Meaning(closenesses=closenesses, background=background)
    found = matching_tools(text, offered, 12, meaning)
    assert {one.name for one in matching_tools(text, offered, 12)} <= {one.name for one in found}
    assert all(meaning.evidence(one.name) <= 0 for one in offered if one not in found)
    assert found == [one for one in relevant_tools(text, offered, limit=12, meaning=meaning) if one in found]


@given(st.one_of(st.none(), st.just("text"), st.just([1]), st.just({"limit": True, "path": {"description": 3}})))
def test_a_tool_is_found_by_a_parameter_and_malformed_parameters_do_not_count(malformed: object) -> None:
    described = {"properties": {"accountId": {"description": "The customer whose invoices are listed"}}}
    first = ToolSpec(name="ledger", description="Lists entries", parameters={"properties": malformed})
    second = ToolSpec(name="entries", description="Lists entries", parameters=described)
    for query in ("one customer", "the account"):
        assert matching_tools(query, [first, second], 2) == [second]
