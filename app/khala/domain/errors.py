"""What can go wrong, for whoever asked: one small tree. The message is for the person, the code is stable."""

from collections.abc import Sequence
from typing import ClassVar


class KhalaError(Exception):
    """Base of all errors that a caller is told about."""

    code: ClassVar[str] = "unavailable"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds after which the same request may succeed."""


class Unauthorized(KhalaError):
    """Nobody in particular asked for something that needs somebody."""

    code = "unauthorized"


class Forbidden(KhalaError):
    """The caller may not do this."""

    code = "forbidden"


class NotFound(KhalaError):
    """There is no such thing, or not for this caller."""

    code = "not_found"


class ThreadNotFound(KhalaError):
    """No thread has this id."""

    code = "thread_not_found"


class RunNotFound(KhalaError):
    """No run has this id."""

    code = "run_not_found"


class BlobNotFound(KhalaError):
    """No blob has this id."""

    code = "blob_not_found"


class AlreadyDecided(KhalaError):
    """Somebody decided otherwise before."""

    code = "already_decided"


class Conflict(KhalaError):
    """The request contradicts what is stored."""

    code = "conflict"


class IdempotencyKeyReused(KhalaError):
    """The idempotency key came with another request before."""

    code = "idempotency_key_reused"


class RunActive(KhalaError):
    """The thread is answering already."""

    code = "run_active"


class PayloadTooLarge(KhalaError):
    """The body, frame or text is over its limit."""

    code = "payload_too_large"


class InvalidInput(KhalaError):
    """The request is malformed; `path` names the place, as in `options.model`, `more` others with their messages."""

    code = "invalid_input"

    def __init__(self, message: str, *, path: str = "", more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.more = more


class RequestTimeout(KhalaError):
    """The request's body came too slowly, or not at all."""

    code = "request_timeout"


class RateLimited(KhalaError):
    """Too much at once; ask again after `retry_after` seconds."""

    code = "rate_limited"


class BudgetExhausted(KhalaError):
    """A limit on money, tokens, runs or time is reached."""

    code = "budget_exhausted"


class Unavailable(KhalaError):
    """Something that the request needs is out of reach for now."""

    code = "unavailable"
