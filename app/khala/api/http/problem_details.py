"""Errors as `application/problem+json` (RFC 9457), with one table of statuses."""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.types import ExceptionHandlersMap

from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.domain.errors import InvalidInput, KhalaError, RequestTimeout

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"

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
"""Each code's status."""
CODES: dict[int, str] = {
    400: "invalid_input", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    413: "payload_too_large", 415: "unsupported_media_type", 429: "rate_limited", 503: "unavailable",
}  # fmt: skip
"""The codes of errors that the framework raises."""


DETAILS: dict[str, str] = {
    "not_found": "There is nothing at this address.",
    "method_not_allowed": "This address does not take this method.",
    "payload_too_large": f"A request has at most {MAX_BODY_BYTES:,} bytes.",
}
"""What to say where the framework would be silent or tell too much, such as a file's path."""

HUNG_UP = "client disconnected prematurely"
"""What the framework says as an error of its own when the body has not come whole; nobody reads the answer."""
MISSING = re.compile(r"Object missing required field `(\w+)`|Missing required \w+ parameter '(\w+)'")
"""How the framework says that something is not there."""

EXAMPLES: dict[str, str] = {
    "invalid_input": "The request is not as it should be.",
    "unauthorized": "Sign in first.",
    "forbidden": "You have no access to this thread. Send its key or a share link, or sign in as a member.",
    "not_found": DETAILS["not_found"],
    "thread_not_found": "There is no such thread.",
    "run_not_found": "There is no such run.",
    "blob_not_found": "There is no such blob.",
    "request_timeout": "The request's body came too slowly, or not at all.",
    "conflict": "This messageId was sent before with another text.",
    "run_active": "An answer is being written. Wait for it, cancel it, or send with ifBusy.",
    "already_decided": "Somebody decided otherwise before.",
    "idempotency_key_reused": "This Idempotency-Key came with another request before. Use a new one.",
    "payload_too_large": DETAILS["payload_too_large"],
    "unsupported_media_type": "Send JSON, as Content-Type: application/json.",
    "range_not_satisfiable": "This blob has 1,024 bytes.",
    "misdirected_request": "This server does not answer to the name in the Host header.",
    "rate_limited": "Too many answers are waiting to be written. Try again soon.",
    "budget_exhausted": "The budget of this account is used up for now.",
    "unavailable": "The database is out of reach. Try again in a moment.",
}
"""For the OpenAPI document: a typical `detail` of each code."""


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one place of the request, named as in `options.model`."""

    path: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong: `code` is for programs, `detail` for people."""

    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] = []


def problem(code: str, detail: str, errors: Sequence[FieldError] = ()) -> Problem:
    """The error as it is told."""
    title = code.replace("_", " ").capitalize()
    return Problem(title=title, status=STATUS[code], code=code, detail=detail, errors=list(errors))


def respond(
    code: str, detail: str, *, errors: Sequence[FieldError] = (), headers: dict[str, str] | None = None
) -> Response[Problem]:
    """The response that tells of an error."""
    return Response(problem(code, detail, errors), status_code=STATUS[code], media_type=MEDIA_TYPE, headers=headers)


def documented_errors(*codes: str) -> dict[int, ResponseSpec]:
    """For the OpenAPI document: the errors that a route answers with."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUS[code], []).append(code)
    return {status: _documented_errors(named) for status, named in by_status.items()}


def _documented_errors(codes: list[str]) -> ResponseSpec:
    return ResponseSpec(
        data_container=Problem,
        media_type=MEDIA_TYPE,
        description=" or ".join(f"`{code}`" for code in codes),
        examples=[Example(summary=code, value=msgspec.to_builtins(problem(code, EXAMPLES[code]))) for code in codes],
        generate_examples=False,
    )


def documented_success(body: type[msgspec.Struct], description: str) -> ResponseSpec:
    """For the OpenAPI document: another good answer of a route."""
    return ResponseSpec(data_container=body, description=description, generate_examples=False)


def _khala(_: Request[Any, Any, Any], error: KhalaError) -> Response[Problem]:
    places = [(error.path, error.message), *error.more] if isinstance(error, InvalidInput) and error.path else []
    errors = [FieldError(path, message) for path, message in places]
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, RequestTimeout):
        # What is left of the body can't be told from the next request.
        headers["Connection"] = "close"
    return respond(error.code, error.message, errors=errors, headers=headers)


def _validation(_: Request[Any, Any, Any], error: ValidationException) -> Response[Problem]:
    extra = error.extra if isinstance(error.extra, list) else [{"message": error.detail}]
    errors = [_field_error(one.get("key", ""), one.get("message", "")) for one in extra if isinstance(one, dict)]
    return respond("invalid_input", EXAMPLES["invalid_input"], errors=errors)


def _field_error(path: str, message: str) -> FieldError:
    """What the framework says, in our words: it calls the body `data`, and names what is missing but in its message."""
    within = path.removeprefix("data").removeprefix(".")
    missing = MISSING.search(message)
    if missing is None:
        return FieldError(within, "The body is missing." if message == "'data'" else message)
    return FieldError(".".join(filter(None, (within, missing[1] or missing[2]))), "This is missing.")


def _http(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    code = CODES.get(error.status_code)
    if isinstance(error, InternalServerException) and error.detail == HUNG_UP:
        return respond("invalid_input", HUNG_UP)
    if code is None:
        return _unexpected(request, error)
    return respond(code, DETAILS.get(code) or error.detail or code, headers=dict(error.headers or {}))


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    log.error("request_crashed", method=request.method, path=request.url.path, exc_info=error)
    return respond("internal", "Something went wrong here. It was logged.")


HANDLERS: ExceptionHandlersMap = {
    KhalaError: _khala,
    ValidationException: _validation,
    HTTPException: _http,
    Exception: _unexpected,
}
