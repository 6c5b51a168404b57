"""The errors that callers see. The message is for people; the code is stable and for programs."""

from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar, Literal, NamedTuple, TypeAlias

LimitScope: TypeAlias = Literal[
    "account", "key", "credential", "network", "thread", "stream", "connection", "run", "deployment"
]
"""What a limit counts for: an account, an anonymous key, a secret of any kind, a network, one thread, stream,
connection or run, or the whole deployment."""


class ReachedLimit(NamedTuple):
    """The limit that refused a request: its name, what it counts for, and the most that it allows."""

    name: str
    scope: LimitScope
    most: Decimal | int


class KhalaError(Exception):
    """Base of all errors that callers see."""

    code: ClassVar[str] = "unavailable"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds after which the same request may succeed."""


class Unauthorized(KhalaError):
    """Authentication is required."""

    code = "unauthorized"


class Forbidden(KhalaError):
    """The caller may not do this."""

    code = "forbidden"


class NotFound(KhalaError):
    """The resource does not exist, or the caller may not know of it."""

    code = "not_found"


class ThreadNotFound(KhalaError):
    """There is no thread with this id."""

    code = "thread_not_found"


class RunNotFound(KhalaError):
    """There is no run with this id."""

    code = "run_not_found"


class BlobNotFound(KhalaError):
    """There is no blob with this id."""

    code = "blob_not_found"


class PlanDamaged(KhalaError):
    """A stored plan is not readable. `khala verify` lists all of its damage."""

    code = "internal"


class AlreadyDecided(KhalaError):
    """The approval was decided before, in another way."""

    code = "already_decided"


class Conflict(KhalaError):
    """The request conflicts with the stored state."""

    code = "conflict"


class StaleLease(KhalaError):
    """The worker does not hold the run under this epoch, or no longer."""

    code = "stale_epoch"


class RunEnded(KhalaError):
    """The run has ended, so nothing can be added to it."""

    code = "run_ended"


class WrongSeq(KhalaError):
    """The request does not begin at the next seq, which is `expected_seq`."""

    code = "wrong_seq"

    def __init__(self, message: str, *, expected_seq: int) -> None:
        super().__init__(message)
        self.expected_seq = expected_seq


class IdempotencyKeyReused(KhalaError):
    """The idempotency key was used for another request before."""

    code = "idempotency_key_reused"


class RunActive(KhalaError):
    """The thread has an active run."""

    code = "run_active"


class PayloadTooLarge(KhalaError):
    """The body, frame or text is over its limit."""

    code = "payload_too_large"


class InvalidInput(KhalaError):
    """The request is malformed.

    `path` locates the error, as in `options.model`. `more` has the path and message of each further error.
    """

    code = "invalid_input"

    def __init__(self, message: str, *, path: str = "", more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.more = more


class RequestTimeout(KhalaError):
    """The request's body arrived too slowly, or not at all."""

    code = "request_timeout"


class LimitReached(KhalaError):
    """A limit refuses the request, and is named. Without a `retry_after`, waiting alone may not help."""

    DEFAULT_RETRY_SECONDS: ClassVar[float] = 60.0

    def __init__(self, message: str, *, limit: ReachedLimit, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=self.DEFAULT_RETRY_SECONDS if retry_after is None else retry_after)
        self.limit = limit


class RateLimited(LimitReached):
    """Too many requests, or too much of something. Retry after `retry_after` seconds."""

    code = "rate_limited"


class BudgetExhausted(LimitReached):
    """A limit on money, tokens, runs or time is reached."""

    code = "budget_exhausted"


class StorageExhausted(LimitReached):
    """The stored contents leave no space for the request. Deleting some helps."""

    code = "payload_too_large"


class Unavailable(KhalaError):
    """A service that the request needs is unavailable for now."""

    code = "unavailable"
