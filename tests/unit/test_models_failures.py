"""Error responses of providers, and the failures that they become."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from khala.models import failures
from khala.models.failures import ProviderRefusalError
from khala.models.streaming.error_responses import retry_after


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"code": "invalid_api_key"}, failures.INVALID_KEY),
        (403, {}, failures.INVALID_KEY),
        (402, {}, failures.QUOTA),
        (404, "no such model", failures.UNKNOWN_MODEL),
        (400, {"code": "model_not_found"}, failures.UNKNOWN_MODEL),
        (400, {"code": "context_length_exceeded"}, failures.TOO_LONG),
        (400, {"message": "This model's maximum context length is 8192 tokens."}, failures.TOO_LONG),
        (400, {"message": "Please reduce the length of the messages"}, failures.TOO_LONG),
        (400, {"message": "the request exceeds the available context size"}, failures.TOO_LONG),
        (413, {"code": "insufficient_quota"}, failures.TOO_LONG),
        (408, {}, failures.TIMEOUT),
        (422, {"code": 422, "message": "bad"}, failures.REFUSED),
        (429, {"code": "rate_limit_exceeded"}, failures.RATE_LIMITED),
        (429, {"type": "insufficient_quota", "code": None}, failures.QUOTA),
        (500, {"type": "server_error"}, failures.UNAVAILABLE),
        (502, "<html>", failures.UNAVAILABLE),
        (503, {"message": "gone for a moment"}, failures.UNAVAILABLE),
        (503, {"message": "The engine is currently Overloaded"}, failures.OVERLOADED),
        (500, {"code": "server_is_overloaded"}, failures.OVERLOADED),
        (529, None, failures.OVERLOADED),
        (302, "", failures.INVALID_RESPONSE),
        (204, "", failures.INVALID_RESPONSE),
        (None, {"code": "rate_limit_exceeded"}, failures.RATE_LIMITED),
        (None, {"type": "service_unavailable_error"}, failures.UNAVAILABLE),
        (None, {"code": 429, "message": "upstream"}, failures.RATE_LIMITED),
        (None, {"code": "503"}, failures.UNAVAILABLE),
        (None, {"code": "overloaded_error"}, failures.OVERLOADED),
        (None, {"code": 7, "message": "odd"}, failures.UNAVAILABLE),
        (None, "something broke", failures.UNAVAILABLE),
        (None, ["odd"], failures.UNAVAILABLE),
    ],
)
def test_each_refusal_has_its_failure_code(status: int | None, error: Any, kind: failures.FailureKind) -> None:
    assert ProviderRefusalError.parse(error, status=status).kind == kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "soon"}, 7.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu Jan  1 00:00:00 1970"}, 0.0),
        ({"retry-after": "Thu, 99 Jan 1970 00:00:00 GMT"}, None),
    ],
)
def test_a_valid_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_date_to_come_is_a_wait() -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    found = retry_after({"retry-after": moment})
    assert found is not None
    assert 3000 < found <= 3600


def test_only_a_refusal_without_a_cause_is_attributed_to_the_request() -> None:
    features = ["use tools"]
    plain = failures.from_exception(
        ProviderRefusalError("no", status=400), "openai", midstream=False, abilities=features
    )
    key = failures.from_exception(ProviderRefusalError("no", status=401), "openai", midstream=False, abilities=features)
    assert plain.message == "OpenAI refused the request. This model may not be able to use tools."
    assert key.message == "OpenAI rejected the API key."


def test_a_refused_option_is_named_in_the_providers_words() -> None:
    error = {"message": "Unsupported value {2}: 'temperature'.", "param": "temperature", "code": "unsupported_value"}
    kind = ProviderRefusalError.parse(error, status=400).kind
    failure = failures.from_kind(kind, "openai", midstream=False)
    assert failure.code == "option_refused"
    assert failure.message.endswith("refused an option of the request: Unsupported value {2}: 'temperature'.")
    assert not failure.retryable


@pytest.mark.parametrize(("param", "status"), [("messages[0]", 400), ("temperature", 401), (7, 400), (None, 400)])
def test_another_refusal_keeps_the_providers_words_to_itself(param: Any, status: int) -> None:
    kind = ProviderRefusalError.parse({"message": "sk-secret", "param": param}, status=status).kind
    assert "sk-secret" not in kind.message
