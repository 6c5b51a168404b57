"""A server that gets events, and a dispatcher whose time a test lets pass."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from typing import Any
from uuid import UUID

import msgspec
from aiohttp import web
from standardwebhooks import Webhook

from khala.domain.access import Caller
from khala.domain.webhooks import DEPLOYMENT, shown_secret
from khala.store.postgres.database import Database
from khala.store.webhooks import deliveries, endpoints
from khala.store.webhooks.deliveries import EventDelivery
from khala.store.webhooks.endpoints import EndpointConfig, StoredEndpoint
from khala.tools.http_client import GuardedClient
from khala.tools.webhook_client import WebhookClient
from khala.webhooks.dispatcher import WebhookDispatcher
from khala.webhooks.event_sender import EventSender

DEADLINE_SECONDS = 20
LOOPBACK = (ip_network("127.0.0.0/8"),)


class ReceivedEvent(msgspec.Struct, frozen=True):
    """One request. Names of headers are in lower case."""

    headers: dict[str, str]
    raw: bytes

    @property
    def id(self) -> str:
        """The id of the event."""
        return self.headers["webhook-id"]

    @property
    def body(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.raw)

    @property
    def type(self) -> str:
        """The event's type."""
        return str(self.body["type"])

    def verify(self, secret: str) -> Any:
        """The event, verified by the library of the specification."""
        return Webhook(secret).verify(self.raw, self.headers)


class EventEndpoint:
    """An endpoint at `url`, which records requests. `answer` makes the responses, 200 by default."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = answering(200)
        self.received: list[ReceivedEvent] = []
        self._arrived = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record a request and answer it."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = ReceivedEvent(headers, await request.read())
        async with self._arrived:
            self.received.append(received)
            self._arrived.notify_all()
        return await self.answer(request)

    async def wait_for(self, count: int) -> list[ReceivedEvent]:
        """All requests, once there are so many."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def wait_for_type(self, event_type: str) -> ReceivedEvent:
        """The first event of this type."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: event_type in [each.type for each in self.received])
        return next(each for each in self.received if each.type == event_type)


def answering(status: int, text: str = "", **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answers with this response."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={key.replace("_", "-"): headers[key] for key in headers})

    return answer


@contextlib.asynccontextmanager
async def event_endpoint() -> AsyncIterator[EventEndpoint]:
    """Receive on a port of its own."""
    endpoint = EventEndpoint()
    application = web.Application()
    application.router.add_post("/events", endpoint.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.05)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/events"
        yield endpoint
    finally:
        await runner.cleanup()


def loopback_sender(db: Database, *, timeout_seconds: float = 10) -> EventSender:
    """A sender that may reach this machine."""
    return EventSender(db, WebhookClient(GuardedClient(allow=LOOPBACK)), timeout_seconds=timeout_seconds)


async def new_endpoint(db: Database, url: str, *, scope: UUID = DEPLOYMENT, **config: Any) -> StoredEndpoint:
    """Create an endpoint: by default the operator's, for all events."""
    chosen = EndpointConfig(url=url, **config)
    return await endpoints.create(db, scope, chosen, caller=Caller(), limit=100)


def secret_of(endpoint: StoredEndpoint) -> str:
    """The endpoint's newest secret."""
    return shown_secret(endpoint.secrets[0])


async def deliveries_of(db: Database, endpoint: StoredEndpoint) -> list[EventDelivery]:
    """All deliveries of the endpoint, the oldest first."""
    async with db.driver() as driver:
        return (await deliveries.page(driver, endpoint.id, before=None, state=None, limit=1000))[::-1]


async def health_of(db: Database, endpoint: StoredEndpoint) -> StoredEndpoint:
    """The endpoint as it is now."""
    async with db.driver() as driver:
        return await endpoints.read(driver, endpoint.scope_id, endpoint.id)


async def settle(dispatcher: WebhookDispatcher) -> float:
    """Deliver all that is due. Returns the seconds until more is."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            async with asyncio.TaskGroup() as attempts:
                seconds = await dispatcher.look(attempts)
            if seconds > 0:
                return seconds
