"""An answer of Anthropic's Messages API, read from its events, and the limit of an answer's tokens."""

from typing import Any

import msgspec
import pytest

from khala.models.anthropic import message_reader, request_body
from khala.models.anthropic.message_reader import MessageReader
from khala.models.failures import ProviderRefusalError
from khala.models.port import ReasoningChunk, TextChunk, ToolUse

START = {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 10, "output_tokens": 1}}}
STOP = {"type": "message_stop"}


def block(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def end(reason: str | None, **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def read_answer(*events: dict[str, Any]) -> tuple[list[TextChunk | ReasoningChunk], MessageReader]:
    answer = MessageReader()
    return list(answer.read(map(msgspec.json.encode, events))), answer


def test_thinking_and_its_signature_are_separate_from_the_text() -> None:
    texts, answer = read_answer(
        START,
        block(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="let me "),
        delta(0, type="thinking_delta", thinking="see"),
        delta(0, type="signature_delta", signature="EqQBCgIYAhIM"),
        {"type": "content_block_stop", "index": 0},
        block(1, type="redacted_thinking", data="c2VjcmV0"),
        block(2, type="text", text=""),
        delta(2, type="text_delta", text="4"),
        {"type": "ping"},
        delta(2, type="text_delta", text="2"),
        delta(2, type="citations_delta", citation={"type": "char_location", "cited_text": "x"}),
        end("end_turn", output_tokens=7),
        STOP,
    )
    assert texts == [ReasoningChunk("let me see"), TextChunk("42")]
    assert (answer.outcome, answer.is_done, answer.token_counts) == ("stop", True, (10, 7))


def test_input_includes_the_tokens_of_the_cache_and_later_counts_replace_earlier_ones() -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1}
    _, answer = read_answer(
        {"type": "message_start", "message": {"usage": usage}}, end("end_turn", input_tokens=5, output_tokens=9)
    )
    assert answer.token_counts == (125, 9)


def test_calls_of_the_models_tools_are_assembled_and_those_of_the_providers_are_ignored() -> None:
    _, answer = read_answer(
        START,
        block(0, type="server_tool_use", id="srv_1", name="web_search", input={}),
        delta(0, type="input_json_delta", partial_json='{"query":"x"}'),
        block(1, type="web_search_tool_result", tool_use_id="srv_1", content=[]),
        block(2, type="tool_use", id="toolu_1", name="echo", input={}),
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"text": '),
        delta(2, type="input_json_delta", partial_json='"a"}'),
        block(3, type="tool_use", id="toolu_2", name="read", input={"path": "b"}),
        end("tool_use", output_tokens=7),
        STOP,
    )
    assert list(answer.tool_calls.uses()) == [
        ToolUse(id="toolu_1", name="echo", args={"text": "a"}),
        ToolUse(id="toolu_2", name="read", args={"path": "b"}),
    ]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
        (None, None),
    ],
)
def test_each_stop_reason_has_an_outcome(reason: str | None, outcome: str | None) -> None:
    _, answer = read_answer(START, end(reason, output_tokens=1), STOP)
    assert answer.outcome == outcome


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("overloaded_error", "Overloaded", "overloaded"),
        ("rate_limit_error", "slow down", "rate_limited"),
        ("api_error", "Internal server error", "unavailable"),
        ("timeout_error", "took too long", "unavailable"),
        ("invalid_request_error", "bad", "refused"),
        ("invalid_request_error", "prompt is too long: 2 tokens > 1 maximum", "context_exceeded"),
        ("invalid_request_error", "Your credit balance is too low to access the API", "refused"),
        ("authentication_error", "invalid key", "refused"),
        ("billing_error", "pay first", "refused"),
        ("something_new", "?", "unavailable"),
    ],
)
def test_an_error_event_is_the_failure_of_its_type_after_the_text_before_it(kind: str, message: str, code: str) -> None:
    texts: list[TextChunk | ReasoningChunk] = []
    event = {"type": "error", "error": {"type": kind, "message": message}}
    events = [START, delta(0, type="text_delta", text="a"), event]
    with pytest.raises(ProviderRefusalError) as caught:
        texts.extend(MessageReader().read(map(msgspec.json.encode, events)))
    assert texts == [TextChunk("a")]
    assert (caught.value.kind.code, caught.value.message) == (code, message)


def test_a_used_up_balance_is_a_quota_and_not_a_bad_request() -> None:
    error = message_reader.parse_error({"type": "invalid_request_error", "message": "Your credit balance is too low"})
    assert error.kind.message == "The quota at {provider} is used up."


def test_text_is_expected_after_text_only() -> None:
    for events, expected in (
        ([START], False),
        ([delta(0, type="thinking_delta", thinking="x")], False),
        ([delta(0, type="text_delta", text="x")], True),
        ([delta(0, type="text_delta", text="x"), block(1, type="tool_use", id="a", name="b", input={})], False),
        ([delta(0, type="text_delta", text="x"), end("end_turn")], False),
    ):
        assert read_answer(*events)[1].expects_text is expected


@pytest.mark.parametrize(
    ("model", "requested", "limit"),
    [
        ("claude-sonnet-5-5", None, 128_000),
        ("claude-haiku-5-5-20261001", None, 128_000),
        ("claude-haiku-4-5", None, 64_000),
        ("claude-opus-4-1", None, 4096),
        ("claude-opus-4@20250514", None, 4096),
        ("claude-3-5-haiku-latest", None, 4096),
        ("claude-next", None, 16_384),
        ("claude-haiku-4-5", 9, 9),
        ("claude-haiku-4-5", 100_000, 64_000),
        ("claude-next", 100_000, 100_000),
    ],
)
def test_the_limit_of_an_answer_is_what_was_requested_or_what_the_model_can_write(
    model: str, requested: int | None, limit: int
) -> None:
    assert request_body.max_tokens(model, requested) == limit
