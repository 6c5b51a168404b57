"""Refuses requests and sockets for other hosts with 421, against DNS rebinding."""

import msgspec
import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from khala.api.http import problem_details
from khala.api.http.request_telemetry import count_response
from khala.api.openai.errors import body_at
from khala.domain.allowed_hosts import AllowedHosts

log = structlog.get_logger()

HEALTH = ("/health", "/api/health/live", "/api/health/ready")
"""Paths that load balancers and probes request by IP address."""
CODE = "misdirected_request"
MAX_LOGGED_HOST_CHARACTERS = 200


class HostGuard:
    """ASGI middleware that serves allowed hosts only."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request. `X-Forwarded-Host` is not read: a page that rebinds its name could send it too."""
        host = _host(scope)
        if self._hosts.allows(host) or scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        log.info(
            "host_rejected", host=(host or "")[:MAX_LOGGED_HOST_CHARACTERS], path=scope["raw_path"].decode("latin-1")
        )
        if scope["type"] == ScopeType.HTTP:
            count_response(scope, problem_details.STATUS[CODE], None)
            await _refuse(scope, send, "http.response")
        elif "websocket.http.response" in (scope["extensions"] or {}):
            await receive()
            await _refuse(scope, send, "websocket.http.response")
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "Unknown host."})


def _host(scope: Scope) -> str | None:
    """Return the `Host` header, or None if there is none or more than one."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return hosts[0].decode("latin-1") if len(hosts) == 1 else None


async def _refuse(scope: Scope, send: Send, kind: str) -> None:
    content, media_type = body_at(scope["path"], problem_details.create_problem(CODE, problem_details.EXAMPLES[CODE]))
    body = msgspec.json.encode(content)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    start = {"type": f"{kind}.start", "status": problem_details.STATUS[CODE], "headers": headers}
    await send(start)  # type: ignore[arg-type]  # the extension's messages are like those of HTTP
    await send({"type": f"{kind}.body", "body": body, "more_body": False})  # type: ignore[arg-type,misc]
