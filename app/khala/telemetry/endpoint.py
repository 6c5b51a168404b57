"""The endpoint for whoever watches this process: /metrics and /health, on a listener of its own.

It is not for the internet, so it is not where people are served: it names models, and answers whoever can reach it.
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
"""Connections at once; who comes after that is answered 503."""
KEPT_OPEN = 5
"""Seconds that a connection may be idle."""
CLOSING = 1
"""Seconds that open requests have to end when the process stops."""
JSON = b"application/json"


class Endpoint:
    """The ASGI application. `health` says what works now."""

    def __init__(self, gauges: Gauges, health: Callable[[], Awaitable[HealthReport]]) -> None:
        self._gauges = gauges
        self._health = health
        self._own = CollectorRegistry()
        self._own.register(gauges)
        self._scraping = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        status, kind, body = await self._answer(scope["method"], scope["path"], dict(scope["headers"]))
        length = str(len(body)).encode()
        headers = [(b"content-type", kind), (b"content-length", length), (b"cache-control", b"no-store")]
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
        encode, kind = choose_encoder(accept)
        async with self._scraping:
            await self._gauges.refresh()
            # In a thread: it takes milliseconds, in which no token would be passed on.
            body = await asyncio.to_thread(lambda: _joined(encode(REGISTRY), encode(self._own)))
        return 200, kind.encode(), body


def _joined(first: bytes, second: bytes) -> bytes:
    """Two expositions as one; OpenMetrics has an end, which may be there once."""
    return first.removesuffix(b"# EOF\n") + second


@asynccontextmanager
async def watched(
    at: tuple[str, int] | None, gauges: Gauges, health: Callable[[], Awaitable[HealthReport]]
) -> AsyncIterator[None]:
    """Answer at this host and port for as long as this is open; nowhere if it is None."""
    if at is None:
        yield
        return
    with open_listening_socket(*at, backlog=MAX_CONNECTIONS) as bound:
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
            timeout_keep_alive=KEPT_OPEN,
            timeout_graceful_shutdown=CLOSING,
        )
        BUILD.labels(KHALA_VERSION).set(1)
        server = UnsignalledServer(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]), name="metrics")
        log.info("metrics_endpoint_started", address=socket_url(bound))
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=2 * CLOSING + 1)
