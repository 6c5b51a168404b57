"""Laws of run progress: it does not depend on how parts are read, and it agrees with the fold."""

from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.fold import ToolBlock, fold, text_of
from khala.domain.parts import (
    BlobRef,
    Compaction,
    Finish,
    Notice,
    PartData,
    ReasoningDelta,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    encode,
)
from khala.domain.parts import read as read_part
from khala.domain.run_progress import REPROMPTED_NOTICE, RunProgress, read_progress
from tests.laws.test_fold import arguments, blobs, json_values, maybe_text, texts

STATES = ["running", "blocked", "queued"]
between = st.lists(
    st.one_of(
        st.none(),
        st.builds(TextDelta, text=texts),
        st.builds(ReasoningDelta, text=texts),
        st.builds(Notice, code=st.sampled_from(["resumed", REPROMPTED_NOTICE]), message=texts),
        st.builds(Compaction, summary=texts, message_id=st.none() | st.uuids(), step=st.integers(0, 5)),
    ),
    max_size=4,
)


@st.composite
def _of_call(draw: st.DrawFn, call_id: str) -> list[PartData]:
    """The parts of a call after its start: states, and then perhaps a result or a cancellation."""
    call_parts: list[PartData] = []
    for state in draw(st.lists(st.sampled_from(STATES), max_size=3)):
        new: tuple[dict[str, object] | None, BlobRef | None] = draw(_args())
        changed = new if draw(st.booleans()) else (None, None)
        reason = draw(maybe_text)
        call_parts.append(
            ToolStatus(tool_call_id=call_id, state=state, reason=reason, args=changed[0], args_blob=changed[1])
        )
    last = draw(st.sampled_from(["result", "cancelled", None]))
    if last == "cancelled":
        call_parts.append(ToolStatus(tool_call_id=call_id, state="cancelled"))
    elif last == "result":
        result = st.builds(
            ToolResult,
            tool_call_id=st.just(call_id),
            ok=st.booleans(),
            summary=texts,
            duration_ms=st.integers(0, 9),
            output=json_values,
            blob=st.none() | blobs,
        )
        call_parts.append(draw(result))
    return call_parts


@st.composite
def _args(draw: st.DrawFn) -> tuple[dict[str, object] | None, BlobRef | None]:
    return (draw(arguments), None) if draw(st.booleans()) else (None, draw(blobs))


@st.composite
def runs(draw: st.DrawFn) -> list[PartData | None]:
    """The parts of a run as an executor writes them; those of concurrent calls come in any order."""
    written: list[PartData | None] = list(draw(between))
    for step in range(1, draw(st.integers(0, 4)) + 1):
        ids = [f"call_{step}_{place}" for place in range(draw(st.integers(1, 4)))]
        written.append(Step(step=step, max_steps=20, tool_count=len(ids)))
        for call_id in ids:
            args, blob = draw(_args())
            written.append(ToolCall(tool_call_id=call_id, step=step, tool=draw(texts), args=args, args_blob=blob))
        queues = [draw(_of_call(call_id)) for call_id in ids]
        while any(queues):
            queue = draw(st.sampled_from([queue for queue in queues if queue]))
            written.append(queue.pop(0))
        written += draw(between)
    if draw(st.booleans()):
        written.append(Finish(reason="stop", usage=TokenUsage()))
    return written


@given(runs(), st.data())
def test_read_up_to_any_part_and_applied_from_there_is_read_whole(
    written: list[PartData | None], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(written)))
    progress = read_progress(written[:k])
    for part in written[k:]:
        if part is not None:
            progress.apply(part)
    assert progress == read_progress(written)
    one_by_one = RunProgress()
    for part in written:
        if part is not None:
            one_by_one.apply(part)
    assert one_by_one == progress


@given(runs())
def test_what_is_stored_reads_as_what_was_written(written: list[PartData | None]) -> None:
    stored = [part and read_part(encode(part)[0], encode(part)[1].encode()) for part in written]
    assert read_progress(stored) == read_progress(written)


@given(runs())
def test_each_call_is_in_the_state_that_readers_see(written: list[PartData | None]) -> None:
    progress = read_progress(written)
    blocks = [block for block in fold((), written) if isinstance(block, ToolBlock)]
    calls = list(progress.calls)
    assert [(call.id, call.tool, call.state) for call in calls] == [
        (block.tool_call_id, block.tool, block.state) for block in blocks
    ]
    assert [(call.args, call.args_blob) for call in calls] == [(block.args, block.args_blob) for block in blocks]
    results = [(call.result.output, call.result.blob) if call.result else (None, None) for call in calls]
    assert results == [(block.output, block.blob) for block in blocks]
    assert [len(step.calls) for step in progress.steps if step.calls] == [
        part.tool_count for part in written if isinstance(part, Step)
    ]


@given(runs())
def test_no_text_is_lost_and_none_comes_twice(written: list[PartData | None]) -> None:
    progress = read_progress(written)
    assert "".join(step.text for step in progress.steps) + progress.pending_text == text_of(fold((), written))


@given(runs())
def test_two_readers_share_nothing(written: list[PartData | None]) -> None:
    first, second = read_progress(written), read_progress(written)
    before = msgspec.json.encode(second)
    first.apply(Step(step=9, max_steps=9, tool_count=1))
    first.apply(ToolCall(tool_call_id="x", step=9, tool="t"))
    first.apply(ToolResult(tool_call_id="x", ok=True, summary="", duration_ms=0))
    assert msgspec.json.encode(second) == before


def test_a_run_waits_for_the_approvals_of_its_last_step() -> None:
    blocked_call: list[PartData] = [
        Step(step=1, max_steps=9, tool_count=1),
        ToolCall(tool_call_id="a", step=1, tool="t", args={}),
        ToolStatus(tool_call_id="a", state="blocked"),
    ]
    answered: list[PartData] = [*blocked_call, ToolResult(tool_call_id="a", ok=True, summary="", duration_ms=0)]
    later: list[PartData] = [
        Step(step=2, max_steps=9, tool_count=1),
        ToolCall(tool_call_id="b", step=2, tool="t", args={}),
    ]
    blocked = ToolStatus(tool_call_id="b", state="blocked")
    assert [read_progress(parts).waits_for_approval for parts in ([], blocked_call, answered, [*answered, *later])] == [
        False,
        True,
        False,
        False,
    ]
    assert read_progress([*answered, *later, blocked]).waits_for_approval
    assert not read_progress([*blocked_call, *later]).waits_for_approval


def test_arguments_that_somebody_changed_are_those_of_the_call_wherever_they_are_kept() -> None:
    blob = BlobRef(blob_id=UUID(int=1), size=9, sha256="ab" * 32, media_type="application/json")
    begun: list[PartData] = [
        Step(step=1, max_steps=9, tool_count=1),
        ToolCall(tool_call_id="a", step=1, tool="t", args={"path": "a"}),
    ]
    in_blob = ToolStatus(tool_call_id="a", state="running", args_blob=blob)
    inline = ToolStatus(tool_call_id="a", state="running", args={"path": "b"})
    found = [
        read_progress([*begun, *more]).by_id["a"]
        for more in ([ToolStatus(tool_call_id="a", state="running")], [inline], [in_blob], [in_blob, inline])
    ]
    assert [one.args for one in found] == [{"path": "a"}, {"path": "b"}, None, {"path": "b"}]
    assert [one.args_blob for one in found] == [None, None, blob, None]
