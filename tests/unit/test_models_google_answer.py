"""An answer of the Gemini API, read from its events, and the failures that its errors mean."""

from typing import Any

import msgspec
import pytest

from khala.models.failures import ProviderRefusalError
from khala.models.google import errors
from khala.models.google.content_reader import ContentReader
from khala.models.google.model import GeminiModel
from khala.models.model_names import ModelRef
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming.http_client import HttpClient


def chunk(*parts: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    content = {"content": {"parts": list(parts), "role": "model"}} if parts else {}
    return {"candidates": [{**content, **({"finishReason": finish} if finish else {}), "index": 0}], **fields}


def read_answer(*events: dict[str, Any]) -> tuple[list[TextChunk | ReasoningChunk], ContentReader]:
    answer = ContentReader()
    return list(answer.read(map(msgspec.json.encode, events))), answer


def test_thoughts_and_signatures_are_separate_from_the_text() -> None:
    texts, answer = read_answer(
        chunk({"text": "let me ", "thought": True}, {"text": "see", "thought": True}),
        chunk({"text": "4"}, {"text": "2", "thoughtSignature": "c2ln"}),
        chunk({"text": "", "thoughtSignature": "c2ln"}, {"executableCode": {"code": "1"}}),
        chunk(finish="STOP", usageMetadata={"promptTokenCount": 10, "candidatesTokenCount": 5}),
    )
    assert texts == [ReasoningChunk("let me see"), TextChunk("42")]
    assert (answer.outcome, answer.token_counts) == ("stop", (10, 5))


def test_output_includes_thoughts_and_input_the_tokens_of_googles_tools() -> None:
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3, "toolUsePromptTokenCount": 2}
    first = {**counts, "candidatesTokenCount": 1, "totalTokenCount": 16}
    _, answer = read_answer(chunk({"text": "a"}, usageMetadata=first), chunk(finish="STOP", usageMetadata=counts))
    assert answer.token_counts == (12, 8)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("STOP", "stop"),
        ("OTHER", "stop"),
        ("SOMETHING_NEW", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        (None, None),
    ],
)
def test_each_finish_reason_has_an_outcome(reason: str | None, outcome: str | None) -> None:
    assert read_answer(chunk({"text": "a"}, finish=reason))[1].outcome == outcome


def test_a_blocked_prompt_is_filtered_whatever_follows() -> None:
    _, answer = read_answer({"promptFeedback": {"blockReason": "SAFETY"}}, chunk(finish="STOP"))
    assert answer.outcome == "content_filter"


def test_text_is_expected_after_text_only() -> None:
    call = {"functionCall": {"name": "echo", "args": {}}}
    for events, expected in (
        ([chunk({"text": "x", "thought": True})], False),
        ([chunk({"text": "x"})], True),
        ([chunk({"text": "x"}), chunk(call)], False),
        ([chunk({"text": "x"}, finish="STOP")], False),
    ):
        assert read_answer(*events)[1].expects_text is expected


def error(status: str, message: str = "no", **detail: Any) -> dict[str, Any]:
    return {"message": message, "status": status, "details": [detail] if detail else []}


@pytest.mark.parametrize(
    ("given", "status", "code", "message"),
    [
        (error("RESOURCE_EXHAUSTED"), 429, "rate_limited", "too many requests"),
        (
            error("RESOURCE_EXHAUSTED", violations=[{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]),
            429,
            "refused",
            "quota",
        ),
        (
            error("RESOURCE_EXHAUSTED", violations=[{"quotaId": "GenerateRequestsPerMinutePerProject"}]),
            429,
            "rate_limited",
            "too many requests",
        ),
        (error("INVALID_ARGUMENT", reason="API_KEY_INVALID"), 400, "refused", "API key"),
        (error("FAILED_PRECONDITION", "Please enable billing on your project"), 400, "refused", "quota"),
        (error("FAILED_PRECONDITION", "User location is not supported"), 400, "refused", "refused the request"),
        (
            error("INVALID_ARGUMENT", "exceeds the number of tokens allowed (7)"),
            400,
            "context_exceeded",
            "long",
        ),
        (error("UNAVAILABLE", "The model is overloaded."), 503, "overloaded", "overloaded"),
        (error("UNAVAILABLE"), None, "unavailable", "unavailable"),
        (error("RESOURCE_EXHAUSTED"), None, "rate_limited", "too many requests"),
        ([{"error": error("RESOURCE_EXHAUSTED")}], None, "rate_limited", "too many requests"),
        ("<html>", 502, "unavailable", "unavailable"),
    ],
)
def test_an_error_is_the_failure_that_its_details_name(given: Any, status: int | None, code: str, message: str) -> None:
    parsed = errors.parse(given, status)
    assert parsed.kind.code == code
    assert message in parsed.kind.message


@pytest.mark.parametrize(
    ("delay", "header", "seconds"), [("14s", None, 14), ("0.5s", None, 0.5), ("14s", 3.0, 3), ("soon", None, None)]
)
def test_the_retry_delay_of_the_details_counts_without_a_header(
    delay: str, header: float | None, seconds: float | None
) -> None:
    assert errors.parse(error("RESOURCE_EXHAUSTED", retryDelay=delay), 429, header).retry_after == seconds


def test_an_error_inside_the_stream_comes_after_the_text_before_it() -> None:
    texts: list[TextChunk | ReasoningChunk] = []
    events = [chunk({"text": "a"}), {"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}]
    with pytest.raises(ProviderRefusalError) as caught:
        texts.extend(ContentReader().read(map(msgspec.json.encode, events)))
    assert (texts, caught.value.kind.code) == ([TextChunk("a")], "unavailable")


@pytest.mark.parametrize(
    ("name", "path"),
    [("gemini", "models/gemini"), ("models/gemini", "models/gemini"), ("tunedModels/a", "tunedModels/a")],
)
def test_the_path_names_the_model(name: str, path: str) -> None:
    http = HttpClient("http://localhost:1", {}, connect_timeout=1, read_timeout=1, max_connections=1, idle_seconds=1)
    assert GeminiModel(http, ModelRef("google", name))._target() == f"v1beta/{path}:streamGenerateContent?alt=sse"
