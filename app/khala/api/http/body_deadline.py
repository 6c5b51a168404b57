"""Bounds the time that a request's body may take: a silent or trickling body is answered with 408."""

import asyncio
import time
from collections import deque

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, ReceiveMessage, Scope, Send

from khala.domain.errors import RequestTimeout
from khala.domain.transfer_rate import TransferRatePolicy

NO_BODY = (b"0", b"")
"""Lengths of a body that is none."""


class BodyDeadline:
    """The same application. Reading a body that is slower than `pace` raises `RequestTimeout` there."""

    def __init__(self, app: ASGIApp, pace: TransferRatePolicy) -> None:
        self._app = app
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; one that announces no body is passed on as it is."""
        if scope["type"] == ScopeType.HTTP and _announced(scope):
            receive = _TimedBody(receive, self._pace).receive
        await self._app(scope, receive, send)


class _TimedBody:
    """One request's body, and how long the server has waited for it."""

    def __init__(self, receive: Receive, pace: TransferRatePolicy) -> None:
        self._receive = receive
        self._pace = pace
        self._waited = 0.0
        self._received = 0
        self._whole = False

    async def receive(self) -> ReceiveMessage:
        """The next message. Once the body is whole, there is no deadline: then only the client's end is waited for."""
        if self._whole:
            return await self._receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._pace.left(self._waited, self._received))):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeout("The request's body came too slowly, or not at all.") from error
        self._waited += time.monotonic() - began
        self._note(message)
        return message

    def _note(self, message: ReceiveMessage) -> None:
        if message["type"] == "http.request":
            self._received += len(message["body"])
        self._whole = message["type"] != "http.request" or not message["more_body"]


async def read_ahead(receive: Receive, most: int) -> Receive:
    """Read the body until it is whole or has more than `most` bytes; the result gives the same again, and what follows.

    For an application that would take `RequestTimeout` for an error of its own.
    """
    messages: deque[ReceiveMessage] = deque()
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        messages.append(message)
        more = message["type"] == "http.request" and message["more_body"]
        size += len(message["body"]) if message["type"] == "http.request" else 0

    async def again() -> ReceiveMessage:
        return messages.popleft() if messages else await receive()

    return again


def _announced(scope: Scope) -> bool:
    """Whether the head says that a body follows."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() not in NO_BODY)
        for name, value in scope["headers"]
    )
