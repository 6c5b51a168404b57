"""Laws of the AI SDK's chunks: any division into commits, any replay and any decided pause give the same message."""

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from khala.api.ai_sdk.chunk_encoder import ChunkEncoder, StreamedRun, UiChunk
from khala.domain import ids
from khala.domain.parts import (
    HANDED_OVER,
    Finish,
    Notice,
    Part,
    PartData,
    ReasoningDelta,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    encode,
)

NOW = datetime(2026, 11, 23, tzinfo=UTC)
CLIENTS_TOOL = "locate"
RUN = StreamedRun(thread_id=ids.new(), run_id=ids.new(), message_id=ids.new(), functions=frozenset({CLIENTS_TOOL}))
ENDED = ("output-available", "output-error", "output-denied")


def fold(chunks: Sequence[UiChunk], message: dict[str, Any] | None = None) -> dict[str, Any]:
    """The message that a client has after these chunks, and the order that it requires of them.

    `message` is the one that a continued stream belongs to.
    """
    folded: dict[str, Any] = message or {"parts": [], "metadata": {}}
    parts = folded["parts"]
    blocks: dict[str, dict[str, Any]] = {}
    for chunk in json.loads(msgspec.json.encode(chunks)):
        kind = chunk["type"]
        block, _, event = kind.partition("-")
        call = next((part for part in parts if part.get("toolCallId") == chunk.get("toolCallId", "none")), None)
        if kind == "start":
            folded["id"] = chunk["messageId"]
        elif block in ("text", "reasoning") and event == "start":
            blocks[chunk["id"]] = {"type": block, "text": "", "state": "streaming"}
            parts.append(blocks[chunk["id"]])
        elif block in ("text", "reasoning") and event == "delta":
            blocks[chunk["id"]]["text"] += chunk["delta"]
        elif block in ("text", "reasoning") and event == "end":
            blocks.pop(chunk["id"])["state"] = "done"
        elif kind == "start-step":
            parts.append({"type": "step-start"})
        elif kind == "tool-input-start":
            assert call is None
            parts.append({"type": f"tool-{chunk['toolName']}", "toolCallId": chunk["toolCallId"]})
        elif block == "tool":
            asked = chunk.get("approvalId", "none")
            call = call or next(part for part in parts if part.get("approval", {}).get("id") == asked)
            update(call, chunk)
        elif kind.startswith("data-") and not chunk.get("transient") and chunk not in parts:
            parts.append(chunk)
        folded["metadata"] |= chunk.get("messageMetadata", {})
    assert not blocks, "each block is closed"
    return folded


def update(call: dict[str, Any], chunk: dict[str, Any]) -> None:
    match chunk["type"]:
        case "tool-input-available":
            call |= {"state": "input-available", "input": chunk["input"]}
        case "tool-approval-request":
            call |= {"state": "approval-requested", "approval": {"id": chunk["approvalId"]}}
        case "tool-approval-response":
            call["state"] = "approval-responded"
            call["approval"] |= {"approved": chunk["approved"], "reason": chunk["reason"]}
        case "tool-output-available" | "tool-output-error" | "tool-output-denied":
            assert call["state"] not in ENDED
            result = chunk.get("output", chunk.get("errorText"))
            call |= {"state": chunk["type"].removeprefix("tool-"), "result": result}


TEXTS = st.lists(st.sampled_from(["En taro ", "Adun", " – ", ""]).map(lambda text: TextDelta(text=text)), max_size=3)
REASONING = st.lists(st.just(ReasoningDelta(text="Hm.")), max_size=2)
TAKE_OVER = st.lists(st.just(Notice(code="resumed", message="The answer goes on.")), max_size=1)
OUTCOMES = ["ok", "failed", "approved", "edited", "denied", "canceled", "client"]
CALLS = st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=3)


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[PartData]:
    """A step: text and calls. Those that need an approval wait until the others have ended."""
    outcomes = draw(CALLS)
    calls = [(f"call-{number}-{index}", outcome) for index, outcome in enumerate(outcomes)]
    data: list[PartData] = [*draw(REASONING), *draw(TEXTS), Step(step=number, max_steps=9, tool_count=len(calls))]
    data += [
        ToolCall(tool_call_id=call, step=number, tool=CLIENTS_TOOL if outcome == "client" else "tool", args={"n": call})
        for call, outcome in calls
    ]
    for call, outcome in calls:
        if outcome in ("ok", "failed"):
            data.append(ToolStatus(tool_call_id=call, state="running"))
            data.append(ToolResult(tool_call_id=call, ok=outcome == "ok", summary="s", duration_ms=1, output="o"))
        elif outcome == "client":
            data.append(ToolResult(tool_call_id=call, ok=True, summary=HANDED_OVER, duration_ms=0))
        elif outcome == "canceled":
            data.append(ToolStatus(tool_call_id=call, state="cancelled"))
    asked = [(call, outcome) for call, outcome in calls if outcome in ("approved", "edited", "denied")]
    data += [ToolStatus(tool_call_id=call, state="blocked", digest="d" * 64) for call, _ in asked]
    for call, outcome in asked:
        data += draw(TAKE_OVER)
        ok = outcome != "denied"
        if ok:
            args = {"edited": call} if outcome == "edited" else None
            data.append(ToolStatus(tool_call_id=call, state="running", reason="Approved.", args=args))
        data.append(ToolResult(tool_call_id=call, ok=ok, summary=outcome, duration_ms=0, output="o"))
    return data


@st.composite
def answers(draw: st.DrawFn) -> list[PartData]:
    """The parts of a whole run: steps, with take-overs between and within them, and its end."""
    data: list[PartData] = []
    for number in range(1, draw(st.integers(1, 4))):
        data += [*draw(TAKE_OVER), *draw(steps(number))]
    data += [*draw(TEXTS), *draw(TAKE_OVER), *draw(TEXTS)]
    failure = draw(st.sampled_from([None, "It failed."]))
    if failure is not None:
        data += [TextDelta(text=f"\n\n{failure}"), RunFailure(code="x", message=failure)]
    reason = "error" if failure else draw(st.sampled_from(["stop", "length", "canceled", "max_steps"]))
    return [*data, Finish(reason=reason, usage=TokenUsage(input_tokens=1, output_tokens=2))]


def as_parts(data: Sequence[PartData]) -> list[Part]:
    encoded = [encode(each) for each in data]
    return [
        Part(
            run_id=RUN.run_id,
            message_id=RUN.message_id,
            seq=seq,
            kind=kind,
            data=msgspec.Raw(text.encode()),
            created_at=NOW,
        )
        for seq, (kind, text) in enumerate(encoded)
    ]


def whole(parts: Sequence[Part]) -> dict[str, Any]:
    encoder = ChunkEncoder(RUN)
    return fold([encoder.start(), *encoder.add(parts, {})])


def divided(parts: Sequence[Part], cuts: Sequence[int]) -> list[Sequence[Part]]:
    """The parts in commits. A failure is one commit with its text and its end."""
    last = next((i - 1 for i, part in enumerate(parts) if part.kind == "error"), len(parts))
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut <= last}), len(parts)]
    return [parts[begin:end] for begin, end in itertools.pairwise(bounds) if begin < end]


CUTS = st.lists(st.integers(0, 80))


@given(answers(), CUTS)
def test_the_message_does_not_depend_on_how_the_parts_were_committed(data: list[PartData], cuts: list[int]) -> None:
    parts = as_parts(data)
    encoder, chunks = ChunkEncoder(RUN), [ChunkEncoder(RUN).start()]
    for batch in divided(parts, cuts):
        encoder = encoder.fork()
        chunks += encoder.add(batch, {})
    assert fold(chunks) == whole(parts)
    assert [chunk["type"] for chunk in chunks].count("finish") == 1
    assert chunks[-1]["type"] == "finish"


@given(answers(), CUTS)
def test_a_stream_that_ends_at_each_pause_and_is_continued_gives_the_whole_message(
    data: list[PartData], cuts: list[int]
) -> None:
    parts = as_parts(data)
    commits = divided(parts, cuts)
    message: dict[str, Any] | None = None
    decided: frozenset[str] = frozenset()
    read: list[Part] = []
    while commits:
        encoder = ChunkEncoder(RUN)
        chunks, _ = encoder.add_decided(read, decided, {})
        chunks = [encoder.start(), *chunks]
        while commits and (not encoder.awaited or encoder.awaited <= decided):
            commit = commits.pop(0)
            read += commit
            chunks += encoder.add(commit, {})
        decided = encoder.awaited
        message = fold([*chunks, *(encoder.pause() if decided else [])], message)
    assert message == whole(parts)
