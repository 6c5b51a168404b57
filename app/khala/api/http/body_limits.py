"""Limits of request bodies: their size, and the time in which they must arrive. A slow body is refused with 408."""

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, ReceiveMessage, Scope, Send

from khala.blobs.spool import size_limit_error
from khala.domain.errors import RequestTimeout
from khala.domain.transfer_rate import TransferRatePolicy

MAX_BODY_BYTES = 1 << 20
"""For routes without a limit of their own."""
NO_BODY = (b"0", b"")
"""Values of `Content-Length` that announce no body."""


class BodyDeadline:
    """ASGI middleware. Reading a body that is slower than `rate` raises `RequestTimeout` in the application."""

    def __init__(self, app: ASGIApp, rate: TransferRatePolicy) -> None:
        self._app = app
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request. A request without a body has no deadline."""
        if scope["type"] == ScopeType.HTTP and _has_body(scope):
            receive = _TimedBody(receive, self._rate).receive
        await self._app(scope, receive, send)


class _TimedBody:
    """The body of one request, and how long the server has waited for it."""

    def __init__(self, receive: Receive, rate: TransferRatePolicy) -> None:
        self._receive = receive
        self._rate = rate
        self._waited = 0.0
        self._received = 0
        self._complete = False

    async def receive(self) -> ReceiveMessage:
        """Return the next message. After a complete body there is no deadline: only a disconnect can follow."""
        if self._complete:
            return await self._receive()
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._rate.seconds_left(self._waited, self._received))):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeout("The request's body arrived too slowly, or not at all.") from error
        self._waited += time.monotonic() - started_at
        self._record(message)
        return message

    def _record(self, message: ReceiveMessage) -> None:
        if message["type"] == "http.request":
            self._received += len(message["body"])
        self._complete = message["type"] != "http.request" or not message["more_body"]


class ReadAheadBody(msgspec.Struct, frozen=True):
    """A body that was read before the application gets it."""

    content: bytes
    """Its beginning, if it is too large."""
    receive: Receive
    """Replays the body."""


async def read_ahead(receive: Receive, max_bytes: int) -> ReadAheadBody:
    """Read the body until it is complete or exceeds `max_bytes`.

    For an application that would treat `RequestTimeout` as its own error.
    """
    messages: deque[ReceiveMessage] = deque()
    size, more = 0, True
    while more and size <= max_bytes:
        message = await receive()
        messages.append(message)
        more = message["type"] == "http.request" and message["more_body"]
        size += len(message["body"]) if message["type"] == "http.request" else 0

    async def replay() -> ReceiveMessage:
        return messages.popleft() if messages else await receive()

    parts = [message["body"] for message in messages if message["type"] == "http.request"]
    return ReadAheadBody(b"".join(parts), replay)


def refuse_large_body(request: Request[Any, Any, Any], max_bytes: int) -> int | None:
    """Return the bytes that `Content-Length` announces; None if it announces none, as in a chunked body.

    Raises `PayloadTooLarge` over `max_bytes`: before the body is read, so that the client need not send all of it.
    """
    content_length = request.headers.get("content-length", "")
    size = int(content_length) if content_length.isdecimal() else None
    if size is not None and size > max_bytes:
        raise size_limit_error(max_bytes)
    return size


def _has_body(scope: Scope) -> bool:
    """Return whether the headers announce a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() not in NO_BODY)
        for name, value in scope["headers"]
    )
