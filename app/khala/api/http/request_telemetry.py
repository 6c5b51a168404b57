"""Observes requests: an id for each request and socket in the log, metrics, and a span for each traced request."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bind_contextvars, clear_contextvars

from khala.signals import metrics, traces

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that metrics distinguish. All others count as `other`."""
PROBES = ("/api/health", "/health")
"""Paths that are requested so often that they are not counted, logged or traced."""
SERVER_ERROR_STATUS = 500


class RequestTelemetry:
    """ASGI middleware. Each log line of a request or socket has its id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or socket."""
        if scope["type"] == ScopeType.WEBSOCKET:
            with _log_fields(socket_id=secrets.token_hex(8)), metrics.SOCKETS.track_inprogress():
                await self._detached(scope, receive, send)
        elif not scope["path"].startswith(PROBES):
            scope.setdefault("state", {})["began"] = time.monotonic()
            with _log_fields(request_id=secrets.token_hex(8)):
                await self._traced(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _detached(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a socket. Litestar's object lives until the garbage collector runs, so its references are dropped."""
        channel = DetachableChannel(receive, send)
        try:
            await self._app(scope, channel.receive, channel.send)
        finally:
            channel.detach()
            scope.get("state", {}).clear()

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not traces.enabled():
            await self._app(scope, receive, send)
            return
        method = method_of(scope)
        with traces.span(method, SpanKind.SERVER, _traceparent(scope), {"http.request.method": method}) as span:

            async def send_and_end(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _end(span, scope, method, message["status"])
                await send(message)

            await self._app(scope, receive, send_and_end)


@contextmanager
def _log_fields(**fields: str) -> Iterator[None]:
    """Log lines have these fields and those that are bound meanwhile.

    A pipelined request begins in the context of the one before it on its connection, whose fields it must not have.
    """
    clear_contextvars()
    bind_contextvars(**fields)
    try:
        yield
    finally:
        clear_contextvars()


class DetachableChannel:
    """The `receive` and `send` of a socket, until they are detached."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive: Receive | None = receive
        self._send: Send | None = send

    async def receive(self) -> ReceiveMessage:
        """Return the next message."""
        if self._receive is None:
            raise RuntimeError("the socket's work has ended")
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send a message."""
        if self._send is None:
            raise RuntimeError("the socket's work has ended")
        await self._send(message)

    def detach(self) -> None:
        """Drop the references to both."""
        self._receive = self._send = None


def _end(span: Span, scope: Scope, method: str, status: int) -> None:
    """End the span when the response begins: some responses stream for hours."""
    route = route_of(scope)
    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= SERVER_ERROR_STATUS:
        span.set_status(StatusCode.ERROR)
    span.end()


def _traceparent(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)


def method_of(scope: Scope) -> str:
    """Return the request's method, or `other`."""
    method = str(scope.get("method", ""))
    return method if method in METHODS else metrics.OTHER


def route_of(scope: Scope) -> str:
    """Return the path template of the route, or `none` if there is no route."""
    return str(scope.get("path_template") or "none")


def count_response(scope: Scope, status: int, seconds: float | None) -> None:
    """Count a response that begins. `seconds` is the time since its request."""
    method, route = method_of(scope), route_of(scope)
    metrics.REQUESTS.labels(method, route, str(status)).inc()
    if seconds is not None:
        metrics.REQUEST.labels(method, route).observe(seconds)
