"""The errors of the client: one class for each kind of answer, all below `KhalaError`."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """The place of an error in a request, as in `options.budget.usd`, and its message."""

    path: str = ""
    message: str = ""


class KhalaError(Exception):
    """Base of all errors of this package.

    `code` is stable and for programs, the message is for people. `status` is that of the HTTP answer, None if there
    was none. `errors` locates what is wrong in the request.
    """

    def __init__(
        self, message: str, *, code: str = "", status: int | None = None, errors: Sequence[FieldError] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.errors = tuple(errors)

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return False


class InvalidSetting(KhalaError, ValueError):
    """The address of the server, a token, a key or a user id is malformed. Nothing was sent."""


class InvalidRequest(KhalaError):
    """The request is malformed, too large, or of a type that the server does not take: 400, 405, 413, 415, 416, 421."""


class Unauthenticated(KhalaError):
    """A credential is missing, invalid, revoked or expired: 401."""


class Forbidden(KhalaError):
    """The caller may not do this: 403."""


class NotFound(KhalaError):
    """There is no such resource, or the caller may not know of it: 404 and 410."""


class Conflict(KhalaError):
    """The request conflicts with the stored state: 409. Codes: `conflict`, `run_active`, `already_decided`."""


class RateLimited(KhalaError):
    """A limit is reached: 429, with the code `rate_limited`, or `budget_exhausted` for money, tokens, runs and time.

    `limit` is the name of the limit, as in `usd_per_day`, `scope` says what it counts for, and `most` is the most that
    it allows: None where the server does not say. `retry_after` are the seconds after which the same request may
    succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        limit: str | None = None,
        scope: str | None = None,
        most: Decimal | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message, **more)
        self.retry_after = retry_after
        self.limit = limit
        self.scope = scope
        self.most = most


class ServerError(KhalaError):
    """The server failed, or is not available at the moment: 5xx, or an answer that is not one of Khala."""

    def __init__(self, message: str, *, retry_after: float | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status is not None and self.status >= 500


class ConnectionFailed(KhalaError):
    """There was no answer, or the answer broke off. The server may have carried out the request all the same."""

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return True


class RunFailed(KhalaError):
    """A run ended with an error. `code` is that of its `error` part, and `text` is what it had written before."""

    def __init__(self, message: str, *, code: str, text: str, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.text = text
        self.retry_after = retry_after


class AnswerReplaced(KhalaError):
    """Text that was already yielded does not fit the requested format, and the model writes the answer again.

    `result()` returns the answer that replaces it.
    """


class _Problem(msgspec.Struct, frozen=True):
    title: str = ""
    detail: str = ""
    code: str = ""
    errors: Sequence[FieldError] = ()
    limit: str | None = None
    scope: str | None = None
    most: Decimal | None = None


_BY_STATUS: dict[int, type[KhalaError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
}


def error_of(status: int, body: bytes, retry_after: str | None) -> KhalaError:
    """The error of an answer whose status is not 2xx. `retry_after` is the value of that header."""
    problem = _problem(body)
    message = problem.detail or problem.title or f"The server answered {status}."
    fields: dict[str, Any] = {"code": problem.code, "status": status, "errors": problem.errors}
    if status == 429:
        limit: dict[str, Any] = {"limit": problem.limit, "scope": problem.scope, "most": problem.most}
        return RateLimited(message, retry_after=_seconds(retry_after), **limit, **fields)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message, **fields)
    if 400 <= status < 500 and status != 408:
        return InvalidRequest(message, **fields)
    if status == 408:
        return ConnectionFailed(message, **fields)
    return ServerError(message, retry_after=_seconds(retry_after), **fields)


_BY_CODE: dict[str, type[KhalaError]] = {
    "unauthorized": Unauthenticated,
    "forbidden": Forbidden,
    "thread_not_found": NotFound,
    "not_found": NotFound,
    "gone": NotFound,
    "invalid_input": InvalidRequest,
}


def error_of_code(code: str, message: str) -> KhalaError | None:
    """The error of a frame with this code, None if the connection may continue after it."""
    kind = _BY_CODE.get(code)
    return None if kind is None else kind(message or f"The server refused: {code}.", code=code)


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Problem()  # An error page of a proxy.


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
