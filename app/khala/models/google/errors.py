"""Reads the errors of the Gemini API, whose details tell apart what has the same status.

https://ai.google.dev/gemini-api/docs/troubleshooting
"""

from collections.abc import Iterator, Mapping
from typing import Any

from khala.models.failures import ProviderRefusalError

STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The HTTP statuses of Google's own."""


def parse(error: Any, status: int | None = None, retry_after: float | None = None) -> ProviderRefusalError:
    """Parse the error of a response, or of a stream, which has no status of its own.

    `retry_after`: seconds by the response's header; by default those of the error's details.
    """
    fields = _fields(error)
    parsed = ProviderRefusalError.parse(
        fields, status=status, retry_after=_retry_delay(fields) if retry_after is None else retry_after
    )
    return ProviderRefusalError(
        parsed.message,
        codes=[*_codes(fields), *parsed.codes],
        status=parsed.status or STATUSES.get(str(fields.get("status"))),
        retry_after=parsed.retry_after,
    )


def _fields(error: Any) -> Mapping[str, Any]:
    """The error as an object. Some responses are a list with an object that has it."""
    if isinstance(error, list):
        first = error[0] if error else None
        error = first.get("error") if isinstance(first, dict) else None
    return error if isinstance(error, dict) else {"message": error}


def _codes(fields: Mapping[str, Any]) -> Iterator[str]:
    """The codes of `khala.models.failures` for reasons that only the details or the message name."""
    if any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(fields)):
        yield "invalid_api_key"
    exceeded = [violation for detail in _details(fields) for violation in _objects(detail.get("violations"))]
    if any("PerDay" in str(violation.get("quotaId")) for violation in exceeded):
        yield "insufficient_quota"
    if fields.get("status") == "FAILED_PRECONDITION" and "billing" in str(fields.get("message")).lower():
        yield "insufficient_quota"


def _retry_delay(fields: Mapping[str, Any]) -> float | None:
    """The seconds of `google.rpc.RetryInfo`, such as `14s` or `0.5s`."""
    for detail in _details(fields):
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                seconds = float(delay[:-1])
            except ValueError:
                continue
            if 0 <= seconds < float("inf"):
                return seconds
    return None


def _details(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _objects(fields.get("details"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
