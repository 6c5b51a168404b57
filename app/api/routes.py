"""The application: all routes under `/api`, the page, the OpenAPI document and the headers that every answer bears."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from litestar import Litestar, Request, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import MutableScopeHeaders
from litestar.di import Provide
from litestar.exceptions import HTTPException, SerializationException
from litestar.types import ControllerRouterHandler, Message, Scope

from app.api import document, pages
from app.api.bodies import MOST_BODY
from app.api.callers import caller
from app.api.context import Context
from app.api.events import events
from app.api.health import HealthRoutes
from app.api.problems import EXAMPLES, HANDLERS
from app.api.runs import Runs
from app.api.sockets import follow
from app.api.threads import Threads
from app.domain.errors import InvalidInput

log = structlog.get_logger()

HEADERS = {
    "Content-Security-Policy": pages.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""What every answer bears, errors too."""


def application(context: Context, *, web: Path, version: str) -> Litestar:
    """The ASGI application; `web` is the folder of the page's files."""

    def give_context() -> Context:
        return context

    routes: Sequence[ControllerRouterHandler] = [Threads, Runs, HealthRoutes, events, follow]
    handlers: dict[Any, Any] = dict(HANDLERS)
    return Litestar(
        [Router("/api", route_handlers=routes, before_request=_begin), *pages.routes(web)],
        dependencies={"context": Provide(give_context, sync_to_thread=False), "caller": Provide(caller)},
        exception_handlers=handlers,
        openapi_config=document.config(version),
        request_max_body_size=MOST_BODY,
        cors_config=_cors(context.origins),
        before_send=[_add_headers, _log],
        logging_config=None,
    )


async def _begin(request: Request[Any, Any, Any]) -> None:
    request.scope["state"]["began"] = time.monotonic()
    await _take_only_json(request)


async def _take_only_json(request: Request[Any, Any, Any]) -> None:
    """Refuse bodies that are not called JSON, which also keeps other sites' forms out, and those that are none."""
    if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
        return
    if request.content_type[0].lower() != "application/json":
        raise HTTPException(status_code=415, detail=EXAMPLES["unsupported_media_type"])
    try:
        await request.json()
    except (SerializationException, ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is no JSON that can be read: {error}.") from error


async def _add_headers(message: Message, scope: Scope) -> None:
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders.from_message(message)
    for name, value in HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/"):
        headers.setdefault("Cache-Control", "no-store")


async def _log(message: Message, scope: Scope) -> None:
    """One line a request; how long it took until its answer began, in milliseconds. Probes are too many to be told."""
    if message["type"] != "http.response.start" or scope["path"].startswith("/api/health"):
        return
    began = scope["state"].get("began")
    took = None if began is None else round((time.monotonic() - began) * 1000, 1)
    # The path as it was sent, percent-encoded: what it decodes to could forge a line.
    path = scope["raw_path"].decode("latin-1")
    log.info("request", method=scope.get("method"), path=path, status=message["status"], ms=took)


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    if not origins:
        return None
    headers = ["X-Anon-Key", "Content-Type", "Last-Event-ID"]
    return CORSConfig(allow_origins=list(origins), allow_headers=headers, expose_headers=["Retry-After"])
