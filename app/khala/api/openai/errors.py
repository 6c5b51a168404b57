"""Errors in OpenAI's format, `{"error": {message, type, code, param}}`, with Khala's codes and statuses."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from litestar import Request, Response

from khala.api.http.problem_details import MEDIA_TYPE, STATUS, Problem
from khala.api.openai.types import ErrorBody, ErrorResponse
from khala.domain.errors import KhalaError

PREFIX = "/v1"
"""Errors below this path have this format."""
OTHER_PROTOCOLS = (f"{PREFIX}/stream/",)
"""Paths below it whose errors are problems, because they belong to other protocols."""
TYPES: dict[int, str] = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 409: "conflict_error", 413: "invalid_request_error",
    415: "invalid_request_error", 421: "invalid_request_error", 422: "invalid_request_error",
    429: "rate_limit_error",
}  # fmt: skip
RUN_STATUS: dict[str, int] = {
    "rate_limited": 429, "budget_exhausted": 429, "context_exceeded": 400, "overloaded": 503, "unavailable": 503,
    "connection_lost": 502, "timeout": 504, "invalid_response": 502, "refused": 502, "no_response": 502,
    "interrupted": 500, "internal": 500, "canceled": 409, "format_mismatch": 502,
    "tool_not_called": 502, "option_refused": 400,
}  # fmt: skip
"""The status of a response whose run has failed with this code."""
NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients retry on their own. A failed run has already made all retries that make sense."""

Handler: TypeAlias = Callable[[Request[Any, Any, Any], Any], Response[Any]]


class ModelNotFound(KhalaError):
    """The server does not offer this model."""

    code = "model_not_found"


class RunFailed(KhalaError):
    """The run has failed, perhaps after a part of the answer. `run_code` is the code of its error."""

    def __init__(self, run_code: str, message: str) -> None:
        super().__init__(message)
        self.run_code = run_code


def run_error(failed: RunFailed) -> ErrorResponse:
    """Return the body for a failed run."""
    kind = TYPES.get(RUN_STATUS.get(failed.run_code, 500), "server_error")
    return ErrorResponse(error=ErrorBody(message=failed.message, type=kind, code=failed.run_code))


def wrap_handlers(handlers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Wrap exception handlers, so that their responses below `/v1` have OpenAI's format."""
    return {kind: _wrap(handler) for kind, handler in handlers.items()} | {
        ModelNotFound: _unknown_model,
        RunFailed: _run_failed,
    }


def body_at(path: str, problem: Problem) -> tuple[Problem | ErrorResponse, str]:
    """Return the body and the media type of an error at this path."""
    if (path == PREFIX or path.startswith(f"{PREFIX}/")) and not path.startswith(OTHER_PROTOCOLS):
        return _of_problem(problem), "application/json"
    return problem, MEDIA_TYPE


def _wrap(handler: Handler) -> Handler:
    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        response = handler(request, error)
        if isinstance(response.content, Problem):
            body, media_type = body_at(request.scope["path"], response.content)
            headers = dict(response.headers)
            return Response(body, status_code=response.status_code, media_type=media_type, headers=headers)
        return response

    return handle


def _of_problem(problem: Problem) -> ErrorResponse:
    message, param = problem.detail, None
    if problem.errors:
        first = problem.errors[0]
        message, param = first.message, first.path or None
    kind = TYPES.get(problem.status, "server_error")
    body = ErrorBody(message=message, type=kind, code=problem.code, param=param)
    if problem.limit is not None:
        limit = {name: getattr(problem, name) for name in ("limit", "scope", "most", "retry_after")}
        body = msgspec.structs.replace(body, **limit)
    return ErrorResponse(error=body)


def _unknown_model(_: Request[Any, Any, Any], error: ModelNotFound) -> Response[ErrorResponse]:
    body = ErrorBody(message=error.message, type="invalid_request_error", code=error.code, param="model")
    return Response(ErrorResponse(error=body), status_code=STATUS["not_found"], media_type="application/json")


def _run_failed(_: Request[Any, Any, Any], error: RunFailed) -> Response[ErrorResponse]:
    status = RUN_STATUS.get(error.run_code, 500)
    return Response(run_error(error), status_code=status, media_type="application/json", headers=NO_RETRY)
