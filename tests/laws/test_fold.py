"""Laws of the fold and of cutting text: they hold for all inputs, not for examples."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.domain.flush import pieces, storable
from app.domain.fold import Content, TextBlock, ToolBlock, fold, text_of
from app.domain.parts import (
    INLINE_LIMIT,
    KINDS,
    Failure,
    Finish,
    Notice,
    PartData,
    ReasoningDelta,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
    Usage,
    encode,
    json_text,
    read,
)
from app.store.writer import PIECE

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
calls = st.sampled_from(["a", "b", "c"])

parts: st.SearchStrategy[PartData | None] = st.one_of(
    st.none(),
    st.builds(TextDelta, text=texts),
    st.builds(ReasoningDelta, text=texts),
    st.builds(ToolCall, tool_call_id=calls, step=st.integers(0, 9), tool=texts, args=st.just({"x": 1})),
    st.builds(ToolStatus, tool_call_id=calls, state=st.sampled_from(["running", "blocked", "cancelled"])),
    st.builds(ToolResult, tool_call_id=calls, ok=st.booleans(), summary=texts, duration_ms=st.integers(0, 9)),
    st.builds(Step, step=st.integers(1, 9), max_steps=st.just(20), tool_count=st.integers(0, 9)),
    st.builds(Notice, code=st.just("resumed"), message=texts),
    st.builds(Failure, code=st.just("timeout"), message=texts),
    st.builds(Finish, reason=st.just("stop"), usage=st.just(Usage())),
)


@given(st.lists(parts, max_size=30), st.data())
def test_the_fold_at_k_and_the_parts_after_it_give_the_fold_at_n(
    all_parts: list[PartData | None], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(all_parts)))
    assert fold(fold((), all_parts[:k]), all_parts[k:]) == fold((), all_parts)


@given(st.lists(parts, max_size=30), st.data())
def test_the_law_holds_across_the_wire(all_parts: list[PartData | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(all_parts)))
    at_k = msgspec.json.decode(msgspec.json.encode(fold((), all_parts[:k])), type=Content)
    rest = [part and read(*_travelled(part)) for part in all_parts[k:]]
    assert fold(at_k, rest) == fold((), all_parts)


def _travelled(part: PartData) -> tuple[str, bytes]:
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
    cut = pieces(text, limit)
    assert "".join(cut) == text
    assert all(piece and len(msgspec.json.encode(piece)) <= limit for piece in cut)


@given(st.text(alphabet=st.characters(), max_size=50) | st.text(alphabet="\0\ud800\udfff\U0001f600a", max_size=20))
def test_storable_text_has_no_nul_and_no_surrogate_and_keeps_the_rest(text: str) -> None:
    kept = storable(text)
    assert "\0" not in kept
    assert len(kept) == len(text)
    assert kept.encode().decode() == kept
    assert all(a == b or b == "\ufffd" for a, b in zip(text, kept, strict=True))


@given(st.text(alphabet='a\0\1\n"é\U0001f600', min_size=500, max_size=3000))
def test_no_encoded_part_of_text_is_over_the_inline_limit(text: str) -> None:
    cut = pieces(storable(text), PIECE)
    assert all(len(encode(TextDelta(text=piece))[1].encode()) <= INLINE_LIMIT for piece in cut)


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


def test_reasoning_is_no_part_of_the_content() -> None:
    assert fold((), [ReasoningDelta(text="hm")]) == ()


def test_every_kind_is_read_as_the_type_that_wrote_it() -> None:
    examples: list[PartData] = [
        TextDelta(text="a"),
        Notice(code="c", message="m"),
        Failure(code="c", message="m"),
        Finish(reason="stop", usage=Usage()),
    ]
    for part in examples:
        assert read(*_travelled(part)) == part
    assert set(KINDS.values()) >= {type(part) for part in examples}
