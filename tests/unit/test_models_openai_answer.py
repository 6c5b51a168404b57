"""An answer of an OpenAI-compatible server, read from its events, in the variants that servers write."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from khala.models.failures import ProviderRefusalError
from khala.models.openai.answer_reader import AnswerReader
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming import tool_call_assembly

WEATHER = {"name": "weather", "arguments": '{"city":"Aiur"}'}


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    return msgspec.json.encode({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def call_chunk(*pieces: dict[str, Any]) -> bytes:
    return chunk(tool_calls=list(pieces))


def read_answer(*events: bytes) -> tuple[list[TextChunk | ReasoningChunk], AnswerReader]:
    answer = AnswerReader()
    return list(answer.read(events)), answer


def failing(events: Iterable[bytes], sort: type[Exception]) -> tuple[list[TextChunk | ReasoningChunk], Exception]:
    events_read: list[TextChunk | ReasoningChunk] = []
    with pytest.raises(sort) as caught:
        events_read.extend(AnswerReader().read(events))  # keeps the events before the error
    return events_read, caught.value


def test_data_of_one_read_is_one_event_of_text_and_one_of_reasoning() -> None:
    texts, answer = read_answer(
        chunk(role="assistant", content=""),
        chunk(reasoning_content="let "),
        chunk(reasoning_content="me"),
        chunk(content="4"),
        chunk(content="2"),
        chunk(reasoning="!"),
        chunk("stop"),
        b"[DONE]",
        chunk(content="after the end"),
    )
    assert texts == [ReasoningChunk("let me"), TextChunk("42"), ReasoningChunk("!")]
    assert (answer.texts, answer.finish_reason, answer.is_done) == (["let me", "42", "!"], "stop", True)


def test_text_and_reasoning_in_one_chunk_keep_their_order() -> None:
    assert read_answer(chunk(reasoning="why", content="so"))[0] == [ReasoningChunk("why"), TextChunk("so")]


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":null}',
        b'{"choices":[]}',
        b'{"choices":[{"delta":null,"finish_reason":null}]}',
        b'{"choices":[{"delta":{"content":null,"tool_calls":null,"reasoning":{"odd":1}}}],"usage":null,"error":null}',
        b'{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[]}]}}]}',
        b"",
    ],
)
def test_missing_fields_add_nothing(event: bytes) -> None:
    texts, answer = read_answer(event)
    assert (texts, answer.finish_reason, answer.is_done) == ([], None, False)


def test_content_in_a_list_of_parts_is_text() -> None:
    event = b'{"choices":[{"delta":{"content":[{"type":"text","text":"a"},{"type":"x"},{"type":"text","text":"b"}]}}]}'
    assert read_answer(event)[0] == [TextChunk("ab")]


def test_thinking_tags_count_only_as_separate_tokens() -> None:
    tokens = ("<think>", "hm <think> ", "</think>", "a <think>", "</think>", "b")
    assert read_answer(*(chunk(content=token) for token in tokens))[0] == [
        ReasoningChunk("hm <think> "),
        TextChunk("a <think></think>b"),
    ]


def test_thinking_continues_across_reads() -> None:
    answer = AnswerReader()
    assert list(answer.read([chunk(content="<think>")])) == []
    assert list(answer.read([chunk(content="a")])) == [ReasoningChunk("a")]
    assert list(answer.read([chunk(content="</think>"), chunk(content="b")])) == [TextChunk("b")]


def test_the_last_usage_counts() -> None:
    counts = [
        msgspec.json.encode({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": n}}) for n in (1, 9)
    ]
    _, answer = read_answer(*counts)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 9)


def test_a_refusal_is_filtered_whatever_the_finish_reason() -> None:
    texts, answer = read_answer(chunk(refusal="I can't."), chunk("stop"))
    assert (texts, answer.finish_reason) == ([], "content_filter")


@pytest.mark.parametrize(
    "broken",
    [
        b'{"id": "chatcm',
        b"<html>",
        b'"text"',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":7}]}',
    ],
)
def test_text_before_an_invalid_event_is_passed_on_first(broken: bytes) -> None:
    texts, _ = failing([chunk(content="a"), chunk(content="b"), broken, chunk(content="c")], ValueError)
    assert texts == [TextChunk("ab")]


def test_an_error_in_the_stream_is_raised_with_its_message() -> None:
    error = {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}
    texts, raised = failing([chunk(content="a"), msgspec.json.encode(error)], ProviderRefusalError)
    assert texts == [TextChunk("a")]
    assert isinstance(raised, ProviderRefusalError)
    assert (raised.message, raised.codes, raised.status) == ("slow down", ["rate_limit_exceeded", "requests"], None)


def test_pieces_of_calls_are_put_together_by_index() -> None:
    _, answer = read_answer(
        call_chunk({"index": 1, "id": "b", "function": {"name": "two", "arguments": ""}}),
        call_chunk({"index": 0, "id": "a", "function": {"name": "one", "arguments": '{"n"'}}),
        call_chunk({"index": 1, "function": {"arguments": "{}"}}, {"index": 0, "function": {"arguments": ":1}"}}),
    )
    assert [(use.id, use.name, use.args) for use in answer.tool_calls.uses()] == [
        ("b", "two", {}),
        ("a", "one", {"n": 1}),
    ]


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["the same index", "no index"])
def test_another_id_under_the_same_index_is_another_call(index: dict[str, int]) -> None:
    _, answer = read_answer(*(call_chunk({**index, "id": name, "function": WEATHER}) for name in ("a", "b")))
    assert [(use.id, use.args) for use in answer.tool_calls.uses()] == [
        ("a", {"city": "Aiur"}),
        ("b", {"city": "Aiur"}),
    ]


def test_a_call_in_pieces_without_an_index_is_one() -> None:
    _, answer = read_answer(
        call_chunk({"id": "a", "function": {"name": "weather"}}),
        call_chunk({"function": {"arguments": '{"city"'}}),
        call_chunk({"function": {"arguments": ':"Aiur"}'}}),
    )
    (use,) = answer.tool_calls.uses()
    assert use.args == {"city": "Aiur"}


def test_arguments_may_come_as_an_object() -> None:
    _, answer = read_answer(
        call_chunk({"index": 0, "id": "a", "function": {"name": "weather", "arguments": {"city": "Aiur"}}})
    )
    assert next(answer.tool_calls.uses()).args == {"city": "Aiur"}


def test_a_call_without_a_name_is_dropped() -> None:
    _, answer = read_answer(call_chunk({"index": 0, "id": "a", "function": {"arguments": "{}"}}))
    assert list(answer.tool_calls.uses()) == []


def test_ids_are_made_unique() -> None:
    given = ("x", "x-1", "x", "x", None)
    pieces = ({"index": place, "id": name, "function": WEATHER} for place, name in enumerate(given))
    _, answer = read_answer(*map(call_chunk, pieces))
    ids = [use.id for use in answer.tool_calls.uses()]
    assert ids[:2] == ["x", "x-1"]
    assert len(set(ids)) == 5


def test_calls_are_bounded_in_number_and_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_call_assembly, "MAX_CALLS", 3)
    monkeypatch.setattr(tool_call_assembly, "MAX_ARGUMENT_CHARACTERS", 50)
    many = [call_chunk({"index": place, "id": f"{place}", "function": {"name": "f"}}) for place in range(4)]
    long = [call_chunk({"index": 0, "id": "a", "function": {"name": "f", "arguments": "x" * 10}})] * 6
    assert "3 tool calls" in str(failing(many, tool_call_assembly.ToolCallLimitError)[1])
    assert "50 characters" in str(failing(long, tool_call_assembly.ToolCallLimitError)[1])
