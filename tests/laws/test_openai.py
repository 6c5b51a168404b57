"""Laws of completions in OpenAI's protocol and of their events: they do not depend on how the parts are batched."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from khala.api.openai.chat_completion import ChatCompletionBuilder
from khala.api.openai.run_events import (
    EventEncoder,
    GroupEndEvent,
    GroupStartEvent,
    RunEvent,
    TaskUpdateEvent,
    TextEvent,
)
from khala.domain import ids
from khala.domain.chat import SendResult
from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    BlobRef,
    Finish,
    Notice,
    Part,
    PartData,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    encode,
    without_failure_text,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SENT = SendResult(
    thread_id=ids.new(), user_message_id=ids.new(), assistant_message_id=ids.new(), run_id=ids.new(), revision=1
)
FINISH = Finish(reason="stop", usage=TokenUsage(input_tokens=1, output_tokens=2))
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


def stored(*data_of_parts: PartData) -> list[Part]:
    """These parts as they are read from the tables, a millisecond apart."""
    parts = []
    for seq, data in enumerate(data_of_parts):
        kind, text = encode(data)
        at = NOW + timedelta(milliseconds=seq)
        parts.append(
            Part(
                run_id=SENT.run_id,
                message_id=SENT.assistant_message_id,
                seq=seq,
                kind=kind,
                data=msgspec.Raw(text.encode()),
                created_at=at,
            )
        )
    return parts


def batches(parts: list[Part], cuts: list[int]) -> list[list[Part]]:
    """The parts, split at these places."""
    places = sorted({cut % (len(parts) + 1) for cut in cuts} | {0, len(parts)})
    return [parts[start:end] for start, end in itertools.pairwise(places)]


async def unread(_: BlobRef) -> str:
    raise AssertionError("no part has a blob")


def answered(
    parts: list[list[Part]], *functions: str, **options: bool
) -> tuple[ChatCompletionBuilder, list[dict[str, Any]]]:
    answer = ChatCompletionBuilder(SENT, model="khala", created=0, functions=frozenset(functions), **options)

    async def deltas() -> list[dict[str, Any]]:
        return [delta for batch in parts for delta in await answer.add(batch, unread)]

    return answer, asyncio.run(deltas())


@given(st.lists(words, max_size=10), st.lists(st.integers(0, 100)))
def test_however_text_comes_the_chunks_and_the_whole_say_it(texts: list[str], cuts: list[int]) -> None:
    parts = stored(*[TextDelta(text=text) for text in texts], FINISH)
    answer, deltas = answered(batches(parts, cuts))
    assert "".join(delta["content"] for delta in deltas) == "".join(texts)
    assert answer.completion()["choices"][0]["message"]["content"] == "".join(texts)


@given(st.lists(words, max_size=5), st.lists(words, max_size=5), st.lists(st.integers(0, 100)), st.booleans())
def test_an_answer_that_failed_is_never_in_a_checked_stream(
    failed: list[str], good: list[str], cuts: list[int], with_step: bool
) -> None:
    before: list[PartData] = [TextDelta(text="before"), Step(step=1, max_steps=9, tool_count=0)] if with_step else []
    texts = [TextDelta(text=text) for text in good]
    repair = Notice(code=FORMAT_REPAIR_NOTICE, message="answer: not JSON")
    parts = stored(*before, *[TextDelta(text=text) for text in failed], repair, *texts, FINISH)
    answer, deltas = answered(batches(parts, cuts), streams=True, holds=True)
    whole = "".join(good)
    separated = "before\n\n" + whole if with_step and whole else "before" if with_step else whole
    assert "".join(delta["content"] for delta in deltas) == separated
    if whole:
        assert answer.completion()["choices"][0]["message"]["content"] == whole


@given(words, words, st.booleans())
def test_a_failure_is_told_once_and_nothing_else_is_lost(said: str, why: str, joined: bool) -> None:
    deltas = [TextDelta(text=f"{said}\n\n{why}")] if joined else [TextDelta(text=said), TextDelta(text=f"\n\n{why}")]
    parts = stored(*deltas, RunFailure(code="internal", message=why), FINISH)
    texts = [data.text for _, data in without_failure_text(parts) if isinstance(data, TextDelta)]
    assert "".join(texts) == said


STEP = st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), min_size=1, max_size=6)
"""For each call of a step: whether it succeeds, and when it ends."""


@given(st.lists(STEP, max_size=4), st.lists(st.integers(0, 100)))
def test_groups_begin_whole_and_end_when_all_tasks_have(steps: list[list[tuple[bool, int]]], cuts: list[int]) -> None:
    parts: list[PartData] = []
    for number, calls in enumerate(steps, 1):
        names = [f"call_{number}_{place}" for place in range(len(calls))]
        parts += [TextDelta(text=f"{number}"), Step(step=number, max_steps=9, tool_count=len(calls))]
        parts += [ToolCall(tool_call_id=name, step=number, tool="echo", args={}) for name in names]
        parts += [ToolStatus(tool_call_id=name, state="running") for name in names]
        for name, (ok, _) in sorted(zip(names, calls, strict=True), key=lambda pair: pair[1][1]):
            parts.append(ToolResult(tool_call_id=name, ok=ok, summary="Over.", duration_ms=1))
    events = encoded_events(batches(stored(*parts, FINISH), cuts))
    assert "".join(event.text for event in events if isinstance(event, TextEvent)) == "".join(
        str(number) for number in range(1, len(steps) + 1)
    )
    starts = [event for event in events if isinstance(event, GroupStartEvent)]
    ends = [event for event in events if isinstance(event, GroupEndEvent)]
    assert [one.step for one in starts] == [one.step for one in ends] == list(range(1, len(steps) + 1))
    for start, end, calls in zip(starts, ends, steps, strict=True):
        of_group = [
            event for event in events if isinstance(event, TaskUpdateEvent) and event.group_id == start.group_id
        ]
        assert events.index(start) < min(map(events.index, of_group))
        assert max(map(events.index, of_group)) < events.index(end)
        ended = [event.task_id for event in of_group if event.state != "running"]
        assert sorted(ended) == sorted(task.task_id for task in start.tasks)
        assert (end.completed, end.failed) == (sum(ok for ok, _ in calls), sum(not ok for ok, _ in calls))
        assert {event.detail_token for event in of_group} == {task.detail_token for task in start.tasks}


def encoded_events(parts: list[list[Part]]) -> list[RunEvent]:
    encoder = EventEncoder(SENT)
    events: list[RunEvent] = []
    for batch in parts:
        for part, data in without_failure_text(batch):
            events += encoder.encode(data, part.created_at)
            if encoder.unannounced_calls:
                events.append(encoder.announce_group({call: f"token of {call}" for call in encoder.unannounced_calls}))
    return events
