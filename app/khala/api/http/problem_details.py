"""Error responses as `application/problem+json` (RFC 9457), and the status of each error code."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Self

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.types import ExceptionHandlersMap
from structlog.contextvars import bind_contextvars

from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.api.http.strict_fields import sent_name
from khala.domain.decimals import format_decimal
from khala.domain.errors import (
    InvalidInput,
    KhalaError,
    LimitReached,
    LimitScope,
    RequestTimeout,
    Unavailable,
    WrongSeq,
)

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
MAX_CAUSE_CHARACTERS = 300
"""Of the cause of a response with status 503, in the log."""

STATUS: dict[str, int] = {
    "invalid_input": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "thread_not_found": 404,
    "run_not_found": 404,
    "blob_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "run_active": 409,
    "already_decided": 409,
    "stale_epoch": 409,
    "run_ended": 409,
    "wrong_seq": 409,
    "stream_gone": 410,
    "idempotency_key_reused": 422,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "range_not_satisfiable": 416,
    "misdirected_request": 421,
    "rate_limited": 429,
    "budget_exhausted": 429,
    "internal": 500,
    "unavailable": 503,
}
"""The status of each code."""
CODES: dict[int, str] = {
    400: "invalid_input", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    413: "payload_too_large", 415: "unsupported_media_type", 429: "rate_limited", 503: "unavailable",
}  # fmt: skip
"""The codes of errors that Litestar raises."""


DETAILS: dict[str, str] = {
    "not_found": "There is nothing at this URL.",
    "method_not_allowed": "This URL does not support this method.",
    "payload_too_large": f"A request has at most {MAX_BODY_BYTES:,} bytes.",
}
"""Replace messages of Litestar that are missing or reveal too much, such as a file's path."""

CLIENT_DISCONNECTED = "client disconnected prematurely"
"""Litestar's error when the client disconnects before the body is complete. Nobody reads the response."""
MISSING = re.compile(r"Object missing required field `(\w+)`|Missing required \w+ parameter '(\w+)'")
"""Litestar's messages for missing values."""

EXAMPLES: dict[str, str] = {
    "invalid_input": "The request is invalid. See `errors`.",
    "unauthorized": "Sign in first.",
    "forbidden": "You have no access to this thread. Send its key or a share link, or sign in as a member.",
    "not_found": DETAILS["not_found"],
    "thread_not_found": "There is no such thread.",
    "run_not_found": "There is no such run.",
    "blob_not_found": "There is no such blob.",
    "request_timeout": "The request's body arrived too slowly, or not at all.",
    "conflict": "This messageId was already used with another text. Use a new one.",
    "run_active": "An answer is being written. Wait for it, cancel it, or send with ifBusy.",
    "already_decided": "This was already decided differently.",
    "stale_epoch": "Another worker holds this run now.",
    "run_ended": "This run has ended.",
    "wrong_seq": "The parts of a run have consecutive seqs.",
    "stream_gone": "This stream was deleted. Forks of it still exist.",
    "idempotency_key_reused": "This Idempotency-Key was already used with another request. Use a new one.",
    "payload_too_large": DETAILS["payload_too_large"],
    "unsupported_media_type": "Send JSON, as Content-Type: application/json.",
    "range_not_satisfiable": "This blob has 1,024 bytes.",
    "misdirected_request": "This server does not serve the host in the Host header.",
    "rate_limited": "Too many answers are waiting to be written. Try again soon.",
    "budget_exhausted": "The budget of this account is exhausted for now.",
    "unavailable": "The database is unavailable. Try again in a moment.",
}
"""A typical `detail` of each code, for the OpenAPI document."""


class FieldError(msgspec.Struct, frozen=True):
    """The error of one value in the request. `path` is like `options.model`."""

    path: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An error. Programs use `code`, people read `detail`.

    With status 429, and 413 for bytes of streams, `limit` names the limit that refused the request, `scope` says what
    it counts for, `most` is the most that it allows, and `retryAfter` the seconds of `Retry-After`. A worker goes on at
    `expectedSeq`.
    """

    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] = []
    limit: str | None = None
    scope: LimitScope | None = None
    most: str | None = None
    retry_after: int | None = None
    expected_seq: int | None = None


def create_problem(
    code: str, detail: str, errors: Sequence[FieldError] = (), *, expected_seq: int | None = None
) -> Problem:
    """Return the body of an error response."""
    title = code.replace("_", " ").capitalize()
    return Problem(
        title=title, status=STATUS[code], code=code, detail=detail, errors=list(errors), expected_seq=expected_seq
    )


def limit_response(error: LimitReached) -> Response[Problem]:
    """Return the response for a limit that refuses the request."""
    problem = msgspec.structs.replace(create_problem(error.code, error.message), **limit_fields(error))
    headers = {"Retry-After": str(problem.retry_after)}
    return Response(problem, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def limit_fields(error: LimitReached) -> dict[str, Any]:
    """Return the fields that name the limit, of a problem and of an error frame."""
    name, scope, most = error.limit
    most_text = format_decimal(Decimal(most))
    return {"limit": name, "scope": scope, "most": most_text, "retry_after": retry_seconds(error)}


def retry_seconds(error: KhalaError) -> int | None:
    """Return the value of `Retry-After`: whole seconds, at least one."""
    return None if error.retry_after is None else max(1, math.ceil(error.retry_after))


def problem_response(
    code: str,
    detail: str,
    *,
    errors: Sequence[FieldError] = (),
    headers: dict[str, str] | None = None,
    expected_seq: int | None = None,
) -> Response[Problem]:
    """Return an error response."""
    problem = create_problem(code, detail, errors, expected_seq=expected_seq)
    return Response(problem, status_code=STATUS[code], media_type=MEDIA_TYPE, headers=headers)


class SharedResponseSpec(ResponseSpec):
    """The documentation of a response, which all copies of a route handler share.

    Litestar copies a handler deeply for each router around it. Its documentation never changes, and copying it took
    most of the time of a start.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


def documented_errors(*codes: str) -> dict[int, ResponseSpec]:
    """Return the documentation of a route's errors, for the OpenAPI document."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUS[code], []).append(code)
    return {status: _documented_status(named) for status, named in by_status.items()}


def _documented_status(codes: list[str]) -> ResponseSpec:
    return SharedResponseSpec(
        data_container=Problem,
        media_type=MEDIA_TYPE,
        description=" or ".join(f"`{code}`" for code in codes),
        examples=[
            Example(summary=code, value=msgspec.to_builtins(create_problem(code, EXAMPLES[code]))) for code in codes
        ],
        generate_examples=False,
    )


def documented_success(body: type[msgspec.Struct], description: str) -> ResponseSpec:
    """Return the documentation of another successful response, for the OpenAPI document."""
    return SharedResponseSpec(data_container=body, description=description, generate_examples=False)


def _domain_error(_: Request[Any, Any, Any], error: KhalaError) -> Response[Problem]:
    if isinstance(error, LimitReached):
        return limit_response(error)
    places = [(error.path, error.message), *error.more] if isinstance(error, InvalidInput) and error.path else []
    errors = [FieldError(path, message) for path, message in places]
    seconds = retry_seconds(error)
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    if isinstance(error, RequestTimeout):
        # The rest of the body cannot be distinguished from the next request.
        headers["Connection"] = "close"
    if isinstance(error, Unavailable) and error.__cause__ is not None:
        # The line of the request in the log says why. The client is not told.
        cause = error.__cause__
        bind_contextvars(cause=f"{type(cause).__name__}: {cause}"[:MAX_CAUSE_CHARACTERS])
    expected_seq = error.expected_seq if isinstance(error, WrongSeq) else None
    return problem_response(error.code, error.message, errors=errors, headers=headers, expected_seq=expected_seq)


def _validation_error(request: Request[Any, Any, Any], error: ValidationException) -> Response[Problem]:
    extra = error.extra if isinstance(error.extra, list) else [{"message": error.detail}]
    errors = [_field_error(_key(request, item), item.get("message", "")) for item in extra if isinstance(item, dict)]
    return problem_response("invalid_input", EXAMPLES["invalid_input"], errors=errors)


def _key(request: Request[Any, Any, Any], item: dict[str, Any]) -> str:
    """Return the place that Litestar's error names, for a query parameter by the name that was sent."""
    key = str(item.get("key", ""))
    return sent_name(request, key) if item.get("source") == "query" else key


def _field_error(path: str, message: str) -> FieldError:
    """Translate Litestar's error, which calls the body `data` and names missing fields only in its message."""
    within = path.removeprefix("data").removeprefix(".")
    missing = MISSING.search(message)
    if missing is None:
        return FieldError(within, "The body is missing." if message == "'data'" else message)
    return FieldError(".".join(filter(None, (within, missing[1] or missing[2]))), "This is missing.")


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    code = CODES.get(error.status_code)
    if isinstance(error, InternalServerException) and error.detail == CLIENT_DISCONNECTED:
        return problem_response("invalid_input", CLIENT_DISCONNECTED)
    if isinstance(error, InternalServerException) and (field := _body_field(error.__cause__)) is not None:
        return problem_response("invalid_input", EXAMPLES["invalid_input"], errors=[field])
    if code is None:
        return _unexpected_error(request, error)
    detail = _too_large(request) if code == "payload_too_large" else DETAILS.get(code)
    return problem_response(code, detail or error.detail or code, headers=dict(error.headers or {}))


def _body_field(cause: BaseException | None) -> FieldError | None:
    """Return the error of a field of the body, if this is one.

    For a field with the name of a dependency, such as `context` of AG-UI, Litestar reports an error of the server.
    """
    message, _, place = str(cause).partition(" - at `$.data")
    is_field = isinstance(cause, msgspec.ValidationError) and place[:1] in (".", "[")
    return FieldError(place.removeprefix(".").rstrip("`"), message) if is_field else None


def _too_large(request: Request[Any, Any, Any]) -> str:
    """Name the limit of the route that refused the body."""
    most = request.route_handler.resolve_request_max_body_size() or MAX_BODY_BYTES
    return f"A request has at most {most:,} bytes."


def _unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    log.error("request_crashed", method=request.method, path=request.url.path, exc_info=error)
    return problem_response("internal", "An unexpected error occurred. It was logged.")


HANDLERS: ExceptionHandlersMap = {
    KhalaError: _domain_error,
    ValidationException: _validation_error,
    HTTPException: _http_error,
    Exception: _unexpected_error,
}
