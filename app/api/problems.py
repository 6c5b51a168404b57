"""Errors as `application/problem+json` (RFC 9457), with one table of statuses."""

import math
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ExceptionHandlersMap

from app.domain.errors import InvalidInput, KhalaError

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"

STATUS: dict[str, int] = {
    "invalid_input": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "thread_not_found": 404,
    "run_not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "run_active": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "internal": 500,
    "unavailable": 503,
}
"""Each code's status."""
CODES: dict[int, str] = {
    400: "invalid_input", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    413: "payload_too_large", 415: "unsupported_media_type", 429: "rate_limited", 503: "unavailable",
}  # fmt: skip
"""The codes of errors that the framework raises."""


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


def respond(code: str, detail: str, *, errors: list[FieldError] | None = None, retry_after: float | None = None) -> Response[Problem]:
    """The response that tells of an error."""
    status = STATUS[code]
    title = code.replace("_", " ").capitalize()
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    problem = Problem(title=title, status=status, code=code, detail=detail, errors=errors or [])
    return Response(problem, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def documented(*codes: str) -> dict[int, ResponseSpec]:
    """For the OpenAPI document: the errors that a route answers with."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUS[code], []).append(f"`{code}`")
    return {
        status: ResponseSpec(data_container=Problem, media_type=MEDIA_TYPE, description=" or ".join(named), generate_examples=False)
        for status, named in by_status.items()
    }


def answer(body: type[msgspec.Struct], description: str) -> ResponseSpec:
    """For the OpenAPI document: another good answer of a route."""
    return ResponseSpec(data_container=body, description=description, generate_examples=False)


def _khala(request: Request[Any, Any, Any], error: KhalaError) -> Response[Problem]:
    errors = [FieldError(error.path, error.message)] if isinstance(error, InvalidInput) and error.path else None
    return respond(error.code, error.message, errors=errors, retry_after=error.retry_after)


def _validation(request: Request[Any, Any, Any], error: ValidationException) -> Response[Problem]:
    extra = error.extra if isinstance(error.extra, list) else []
    errors = [FieldError(str(one.get("key", "")), str(one.get("message", ""))) for one in extra if isinstance(one, dict)]
    return respond("invalid_input", "The request is not as it should be.", errors=errors)


def _http(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    code = CODES.get(error.status_code)
    return _unexpected(request, error) if code is None else respond(code, error.detail or code)


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    log.error("request_crashed", method=request.method, path=request.url.path, exc_info=error)
    return respond("internal", "Something went wrong here. It was logged.")


HANDLERS: ExceptionHandlersMap = {
    KhalaError: _khala,
    ValidationException: _validation,
    HTTPException: _http,
    Exception: _unexpected,
}
