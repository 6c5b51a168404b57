"""The application: all routes under `/api`, the page, the OpenAPI document and the headers that every answer bears."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ControllerRouterHandler

from app.api import pages
from app.api.bodies import MOST_BODY
from app.api.callers import caller
from app.api.context import Context
from app.api.events import events
from app.api.health import HealthRoutes
from app.api.problems import HANDLERS
from app.api.runs import Runs
from app.api.sockets import follow
from app.api.threads import Threads

DESCRIPTION = """
Durable, realtime chat threads. Send a message with `POST /api/threads/{thread_id}/send`, follow the answer over the
WebSocket at `/api/ws` or as server-sent events, and read it whole at any time.
"""

HEADERS = {
    "Content-Security-Policy": pages.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def application(context: Context, *, web: Path, version: str) -> Litestar:
    """The ASGI application; `web` is the folder of the page's files."""

    def give_context() -> Context:
        return context

    routes: Sequence[ControllerRouterHandler] = [Threads, Runs, HealthRoutes, events, follow]
    handlers: dict[Any, Any] = dict(HANDLERS)
    return Litestar(
        [Router("/api", route_handlers=routes), *pages.routes(web)],
        dependencies={"context": Provide(give_context, sync_to_thread=False), "caller": Provide(caller)},
        exception_handlers=handlers,
        openapi_config=OpenAPIConfig(
            title="Khala",
            version=version,
            description=DESCRIPTION,
            path="/api",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
        request_max_body_size=MOST_BODY,
        cors_config=_cors(context.origins),
        response_headers=HEADERS,
        logging_config=None,
    )


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    if not origins:
        return None
    headers = ["X-Anon-Key", "Content-Type", "Last-Event-ID"]
    return CORSConfig(allow_origins=list(origins), allow_headers=headers, expose_headers=["Retry-After"])
