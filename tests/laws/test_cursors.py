"""The law of one cursor: a client leaves one protocol anywhere, continues over another, and has the exact whole.

The feed is the same over WebSockets, server-sent events and Durable Streams: they differ in how a revision is written.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from khala.api.ag_ui.event_encoder import AgentEventEncoder
from khala.api.ai_sdk.chunk_encoder import ChunkEncoder
from khala.api.cursors.positions import AgentEventPositions, ResponseEventPositions
from khala.api.responses.response_encoder import ResponseEncoder
from khala.domain.generation import ResponseFormat
from khala.domain.parts import (
    Finish,
    Part,
    PartData,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    without_failure_text,
)
from khala.domain.streams import offsets
from tests.laws.test_ag_ui import EVENTED
from tests.laws.test_ai_sdk import CLIENTS_TOOL, CUTS, RUN, answers, as_parts, divided
from tests.laws.test_responses import header_of
from tests.support.known_answer import KnownAnswer

Frame = Any


class Stored:
    """The log of a run: its parts in commits, each of which is a revision of the thread."""

    def __init__(self, commits: Sequence[Sequence[Part]]) -> None:
        self.commits = commits
        self.parts = [part for commit in commits for part in commit]
        self.agent_events = AgentEventPositions(EVENTED, self.parts)
        self.response_events = ResponseEventPositions(header_of(), self.parts)

    def revision_at(self, position: int) -> int:
        """As the statement of the store: the last revision that has nothing from the position on."""
        ends = itertools.accumulate(map(len, self.commits), initial=0)
        return max(revision for revision, end in enumerate(ends) if end <= position)


class Feed:
    """The feed by a form of its cursor: a frame is a commit with its revision."""

    def __init__(self, write: Callable[[int], str], read: Callable[[str], int]) -> None:
        self._write = write
        self._read = read

    def frames(self, log: Stored) -> list[Frame]:
        return [(self._write(revision), plain(commit)) for revision, commit in enumerate(log.commits, start=1)]

    def position(self, frames: Sequence[Frame], _: Stored) -> int:
        return frames[-1][1][-1]["seq"] + 1 if frames else 0

    def resume(self, log: Stored, position: int) -> list[Frame]:
        after = self._read(self._write(log.revision_at(position)))
        later = [frame for frame in self.frames(log) if self._read(frame[0]) > after]
        return [(revision, [part for part in commit if part["seq"] >= position]) for revision, commit in later]

    def apply(self, frames: Sequence[Frame], known: KnownAnswer) -> None:
        known.apply_parts(part for _, commit in frames for part in commit)


class AiSdk:
    """Chunks. There is no cursor: a client that comes back replaces its message by the replay."""

    def frames(self, log: Stored) -> list[Frame]:
        encoder = ChunkEncoder(RUN)
        frames: list[Frame] = [(None, encoder.start())]
        for commit in log.commits:
            encoder = encoder.fork()
            chunks = encoder.add(commit, {})
            frames += zip(encoder.positions, json.loads(msgspec.json.encode(chunks)), strict=True)
        return frames

    def position(self, frames: Sequence[Frame], _: Stored) -> int:
        return next((position for position, _ in reversed(frames) if position is not None), 0)

    def apply(self, frames: Sequence[Frame], known: KnownAnswer) -> None:
        known.apply_chunks(chunk for _, chunk in frames)


class AgUi:
    """Events of AG-UI, each with its id."""

    def frames(self, log: Stored) -> list[Frame]:
        encoder = AgentEventEncoder(EVENTED)
        events = encoder.start({})
        for commit in log.commits:
            encoder = encoder.fork()
            events += encoder.add(commit, {})
        return [(event.id, json.loads(msgspec.json.encode(event.event))) for event in events]

    def position(self, frames: Sequence[Frame], log: Stored) -> int:
        return log.agent_events.position(frames[-1][0]) if frames else 0

    def resume(self, log: Stored, position: int) -> list[Frame]:
        encoder = AgentEventEncoder(EVENTED)
        events = [*encoder.start({}), *encoder.add(log.parts, {}, merges=False)]
        after = log.agent_events.event_id(position)
        encoded = [(event.id, json.loads(msgspec.json.encode(event.event))) for event in events]
        return [event for event in encoded if event[0] is not None and event[0] > after]

    def apply(self, frames: Sequence[Frame], known: KnownAnswer) -> None:
        known.apply_agent_events(event for _, event in frames)


class Responses:
    """Events of OpenAI's Responses API, by their sequence number."""

    def frames(self, log: Stored) -> list[Frame]:
        encoder = ResponseEncoder(header_of())
        events = encoder.start()
        for commit in log.commits:
            events += encoder.add(commit, {})
        return list(json.loads(msgspec.json.encode(events)))

    def position(self, frames: Sequence[Frame], log: Stored) -> int:
        return log.response_events.position(frames[-1]["sequence_number"]) if frames else 0

    def resume(self, log: Stored, position: int) -> list[Frame]:
        after = log.response_events.sequence_number(position)
        return [event for event in self.frames(log) if event["sequence_number"] > after]

    def apply(self, frames: Sequence[Frame], known: KnownAnswer) -> None:
        known.apply_response_events(frames)


PROTOCOLS: dict[str, Any] = {
    "WebSocket": Feed(str, int),
    "server-sent events": Feed("id: {}".format, lambda text: int(text.removeprefix("id: "))),
    "Durable Streams": Feed(offsets.format_offset, offsets.parse_offset),
    "AI SDK": AiSdk(),
    "AG-UI": AgUi(),
    "Responses": Responses(),
}


def plain(commit: Sequence[Part]) -> list[dict[str, Any]]:
    """The parts as JSON. Clients of other protocols get a failure once, and not also as text."""
    return [
        json.loads(msgspec.json.encode(part)) | {"data": json.loads(msgspec.json.encode(data))}
        for part, data in without_failure_text(commit)
    ]


def known_after(protocol: Any, frames: Sequence[Frame], known: KnownAnswer | None = None) -> KnownAnswer:
    found = known or KnownAnswer([CLIENTS_TOOL])
    protocol.apply(frames, found)
    return found


@given(answers(), CUTS, st.sampled_from([*PROTOCOLS]), st.data())
def test_whoever_leaves_one_protocol_continues_exactly_over_each_other_one(
    data: list[PartData], cuts: list[int], left: str, drawn: st.DataObject
) -> None:
    log = Stored(divided(as_parts(data), cuts))
    whole = known_after(PROTOCOLS["WebSocket"], PROTOCOLS["WebSocket"].frames(log)).all
    before = PROTOCOLS[left]
    frames = before.frames(log)
    count = drawn.draw(st.integers(0, len(frames)), label="frames before the client leaves")
    position = before.position(frames[:count], log)
    for name, protocol in PROTOCOLS.items():
        if isinstance(protocol, AiSdk):
            known = known_after(protocol, protocol.frames(log))
        else:
            known = known_after(protocol, protocol.resume(log, position), known_after(before, frames[:count]))
        assert known.all == whole, name


@given(answers(), CUTS)
def test_a_position_is_the_same_place_for_each_protocol(data: list[PartData], cuts: list[int]) -> None:
    log = Stored(divided(as_parts(data), cuts))
    for position in range(len(log.parts) + 1):
        event_id = log.agent_events.event_id(position)
        number = log.response_events.sequence_number(position)
        assert log.agent_events.position(event_id) <= position
        assert log.agent_events.event_id(log.agent_events.position(event_id)) == event_id
        assert log.response_events.sequence_number(log.response_events.position(number)) == number


def test_text_that_waits_for_its_check_is_at_no_position_before_it_is_sent() -> None:
    checked = header_of(ResponseFormat(type="json_object"))
    texts: list[PartData] = [ReasoningDelta(text="Hm."), TextDelta(text='{"a"'), TextDelta(text=": 1}")]
    parts = as_parts([*texts, Finish(reason="stop", usage=TokenUsage())])
    events = ResponseEventPositions(checked, parts)
    assert [events.sequence_number(position) for position in (1, 2, 3)] == [events.sequence_number(1)] * 3
    assert events.position(events.sequence_number(3)) == 1, "the client has no text yet"
    assert events.position(events.sequence_number(4)) == 4


def test_edited_arguments_are_at_no_position_of_a_response_before_the_end_of_their_call() -> None:
    calls = [ToolCall(tool_call_id=name, step=1, tool="tool", args={}) for name in "ab"]
    edited = ToolStatus(tool_call_id="a", state="running", args={"n": 1})
    ends = [ToolResult(tool_call_id=name, ok=True, summary="s", duration_ms=1) for name in "ba"]
    events = ResponseEventPositions(header_of(), as_parts([*calls, edited, *ends]))
    assert [events.position(events.sequence_number(position)) for position in (2, 3, 4)] == [2, 2, 2]
    assert events.position(events.sequence_number(5)) == 5
