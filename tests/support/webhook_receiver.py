"""A server that receives webhooks: it records requests, and answers as a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

DEADLINE_SECONDS = 20


class ReceivedWebhook(msgspec.Struct, frozen=True):
    """One request."""

    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.raw)


class WebhookReceiver:
    """The receiver at `url`. `answer` returns the status and the JSON of a response."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Callable[[Any], tuple[int, Any]] = lambda _: (200, {})
        self._received: asyncio.Queue[ReceivedWebhook] = asyncio.Queue()

    async def next(self) -> ReceivedWebhook:
        """The next request."""
        return await asyncio.wait_for(self._received.get(), DEADLINE_SECONDS)

    @property
    def waiting(self) -> int:
        """The requests that `next` has not returned."""
        return self._received.qsize()

    async def handle(self, request: web.Request) -> web.Response:
        """Record a request and answer it."""
        received = ReceivedWebhook(
            {name.lower(): value for name, value in request.headers.items()}, await request.read()
        )
        self._received.put_nowait(received)
        status, body = self.answer(received.body)
        headers = {"Location": "http://169.254.169.254/"} if 300 <= status < 400 else None
        return web.json_response(body, status=status, headers=headers)


@contextlib.asynccontextmanager
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    """Receive on a port of its own."""
    receiver = WebhookReceiver()
    application = web.Application()
    application.router.add_post("/hook", receiver.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        yield receiver
    finally:
        await runner.cleanup()
