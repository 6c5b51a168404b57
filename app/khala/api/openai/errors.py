"""Errors as OpenAI's clients expect them: `{"error": {message, type, code, param}}`, with our codes and statuses."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from litestar import Request, Response

from khala.api.http.problem_details import MEDIA_TYPE, STATUS, Problem
from khala.domain.errors import KhalaError

PREFIX = "/v1"
"""The paths whose errors are told so."""
TYPES: dict[int, str] = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 409: "conflict_error", 413: "invalid_request_error",
    415: "invalid_request_error", 421: "invalid_request_error", 422: "invalid_request_error",
    429: "rate_limit_error",
}  # fmt: skip
FAILED: dict[str, int] = {
    "rate_limited": 429, "budget_exhausted": 429, "context_exceeded": 400, "overloaded": 503, "unavailable": 503,
    "connection_lost": 502, "timeout": 504, "invalid_response": 502, "refused": 502, "no_response": 502,
    "interrupted": 500, "internal": 500, "canceled": 409,
}  # fmt: skip
"""The status of an answer whose run has failed with this code."""
NEVER_AGAIN = {"x-should-retry": "false"}
"""OpenAI's clients ask again by themselves; a run that has failed has done all that could be done."""

Handler: TypeAlias = Callable[[Request[Any, Any, Any], Any], Response[Any]]


class ModelNotFound(KhalaError):
    """No such model is offered here."""

    code = "model_not_found"


class RunFailed(KhalaError):
    """The answer came to nothing, or only to a part; `failed` is the code of its run's error."""

    def __init__(self, failed: str, message: str) -> None:
        super().__init__(message)
        self.failed = failed


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; `param` names the place in the request."""

    message: str
    type: str
    code: str
    param: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error's body."""

    error: Told


def of_run(failed: RunFailed) -> Failure:
    """The error of a run that has failed."""
    kind = TYPES.get(FAILED.get(failed.failed, 500), "server_error")
    return Failure(error=Told(message=failed.message, type=kind, code=failed.failed))


def shaped(handlers: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same handlers; what they answer beneath `/v1` is told as OpenAI does."""
    return {kind: _shaping(handler) for kind, handler in handlers.items()} | {
        ModelNotFound: _unknown_model,
        RunFailed: _run_failed,
    }


def body_at(path: str, problem: Problem) -> tuple[Problem | Failure, str]:
    """The error's body and media type, as they are told at this path."""
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        return _of_problem(problem), "application/json"
    return problem, MEDIA_TYPE


def _shaping(handler: Handler) -> Handler:
    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        response = handler(request, error)
        if isinstance(response.content, Problem):
            body, media_type = body_at(request.scope["path"], response.content)
            headers = dict(response.headers)
            return Response(body, status_code=response.status_code, media_type=media_type, headers=headers)
        return response

    return handle


def _of_problem(problem: Problem) -> Failure:
    message, param = problem.detail, None
    if problem.errors:
        first = problem.errors[0]
        message, param = first.message, first.path or None
    kind = TYPES.get(problem.status, "server_error")
    return Failure(error=Told(message=message, type=kind, code=problem.code, param=param))


def _unknown_model(_: Request[Any, Any, Any], error: ModelNotFound) -> Response[Failure]:
    told = Told(message=error.message, type="invalid_request_error", code=error.code, param="model")
    return Response(Failure(error=told), status_code=STATUS["not_found"], media_type="application/json")


def _run_failed(_: Request[Any, Any, Any], error: RunFailed) -> Response[Failure]:
    status = FAILED.get(error.failed, 500)
    return Response(of_run(error), status_code=status, media_type="application/json", headers=NEVER_AGAIN)
