"""Sets the `Allow` header on responses to OPTIONS, and with 405: the methods of the route."""

from collections.abc import Awaitable, Callable, Mapping

from litestar import Litestar
from litestar.datastructures import MutableScopeHeaders
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

HANDSHAKE = "GET"
"""The method that opens a WebSocket. Litestar names it `websocket`."""


def allow_header_hook() -> Callable[[Message, Scope], Awaitable[None]]:
    """Return a hook that sets the header. Litestar's own responses lack methods if routers share a path."""
    by_template: dict[str, str] = {}

    async def set_allow(message: Message, scope: Scope) -> None:
        if message["type"] != "http.response.start":
            return
        headers = MutableScopeHeaders.from_message(message)
        if headers.get("allow") == "websocket":
            headers["Allow"] = HANDSHAKE
        elif scope.get("method") == "OPTIONS":
            by_template.update(by_template or _methods(scope["litestar_app"]))
            template = scope.get("path_template") or _template(scope)
            if template in by_template:
                headers["Allow"] = by_template[template]

    return set_allow


def _template(scope: Scope) -> str | None:
    """Return the path template of the route. Litestar answers a preflight before it resolves the route."""
    try:
        return str(scope["litestar_app"].asgi_router.handle_routing(path=scope["path"], method="OPTIONS")[-1])
    except HTTPException:
        return None


def _methods(app: Litestar) -> Mapping[str, str]:
    methods_by_template: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            methods_by_template.setdefault(route.path_format, set()).update(map(str, route.methods))
    return {template: ", ".join(sorted(methods)) for template, methods in methods_by_template.items()}
