"""Maps the exceptions of pydantic-ai, and of its HTTP client, to `ModelFailed`."""

from collections.abc import Sequence

import httpx2
from pydantic_ai import exceptions

from khala.models import failures
from khala.models.failures import FailureKind, FailureTable
from khala.models.port import ModelFailed

# The first match counts, so subclasses come before their bases.
_TABLE: FailureTable = (
    (exceptions.ModelRateLimitError, failures.RATE_LIMITED),
    (exceptions.ModelQuotaExceededError, failures.QUOTA),
    (exceptions.ModelOverloadedError, failures.OVERLOADED),
    (exceptions.ModelUnavailableError, failures.UNAVAILABLE),
    (exceptions.ModelServerError, failures.UNAVAILABLE),
    (exceptions.ModelContextWindowExceededError, failures.TOO_LONG),
    (exceptions.ModelAuthenticationError, failures.INVALID_KEY),
    (exceptions.ModelNotFoundError, failures.UNKNOWN_MODEL),
    (exceptions.ModelRequestRejectedError, failures.REFUSED),
    (exceptions.ModelTimeoutError, failures.TIMEOUT),
    (exceptions.ModelRequestTimeout, failures.TIMEOUT),
    (exceptions.ContentFilterError, failures.CONTENT_FILTERED),
)
_HTTP: FailureTable = (
    (httpx2.TimeoutException, failures.TIMEOUT),
    (httpx2.ConnectError, failures.UNREACHABLE),
    (httpx2.TransportError, failures.CONNECTION_LOST),
)
_STATUSES = {408: failures.TIMEOUT, 413: failures.TOO_LONG}


def from_exception(error: Exception, provider: str, *, midstream: bool, abilities: Sequence[str] = ()) -> ModelFailed:
    """The failure for an exception of pydantic-ai, or for one that it passed on. See `khala.models.failures`."""
    kind = _kind(error)
    if kind is None:
        return failures.from_exception(error, provider, kinds=_HTTP, midstream=midstream, abilities=abilities)
    retry_after = error.retry_after if isinstance(error, exceptions.ModelAPIError) else None
    return failures.from_kind(kind, provider, midstream=midstream, retry_after=retry_after, abilities=abilities)


def _kind(error: Exception) -> FailureKind | None:
    if isinstance(error, exceptions.ModelHTTPError) and error.status_code in _STATUSES:
        return _STATUSES[error.status_code]
    for error_type, kind in _TABLE:
        if isinstance(error, error_type):
            return kind
    if isinstance(error, exceptions.ModelConnectionError):
        return failures.UNREACHABLE if error.phase in ("connect", "pool") else failures.CONNECTION_LOST
    return _uncategorized(error)


def _uncategorized(error: Exception) -> FailureKind | None:
    if isinstance(error, exceptions.ModelHTTPError):
        return failures.REFUSED if error.status_code < 500 else failures.UNAVAILABLE
    if type(error) is exceptions.ModelAPIError and error.in_stream:
        return failures.UNAVAILABLE
    # A plain `ModelAPIError` has a cause if a chunk could not be decoded, and none if a stream ended too early.
    if type(error) is exceptions.ModelAPIError and error.__cause__ is None:
        return failures.CONNECTION_LOST
    return None
