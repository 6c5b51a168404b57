"""The `Allow` header: which methods an address takes, on answers to OPTIONS and with 405."""

from collections.abc import Awaitable, Callable, Mapping

from litestar import Litestar
from litestar.datastructures import MutableScopeHeaders
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

HANDSHAKE = "GET"
"""The method that opens a WebSocket; the framework names it `websocket`."""


def allow_header_hook() -> Callable[[Message, Scope], Awaitable[None]]:
    """A hook that adds the header. The framework's own OPTIONS answers leave out methods of routes that were joined."""
    by_template: dict[str, str] = {}

    async def tell(message: Message, scope: Scope) -> None:
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

    return tell


def _template(scope: Scope) -> str | None:
    """The template of the route at an address: a preflight is answered before there is a route."""
    try:
        return str(scope["litestar_app"].asgi_router.handle_routing(path=scope["path"], method="OPTIONS")[-1])
    except HTTPException:
        return None


def _methods(app: Litestar) -> Mapping[str, str]:
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            found.setdefault(route.path_format, set()).update(map(str, route.methods))
    return {template: ", ".join(sorted(methods)) for template, methods in found.items()}
