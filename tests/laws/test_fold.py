"""Laws of the fold and of splitting text: they hold for all inputs, not only for examples."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.flush_policy import replace_unstorable, split_by_json_bytes
from khala.domain.fold import (
    CompactionBlock,
    Content,
    FileBlock,
    TextBlock,
    ToolBlock,
    cancelled_statuses,
    fold,
    text_of,
)
from khala.domain.parts import (
    KINDS,
    MAX_INLINE_BYTES,
    BlobRef,
    Compaction,
    Finish,
    LikelyAgent,
    LikelyToken,
    Logprobs,
    MemoryRecall,
    Notice,
    PartData,
    ReasoningDelta,
    RecalledMemory,
    Route,
    RunFailure,
    Step,
    TextDelta,
    TokenLogprob,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    encode,
    json_text,
    read,
)
from khala.store.runs.run_buffer import MAX_TEXT_PART_BYTES

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
calls = st.sampled_from(["a", "b", "c"])

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(texts, json_values, max_size=3)
times = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
blobs = st.builds(
    BlobRef,
    blob_id=st.uuids(),
    size=st.integers(0, 2**40),
    sha256=st.just("ab" * 32),
    media_type=st.just("text/plain"),
    preview=texts,
    name=st.none() | texts,
)
usages = st.builds(TokenUsage, input_tokens=st.integers(0, 10**9), output_tokens=st.integers(0, 10**9))
maybe_args, maybe_blob, maybe_text = st.none() | arguments, st.none() | blobs, st.none() | texts

parts: st.SearchStrategy[PartData | None] = st.one_of(
    st.none(),
    st.builds(TextDelta, text=texts),
    st.builds(ReasoningDelta, text=texts),
    st.builds(ToolCall, tool_call_id=calls, step=st.integers(0, 9), tool=texts, args=maybe_args, args_blob=maybe_blob),
    st.builds(
        ToolStatus,
        tool_call_id=calls,
        state=st.sampled_from(["queued", "running", "blocked", "cancelled"]),
        reason=maybe_text,
        digest=maybe_text,
        expires_at=st.none() | times,
        args=maybe_args,
        args_blob=maybe_blob,
    ),
    st.builds(
        ToolResult,
        tool_call_id=calls,
        ok=st.booleans(),
        summary=texts,
        duration_ms=st.integers(0, 9),
        output=json_values,
        blob=maybe_blob,
    ),
    st.builds(
        Step,
        step=st.integers(1, 9),
        max_steps=st.just(20),
        tool_count=st.integers(0, 9),
        usage=st.none() | usages,
        cost_usd=st.none() | st.just("0.01"),
    ),
    st.builds(Notice, code=st.sampled_from(["resumed", "reprompted"]), message=texts),
    st.builds(Compaction, summary=texts, message_id=st.none() | st.uuids(), step=st.integers(0, 9)),
    st.builds(RunFailure, code=st.just("timeout"), message=texts),
    st.builds(Finish, reason=st.just("stop"), usage=usages, witness=st.none() | st.just("cd" * 32)),
)
beginnings: st.SearchStrategy[Content] = st.one_of(
    st.just(()), st.tuples(st.builds(TextBlock, text=texts), st.builds(FileBlock, blob=blobs))
)


@given(st.lists(parts, max_size=30), st.data())
def test_the_fold_at_k_and_the_parts_after_it_give_the_fold_at_n(
    all_parts: list[PartData | None], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(all_parts)))
    assert fold(fold((), all_parts[:k]), all_parts[k:]) == fold((), all_parts)


@given(beginnings, st.lists(parts, max_size=30), st.data())
def test_the_law_holds_across_the_wire(
    beginning: Content, all_parts: list[PartData | None], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(all_parts)))
    at_k = msgspec.json.decode(msgspec.json.encode(fold(beginning, all_parts[:k])), type=Content)
    rest = [part and read(*_encoded(part)) for part in all_parts[k:]]
    assert fold(at_k, rest) == fold(beginning, all_parts)


@given(beginnings, st.lists(parts, max_size=30))
def test_once_what_is_open_is_cancelled_nothing_is_open(beginning: Content, all_parts: list[PartData | None]) -> None:
    content = fold(beginning, all_parts)
    ended = fold(content, cancelled_statuses(content))
    assert cancelled_statuses(ended) == []
    assert text_of(ended) == text_of(content)
    assert len(ended) == len(content)


def _encoded(part: PartData) -> tuple[str, bytes]:
    kind, data = encode(part)
    return kind, data.encode()


@given(st.lists(texts, max_size=30), st.lists(st.integers(1, 5), max_size=5))
def test_any_cutting_of_the_text_folds_to_the_same(chunks: list[str], sizes: list[int]) -> None:
    whole = "".join(chunks)
    cut = [whole[at : at + size] for size in sizes[:1] for at in range(0, len(whole), size)] or [whole]
    assert fold((), [TextDelta(text=one) for one in cut]) == fold((), [TextDelta(text=one) for one in chunks])
    assert text_of(fold((), [TextDelta(text=one) for one in chunks])) == whole


@given(st.text(max_size=3000), st.integers(8, 200))
def test_pieces_join_to_the_text_and_none_is_over_the_limit(text: str, limit: int) -> None:
    cut = split_by_json_bytes(text, limit)
    assert "".join(cut) == text
    assert all(piece and len(msgspec.json.encode(piece)) <= limit for piece in cut)


@given(st.text(alphabet=st.characters(), max_size=50) | st.text(alphabet="\0\ud800\udfff\U0001f600a", max_size=20))
def test_storable_text_has_no_nul_and_no_surrogate_and_keeps_the_rest(text: str) -> None:
    kept = replace_unstorable(text)
    assert "\0" not in kept
    assert len(kept) == len(text)
    assert kept.encode().decode() == kept
    assert all(a == b or b == "\ufffd" for a, b in zip(text, kept, strict=True))


@given(st.text(alphabet='a\0\1\n"é\U0001f600', min_size=500, max_size=3000))
def test_no_encoded_part_of_text_is_over_the_inline_limit(text: str) -> None:
    cut = split_by_json_bytes(replace_unstorable(text), MAX_TEXT_PART_BYTES)
    assert all(len(encode(TextDelta(text=piece))[1].encode()) <= MAX_INLINE_BYTES for piece in cut)


@given(st.lists(st.sampled_from(["\\", "u0000", "\\u0000", "\0", '"', "é", "x"]), max_size=12).map("".join))
def test_what_only_looks_like_a_nul_stays_as_it_is(text: str) -> None:
    assert msgspec.json.decode(json_text(text)) == text.replace("\0", "\ufffd")


def test_an_unknown_kind_reads_as_nothing_and_changes_nothing() -> None:
    assert read("from-the-future", b'{"x": 1}') is None
    assert fold((TextBlock(text="a"),), [None]) == (TextBlock(text="a"),)


def test_calls_and_results_merge_by_their_id_and_failures_show() -> None:
    content = fold(
        (),
        [
            ToolCall(tool_call_id="a", step=1, tool="grep", args={"x": 1}),
            ToolCall(tool_call_id="b", step=1, tool="glob", args={}),
            ToolResult(tool_call_id="b", ok=False, summary="no", duration_ms=2),
            ToolResult(tool_call_id="a", ok=True, summary="yes", duration_ms=1, output="found"),
        ],
    )
    assert [(block.tool, block.state) for block in content if isinstance(block, ToolBlock)] == [
        ("grep", "completed"),
        ("glob", "failed"),
    ]


def test_an_orphan_result_shows() -> None:
    (block,) = fold((), [ToolResult(tool_call_id="x", ok=True, summary="done", duration_ms=1)])
    assert isinstance(block, ToolBlock)
    assert (block.tool, block.state, block.summary) == ("unknown", "completed", "done")


def test_arguments_stay_until_new_ones_come_and_those_take_the_place_of_both() -> None:
    blob = BlobRef(blob_id=UUID(int=1), size=9, sha256="0" * 64, media_type="application/json")
    called = ToolCall(tool_call_id="a", step=1, tool="grep", args_blob=blob)
    (block,) = fold((), [called, ToolStatus(tool_call_id="a", state="running")])
    assert isinstance(block, ToolBlock)
    assert (block.args, block.args_blob) == (None, blob)
    (block,) = fold((block,), [ToolStatus(tool_call_id="a", state="running", args={})])
    assert isinstance(block, ToolBlock)
    assert (block.args, block.args_blob) == ({}, None)


def test_a_summary_is_a_block_where_it_was_made() -> None:
    made = Compaction(summary="s", message_id=UUID(int=2), step=3)
    content = fold((), [TextDelta(text="a"), made, TextDelta(text="b")])
    block = CompactionBlock(summary="s", message_id=UUID(int=2), step=3)
    assert content == (TextBlock(text="a"), block, TextBlock(text="b"))


def test_reasoning_is_no_part_of_the_content() -> None:
    assert fold((), [ReasoningDelta(text="hm")]) == ()


def test_every_kind_is_read_as_the_type_that_wrote_it() -> None:
    examples: list[PartData] = [
        TextDelta(text="a"),
        Notice(code="c", message="m"),
        RunFailure(code="c", message="m"),
        Finish(reason="stop", usage=TokenUsage()),
        ReasoningDelta(text="r"),
        ToolCall(tool_call_id="a", step=1, tool="t"),
        ToolStatus(tool_call_id="a", state="blocked", expires_at=datetime(2030, 1, 1, tzinfo=UTC)),
        ToolResult(tool_call_id="a", ok=False, summary="s", duration_ms=1, output=0),
        Step(step=1, max_steps=2, tool_count=3, usage=TokenUsage()),
        Compaction(summary="s"),
        MemoryRecall(memories=(RecalledMemory(id=UUID(int=1), text="t", score=0.5),)),
        Logprobs(
            tokens=(TokenLogprob(token="a", logprob=-0.5, bytes=(97,), top=(LikelyToken(token="b", logprob=-1.5),)),)
        ),
        Route(agent="a", confidence=0.5, alternatives=(LikelyAgent(agent="b", confidence=0.1),), why="w", by="words"),
    ]
    for part in examples:
        assert read(*_encoded(part)) == part
    assert set(KINDS.values()) == {type(part) for part in examples}


def test_whatever_a_call_waits_for_it_is_cancelled_with_its_run() -> None:
    states = ["queued", "running", "blocked", "completed", "failed", "cancelled"]
    content = tuple(ToolBlock(tool_call_id=state, tool="grep", state=state) for state in states)
    assert [status.tool_call_id for status in cancelled_statuses(content)] == ["queued", "running", "blocked"]


def test_the_first_and_the_last_surrogate_are_replaced_and_their_neighbours_are_not() -> None:
    assert replace_unstorable("\ud7ff\ud800\udfff\ue000") == "\ud7ff\ufffd\ufffd\ue000"


def test_no_piece_is_a_byte_over_its_limit() -> None:
    for count in range(1, 40):
        for limit in range(8, 60):
            cut = split_by_json_bytes("\1" * count, limit)
            assert all(len(msgspec.json.encode(piece)) <= limit for piece in cut)


def test_usage_is_the_sum_of_both_kinds_of_tokens() -> None:
    used = TokenUsage(input_tokens=1, output_tokens=20) + TokenUsage(input_tokens=300, output_tokens=4000)
    assert used == TokenUsage(input_tokens=301, output_tokens=4020)
