"""The errors of pydantic-ai, and of HTTP beneath it, as `ModelFailed`: tables from exceptions to our kinds."""

from collections.abc import Sequence

import httpx2
from pydantic_ai import exceptions as given

from khala.models import failures
from khala.models.failures import FailureKind, FailureTable
from khala.models.port import ModelFailed

# The first match counts: subclasses stand before their bases.
_TABLE: FailureTable = (
    (given.ModelRateLimitError, failures.RATE_LIMITED),
    (given.ModelQuotaExceededError, failures.QUOTA),
    (given.ModelOverloadedError, failures.OVERLOADED),
    (given.ModelUnavailableError, failures.UNAVAILABLE),
    (given.ModelServerError, failures.UNAVAILABLE),
    (given.ModelContextWindowExceededError, failures.TOO_LONG),
    (given.ModelAuthenticationError, failures.KEY),
    (given.ModelNotFoundError, failures.UNKNOWN_MODEL),
    (given.ModelRequestRejectedError, failures.REFUSED),
    (given.ModelTimeoutError, failures.TIMEOUT),
    (given.ModelRequestTimeout, failures.TIMEOUT),
    (given.ContentFilterError, failures.FILTERED),
)
_HTTP: FailureTable = (
    (httpx2.TimeoutException, failures.TIMEOUT),
    (httpx2.ConnectError, failures.UNREACHABLE),
    (httpx2.TransportError, failures.LOST),
)
_STATUSES = {408: failures.TIMEOUT, 413: failures.TOO_LONG}


def of(error: Exception, provider: str, *, midstream: bool, asked: Sequence[str] = ()) -> ModelFailed:
    """The failure to raise from `error`,: the library's, or what it let through."""
    kind = _kind(error)
    if kind is None:
        return failures.of(error, provider, kinds=_HTTP, midstream=midstream, asked=asked)
    retry_after = error.retry_after if isinstance(error, given.ModelAPIError) else None
    return failures.failed(kind, provider, midstream=midstream, retry_after=retry_after, asked=asked)


def _kind(error: Exception) -> FailureKind | None:
    if isinstance(error, given.ModelHTTPError) and error.status_code in _STATUSES:
        return _STATUSES[error.status_code]
    for sort, kind in _TABLE:
        if isinstance(error, sort):
            return kind
    if isinstance(error, given.ModelConnectionError):
        return failures.UNREACHABLE if error.phase in ("connect", "pool") else failures.LOST
    return _uncategorized(error)


def _uncategorized(error: Exception) -> FailureKind | None:
    if isinstance(error, given.ModelHTTPError):
        return failures.REFUSED if error.status_code < 500 else failures.UNAVAILABLE
    if type(error) is given.ModelAPIError and error.in_stream:
        return failures.UNAVAILABLE
    # The library's plain error has a cause where a chunk could not be decoded, and none where a stream ended too early.
    if type(error) is given.ModelAPIError and error.__cause__ is None:
        return failures.LOST
    return None
