"""Around the application: a name for each request and socket in the log, and a span for each request that is traced."""

import secrets
import time

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bound_contextvars

from khala.signals import metrics, traces

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that metrics name; others are made up."""
PROBES = ("/api/health", "/health")
"""What is asked for so often that it is neither counted, logged nor traced."""
SERVER_ERROR = 500


class RequestTelemetry:
    """The same application, observed. Whatever is logged in a request or by a socket bears its id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        if scope["type"] == ScopeType.WEBSOCKET:
            with bound_contextvars(socket_id=secrets.token_hex(8)), metrics.SOCKETS.track_inprogress():
                await self._detached(scope, receive, send)
        elif not scope["path"].startswith(PROBES):
            scope.setdefault("state", {})["began"] = time.monotonic()
            with bound_contextvars(request_id=secrets.token_hex(8)):
                await self._traced(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _detached(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Litestar's socket keeps itself until the collector comes, and all that it got: so it gets little."""
        ends = Ends(receive, send)
        try:
            await self._app(scope, ends.receive, ends.send)
        finally:
            ends.cut()
            scope.get("state", {}).clear()

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not traces.enabled():
            await self._app(scope, receive, send)
            return
        method = method_of(scope)
        with traces.span(method, SpanKind.SERVER, _traceparent(scope), {"http.request.method": method}) as span:

            async def tell(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _end(span, scope, method, message["status"])
                await send(message)

            await self._app(scope, receive, tell)


class Ends:
    """A socket's two ends, for as long as they are not cut."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive: Receive | None = receive
        self._send: Send | None = send

    async def receive(self) -> ReceiveMessage:
        """What comes next."""
        if self._receive is None:
            raise RuntimeError("the socket's work has ended")
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send it."""
        if self._send is None:
            raise RuntimeError("the socket's work has ended")
        await self._send(message)

    def cut(self) -> None:
        """Let go of them."""
        self._receive = self._send = None


def _end(span: Span, scope: Scope, method: str, status: int) -> None:
    """The span ends when the answer begins: some go on for hours."""
    route = route_of(scope)
    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= SERVER_ERROR:
        span.set_status(StatusCode.ERROR)
    span.end()


def _traceparent(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)


def method_of(scope: Scope) -> str:
    """The request's method, or `other`."""
    method = str(scope.get("method", ""))
    return method if method in METHODS else metrics.OTHER


def route_of(scope: Scope) -> str:
    """The template of the request's route, without the ids in it; `none` where there is no such route."""
    return str(scope.get("path_template") or "none")


def count(scope: Scope, status: int, seconds: float | None) -> None:
    """An answer begins, so long after its request."""
    method, route = method_of(scope), route_of(scope)
    metrics.REQUESTS.labels(method, route, str(status)).inc()
    if seconds is not None:
        metrics.REQUEST.labels(method, route).observe(seconds)
