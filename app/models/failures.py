"""Every way in which a provider call fails, as `ModelFailed`: one table from the libraries' errors to our codes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx2
from pydantic_ai import exceptions as given

from app.models.port import ModelFailed


@dataclass(frozen=True)
class _Kind:
    code: str
    message: str
    retryable: bool = False


RATE_LIMITED = _Kind("rate_limited", "{provider} is receiving too many requests.", retryable=True)
QUOTA = _Kind("refused", "The quota at {provider} is used up.")
OVERLOADED = _Kind("overloaded", "{provider} is overloaded.", retryable=True)
UNAVAILABLE = _Kind("unavailable", "{provider} is out of order.", retryable=True)
TIMEOUT = _Kind("timeout", "{provider} stayed silent for too long.", retryable=True)
UNREACHABLE = _Kind("connection_lost", "{provider} could not be reached.", retryable=True)
LOST = _Kind("connection_lost", "The connection to {provider} was lost.", retryable=True)
TOO_LONG = _Kind("context_exceeded", "The conversation is longer than this model can take.")
KEY = _Kind("refused", "{provider} did not accept the key.")
UNKNOWN_MODEL = _Kind("refused", "{provider} does not know this model.")
REFUSED = _Kind("refused", "{provider} refused the request.")
FILTERED = _Kind("refused", "{provider} declined to answer this.")
INVALID = _Kind("invalid_response", "{provider} sent an answer that can't be read.", retryable=True)

# The first match counts: subclasses stand before their bases.
_TABLE: tuple[tuple[type[BaseException], _Kind], ...] = (
    (given.ModelRateLimitError, RATE_LIMITED),
    (given.ModelQuotaExceededError, QUOTA),
    (given.ModelOverloadedError, OVERLOADED),
    (given.ModelUnavailableError, UNAVAILABLE),
    (given.ModelServerError, UNAVAILABLE),
    (given.ModelContextWindowExceededError, TOO_LONG),
    (given.ModelAuthenticationError, KEY),
    (given.ModelNotFoundError, UNKNOWN_MODEL),
    (given.ModelRequestRejectedError, REFUSED),
    (given.ModelTimeoutError, TIMEOUT),
    (given.ModelRequestTimeout, TIMEOUT),
    (given.ContentFilterError, FILTERED),
    (httpx2.TimeoutException, TIMEOUT),
    (httpx2.TransportError, LOST),
)
_STATUSES = {408: TIMEOUT, 413: TOO_LONG}


def of(error: Exception, provider: str, *, midstream: bool, asked: Sequence[str] = ()) -> ModelFailed:
    """The failure to raise from `error`. `midstream`: a part of the answer had come.

    `asked`: what not every model can do, as in "read files"; a refusal without a clear cause may be for that.
    """
    retry_after = error.retry_after if isinstance(error, given.ModelAPIError) else None
    kind = _kind(error)
    if kind is REFUSED and asked:
        kind = replace(kind, message=f"{kind.message} Perhaps this model can't {' or '.join(asked)}.")
    return _failed(kind, provider, midstream=midstream, retry_after=retry_after)


def unfinished(reason: str | None, provider: str, *, midstream: bool) -> ModelFailed:
    """The failure of a stream which ended in good order, but whose finish reason tells that the answer isn't whole.

    None is a stream that merely stopped, as a proxy or a dying server leaves it.
    """
    kind = {None: LOST, "content_filter": FILTERED}.get(reason, INVALID)
    return _failed(kind, provider, midstream=midstream, retry_after=None)


def _failed(kind: _Kind, provider: str, *, midstream: bool, retry_after: float | None) -> ModelFailed:
    return ModelFailed(
        kind.code,
        kind.message.format(provider=provider.capitalize() if provider != "openai" else "OpenAI"),
        retryable=kind.retryable,
        retry_after=None if retry_after is None else max(0.0, retry_after),
        midstream=midstream,
    )


def _kind(error: Exception) -> _Kind:
    if isinstance(error, given.ModelHTTPError) and error.status_code in _STATUSES:
        return _STATUSES[error.status_code]
    for sort, kind in _TABLE:
        if isinstance(error, sort):
            return kind
    if isinstance(error, given.ModelConnectionError):
        return UNREACHABLE if error.phase in ("connect", "pool") else LOST
    return _uncategorized(error)


def _uncategorized(error: Exception) -> _Kind:
    if isinstance(error, given.ModelHTTPError):
        return REFUSED if error.status_code < 500 else UNAVAILABLE
    if type(error) is given.ModelAPIError and error.in_stream:
        return UNAVAILABLE
    # The library's plain error has a cause where a chunk could not be decoded, and none where a stream ended too early.
    if type(error) is given.ModelAPIError and error.__cause__ is None:
        return LOST
    return INVALID
