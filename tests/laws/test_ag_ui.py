"""Laws of AG-UI's events: their fold is the stored content, and any event's id continues exactly."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings

from khala.api.ag_ui.event_encoder import AgentEventEncoder, EventedRun, IdentifiedEvent, reopening
from khala.api.ag_ui.messages import answer_messages
from khala.domain.fold import fold
from khala.domain.parts import Part, PartData, RunFailure
from tests.laws.test_ai_sdk import CLIENTS_TOOL, CUTS, RUN, answers, as_parts, divided

EVENTED = EventedRun(
    thread_id=RUN.thread_id,
    run_id=RUN.run_id,
    message_id=RUN.message_id,
    thread_name="thread",
    run_name="run",
    functions=frozenset({CLIENTS_TOOL}),
)


def whole(parts: Sequence[Part], *, merges: bool = True) -> list[IdentifiedEvent]:
    encoder = AgentEventEncoder(EVENTED)
    return [*encoder.start({}), *encoder.add(parts, {}, merges=merges)]


def folded(events: Sequence[IdentifiedEvent | dict[str, Any]], known: list[Any] | None = None) -> list[Any]:
    """The messages that a client has after these events, and the order that it requires of them."""
    messages: list[Any] = known or []
    opened: set[tuple[str, str]] = set()
    bare = [event.event if isinstance(event, IdentifiedEvent) else event for event in events]
    for event in json.loads(msgspec.json.encode(bare)):
        kind, _, phase = event["type"].rpartition("_")
        name = event.get("toolCallId") or event.get("messageId") or event.get("stepName", "")
        target: Any = next((message for message in messages if message["id"] == event.get("messageId")), None)
        if phase in ("START", "STARTED") and kind != "RUN":
            assert (kind, name) not in opened
            opened.add((kind, name))
        elif phase in ("END", "FINISHED") and kind != "RUN":
            opened.remove((kind, name))
        if event["type"] in ("TEXT_MESSAGE_START", "REASONING_MESSAGE_START") and target is None:
            messages.append({"id": name, "role": event["role"], "content": ""})
        elif event["type"] in ("TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT"):
            assert (kind, name) in opened
            target["content"] += event["delta"]
        elif event["type"] == "TOOL_CALL_START":
            parent = next((message for message in messages if message["id"] == event["parentMessageId"]), None)
            if parent is None:
                messages.append(parent := {"id": event["parentMessageId"], "role": "assistant"})
            called = {"name": event["toolCallName"], "arguments": ""}
            if name not in [call["id"] for call in parent.setdefault("toolCalls", [])]:
                parent["toolCalls"].append({"id": name, "type": "function", "function": called})
        elif event["type"] == "TOOL_CALL_ARGS":
            calls = [call for message in messages for call in message.get("toolCalls", [])]
            next(call for call in calls if call["id"] == name)["function"]["arguments"] += event["delta"]
        elif event["type"] == "TOOL_CALL_RESULT":
            messages.append({"id": event["messageId"], "role": "tool", "toolCallId": name, "content": event["content"]})
        if event["type"] == "RUN_FINISHED":
            assert not opened, "everything is closed before the end"
    return messages


def comparable(messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Messages without reasoning, which no content has, and without an order of results."""
    kept = [{name: one[name] for name in one if name != "error"} for one in messages if one["role"] != "reasoning"]
    results = sorted((one for one in kept if one["role"] == "tool"), key=lambda one: str(one["toolCallId"]))
    return [[one for one in kept if one["role"] != "tool"], results]


@given(answers())
def test_the_fold_of_the_events_is_the_stored_answer(data: list[PartData]) -> None:
    parts = as_parts(data)
    # Arguments that an approver has replaced are in a CUSTOM event: the call stays as the model made it.
    stored = [msgspec.structs.replace(one, args=None) if hasattr(one, "digest") else one for one in data]
    failed = next((one.message for one in data if isinstance(one, RunFailure)), None)
    told = [one for one in stored if getattr(one, "text", None) != f"\n\n{failed}"]
    own = [one.tool_call_id for one in data if getattr(one, "tool", "") == CLIENTS_TOOL]  # type: ignore[union-attr]
    expected = answer_messages(EVENTED.message_id, fold((), told), own)
    assert comparable(folded(whole(parts))) == comparable(json.loads(msgspec.json.encode(expected)))


@given(answers(), CUTS)
def test_the_events_do_not_depend_on_how_the_parts_were_committed(data: list[PartData], cuts: list[int]) -> None:
    parts = as_parts(data)
    encoder = AgentEventEncoder(EVENTED)
    events = encoder.start({})
    for batch in divided(parts, cuts):
        encoder = encoder.fork()
        events += encoder.add(batch, {})
    assert folded(events) == folded(whole(parts))
    unmerged = {event.id: event.event["type"] for event in whole(parts, merges=False)}
    assert {event.id: event.event["type"] for event in events}.items() <= unmerged.items()


@settings(max_examples=20)
@given(answers())
def test_every_event_continues_exactly(data: list[PartData]) -> None:
    parts = as_parts(data)
    events, expected = whole(parts), folded(whole(parts))
    replay = whole(parts, merges=False)
    for number in range(1, len(events)):
        had, last = events[:number], events[number - 1].id
        rest = [event for event in replay if event.id is not None and last is not None and event.id > last]
        assert folded([*had, *rest]) == expected, "a client that drops what it has"
        again: list[IdentifiedEvent | dict[str, Any]] = [
            *reopening([event.event for event in replay if event not in rest]),
            *rest,
        ]
        assert folded(again, folded(had)) == expected, "a client that attaches anew"


@given(answers(), CUTS)
def test_a_stream_that_ends_at_each_pause_and_is_continued_gives_the_whole_answer(
    data: list[PartData], cuts: list[int]
) -> None:
    parts = as_parts(data)
    commits = divided(parts, cuts)
    messages: list[Any] = []
    decided: frozenset[str] = frozenset()
    read: list[Part] = []
    while commits:
        encoder = AgentEventEncoder(EVENTED)
        events, _ = encoder.add_decided(read, decided, {})
        while commits and (not encoder.awaited or set(encoder.awaited) <= decided):
            commit = commits.pop(0)
            read += commit
            events += encoder.add(commit, {})
        decided = frozenset(encoder.awaited)
        messages = folded([*events, *(encoder.pause([{"id": "x"}], []) if decided else [])], messages)
    assert messages == folded(whole(parts))
