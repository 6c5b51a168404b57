"""The monitoring endpoint: serves /metrics and /health on a listener of its own.

It requires no authentication and its metrics name models, so it is separate from the public server and must not be
reachable from the internet.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from khala.api.http.http_protocol import BoundedHttpProtocol, UnsignalledServer, open_listening_socket, socket_url
from khala.api.operations.types import HealthReport
from khala.signals.metrics import BUILD, REGISTRY
from khala.telemetry.gauges import Gauges
from khala.version import KHALA_VERSION

log = structlog.get_logger()

MAX_CONNECTIONS = 16
"""Connections at the same time. Requests on further ones get status 503."""
IDLE_TIMEOUT_SECONDS = 5
"""Time that a connection may be idle."""
CLOSE_TIMEOUT_SECONDS = 1
"""Time that open requests have to end when the process stops."""
JSON = b"application/json"


class Endpoint:
    """The ASGI application. `health`: returns the health report."""

    def __init__(self, gauges: Gauges, health: Callable[[], Awaitable[HealthReport]]) -> None:
        self._gauges = gauges
        self._health = health
        self._registry = CollectorRegistry()
        self._registry.register(gauges)
        self._scrape_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        status, media_type, body = await self._answer(scope["method"], scope["path"], dict(scope["headers"]))
        length = str(len(body)).encode()
        headers = [(b"content-type", media_type), (b"content-length", length), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, JSON, b'{"ok":false}'
        match path:
            case "/metrics":
                return await self._metrics(headers.get(b"accept", b"").decode("latin-1"))
            case "/health/live":
                return 200, JSON, b'{"ok":true}'
            case "/health/ready":
                health = await self._health()
                return (200 if health.ok else 503), JSON, msgspec.json.encode(health)
            case _:
                return 404, JSON, b'{"ok":false}'

    async def _metrics(self, accept: str) -> tuple[int, bytes, bytes]:
        encode, media_type = choose_encoder(accept)
        async with self._scrape_lock:
            await self._gauges.refresh()
            # In a thread, because encoding takes milliseconds in which the event loop would deliver nothing.
            body = await asyncio.to_thread(lambda: _join(encode(REGISTRY), encode(self._registry)))
        return 200, media_type.encode(), body


def _join(first: bytes, second: bytes) -> bytes:
    """Join two expositions. The end marker of OpenMetrics may occur only once."""
    return first.removesuffix(b"# EOF\n") + second


@asynccontextmanager
async def serve_monitoring(
    address: tuple[str, int] | None, gauges: Gauges, health: Callable[[], Awaitable[HealthReport]]
) -> AsyncIterator[None]:
    """Serve at this host and port while the context is open. None: do not serve."""
    if address is None:
        yield
        return
    with open_listening_socket(*address, backlog=MAX_CONNECTIONS) as bound:
        config = uvicorn.Config(
            Endpoint(gauges, health),
            lifespan="off",
            http=BoundedHttpProtocol,
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=IDLE_TIMEOUT_SECONDS,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_SECONDS,
        )
        BUILD.labels(KHALA_VERSION).set(1)
        server = UnsignalledServer(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]), name="metrics")
        log.info("metrics_endpoint_started", address=socket_url(bound))
        try:
            yield
        finally:
            server.stop()
            await asyncio.wait({serving}, timeout=2 * CLOSE_TIMEOUT_SECONDS + 1)
