"""The composition root of `khala serve` and `khala work`: opens the components, and closes them in reverse order."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import msgspec
import uvicorn
from litestar.types import ASGIApp

from khala.api.application import application
from khala.api.context import (
    ProcessContext,
)
from khala.api.http.body_limits import BodyDeadline
from khala.api.http.host_guard import HostGuard
from khala.api.http.http_protocol import BoundedHttpProtocol, UnsignalledServer, open_listening_socket, socket_url
from khala.api.http.request_telemetry import RequestTelemetry
from khala.api.http.websocket_protocol import WebSocketProtocol
from khala.api.operations.readiness import ReadinessService
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.components import Components, WorkerRuntime, child_environment, open_components, open_watchdog
from khala.domain.transfer_rate import TransferRatePolicy
from khala.lifecycle import background, stopped_by_signal
from khala.live.listener import Listener
from khala.live.service import LiveService
from khala.push.dispatcher import PushDispatcher
from khala.push.push_sender import PushSender
from khala.route_context import gateway_options, open_context, open_streams
from khala.sdk.loading import App
from khala.search.blob_indexer import BlobIndexer
from khala.search.search_indexer import SearchIndexer
from khala.settings import INNER_POOL_SIZE, Settings
from khala.store.console.usage_rollup import UsageRollup
from khala.store.operations.retention import RetentionPolicy
from khala.store.operations.retention_loop import RetentionLoop
from khala.store.operations.verify_loop import VerificationLoop
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    PLANS_CHANNEL,
    PUSH_CHANNEL,
    RUNS_CHANNEL,
    SCHEDULES_CHANNEL,
    STREAMS_CHANNEL,
    SUBSCRIPTIONS_CHANNEL,
    THREADS_CHANNEL,
    WEBHOOKS_CHANNEL,
)
from khala.store.runs.group_commit import LocalFeed, Writer
from khala.stream_wakes.dispatcher import WakeDispatcher
from khala.telemetry.endpoint import serve_monitoring
from khala.telemetry.gauges import Gauges
from khala.telemetry.tracing import tracing
from khala.tools.http_client import GuardedClient
from khala.tools.ssrf_guard import AddressAndPort
from khala.tools.webhook_client import WebhookClient
from khala.version import KHALA_VERSION
from khala.webhooks.dispatcher import WebhookDispatcher
from khala.webhooks.event_sender import EventSender
from khala.workers.worker_gateway import WorkerGateway

HERE = Path(__file__).parent
WEB = HERE / "web" if (HERE / "web").is_dir() else HERE.parent / "web" / "dist"
"""The built page: inside the package in a wheel, beside the package in a checkout."""
CLOSE_TIMEOUT_SECONDS = 3
"""Time that open requests have to end when the process stops."""
MAX_SOCKET_FRAME_BYTES = 1 << 20
"""Size of a frame over which uvicorn closes the socket; below it the API answers with an error."""
LISTEN_BACKLOG = 2048
"""Connections that may wait to be accepted."""

Handlers: TypeAlias = Mapping[str, Callable[[str], None]]
Loops: TypeAlias = dict[str, Callable[[], Awaitable[None]]]


class Running(msgspec.Struct, frozen=True):
    """A running server: its address, a task that ends only if the server fails, and what it is made of."""

    address: str
    serving: "asyncio.Task[None]"
    components: Components


async def serve(settings: Settings, *, with_executor: bool, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. A second signal does not wait for active runs and open requests."""
    stop = asyncio.create_task(stopped_by_signal().wait())
    async with (
        open_watchdog(settings) as started,
        tracing(on=settings.traces),
        running(settings, with_executor=with_executor, started=started) as server,
    ):
        announce(server.address)
        await asyncio.wait({stop, server.serving}, return_when=asyncio.FIRST_COMPLETED)
        if server.serving.done():
            server.serving.result()
            raise RuntimeError("The server ended by itself.")


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    with_executor: bool = True,
    environment: Mapping[str, str] = os.environ,
    started: Callable[[], None] = lambda: None,
    app: App | None = None,
    webhook_endpoints: Sequence[AddressAndPort] = (),
) -> AsyncIterator[Running]:
    """Serve while the context is open; then end or hand over the active runs.

    `environment`: the variables of the settings, for child processes of single runs. `started`: called when the
    components are open and before runs are executed. `app`: what is served in place of the modules of `KHALA_APP`.
    `webhook_endpoints`: what webhooks may reach beside the networks of `KHALA_FETCH_ALLOW`.
    """
    async with AsyncExitStack() as stack:
        bound = stack.enter_context(
            open_listening_socket(settings.server.host, settings.server.port, backlog=LISTEN_BACKLOG)
        )
        components = await stack.enter_async_context(open_components(settings, app=app))
        inner = await stack.enter_async_context(_open_inner_pool(components.db))
        live = LiveService(components.db, inner)
        worker = _worker(components, inner, environment, live.own_appends) if with_executor else None
        streams = open_streams(settings, inner)
        dispatcher = WakeDispatcher(inner, streams.webhooks, streams.limits)
        sender, push_sender = _open_senders(settings, inner, webhook_endpoints)
        webhooks, push = WebhookDispatcher(inner, sender), PushDispatcher(inner, push_sender)
        writer = Writer(inner, settings.runs.flush, components.wake_bus, live.own_appends)
        gateway = WorkerGateway(inner, writer, components.blob_service, gateway_options(settings))
        handlers = {**live.handlers, **_worker_handlers(worker, gateway), **_stream_handlers(live, dispatcher)}
        handlers |= {WEBHOOKS_CHANNEL: webhooks.handle_notification, PUSH_CHANNEL: push.handle_notification}
        pools = {"inner": inner, "requests": components.db}
        stopping = asyncio.Event()
        # Closed in reverse: runs are drained while observers still follow them, then sockets, then the feed.
        listener = Listener(components.db.direct_url, handlers, live.own_appends)
        readiness, loops = await _open_services(stack, components, inner, listener, handlers, pools, stopping)
        loops |= {"streams": streams.writer.run, "wakes": dispatcher.run, "webhooks": webhooks.run, "push": push.run}
        loops |= {"remote writer": writer.run, "workers": gateway.run}
        stack.push_async_callback(live.presence.close)
        await stack.enter_async_context(background({**live.loops, **loops}))
        stack.push_async_callback(gateway.aclose)
        context = open_context(
            stack,
            components,
            live,
            streams=streams,
            webhooks=sender,
            push=push_sender,
            workers=gateway,
            process=ProcessContext(readiness=readiness, stopping=stopping),
        )
        site = application(context, web=WEB, version=KHALA_VERSION)
        server = UnsignalledServer(_server_config(site, settings))
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        stack.push_async_callback(_close, server, serving)
        started()
        if worker:
            await stack.enter_async_context(worker.working())
        stack.push_async_callback(_drain, stopping, settings.server.drain_seconds)
        yield Running(socket_url(bound), serving, components)


async def work(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Execute runs until SIGTERM or SIGINT, without serving requests."""
    stop = stopped_by_signal()
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(open_watchdog(settings))
        await stack.enter_async_context(tracing(on=settings.traces))
        components = await stack.enter_async_context(open_components(settings))
        db = components.db
        worker = _worker(components, db, os.environ)
        handlers = _worker_handlers(worker)
        listener = Listener(db.direct_url, handlers)
        _, loops = await _open_services(stack, components, db, listener, handlers, {"inner": db}, stop)
        started()
        async with background(loops), worker.working():
            announce(worker.executor.id)
            await stop.wait()


@asynccontextmanager
async def _open_inner_pool(db: Database) -> AsyncIterator[Database]:
    """A pool for the writer, the heartbeat and the feed, so that many requests cannot exhaust their connections."""
    inner = Database(db.url, direct_url=db.direct_url, pool_size=INNER_POOL_SIZE)
    try:
        yield inner
    finally:
        await inner.close()


def _open_senders(
    settings: Settings, db: Database, endpoints: Sequence[AddressAndPort]
) -> tuple[EventSender, PushSender]:
    """The senders of events to webhooks, and of notifications to push services."""
    allow = settings.tools.fetch_allow
    events = EventSender(db, WebhookClient(GuardedClient(allow=allow, endpoints=endpoints, needs_tls=True)))
    push = WebhookClient(GuardedClient(allow=allow, needs_tls=True))
    return events, PushSender(db, push, hosts=settings.push.hosts, contact=settings.push_contact)


def _worker(
    components: Components, db: Database, environment: Mapping[str, str], local: LocalFeed | None = None
) -> WorkerRuntime:
    return WorkerRuntime(
        components,
        db,
        isolated_environment=child_environment(components.db, environment),
        grace_seconds=components.settings.runs.grace_seconds,
        local=local,
    )


def _worker_handlers(worker: WorkerRuntime | None, gateway: WorkerGateway | None = None) -> Handlers:
    def handle_runs(payload: str) -> None:
        if worker is not None:
            worker.executor.handle_notification(payload)
        if gateway is not None:
            gateway.handle_notification(payload)

    handlers: dict[str, Callable[[str], None]] = {RUNS_CHANNEL: handle_runs}
    if worker is not None:
        handlers[PLANS_CHANNEL] = worker.driver.handle_notification
        handlers[SCHEDULES_CHANNEL] = worker.schedules.handle_notification
    return handlers


def _stream_handlers(live: LiveService, dispatcher: WakeDispatcher) -> Handlers:
    def handle_streams(payload: str) -> None:
        live.streams.handle_notification(payload)
        dispatcher.handle_streams(payload)

    return {STREAMS_CHANNEL: handle_streams, SUBSCRIPTIONS_CHANNEL: dispatcher.handle_subscriptions}


async def _open_services(
    stack: AsyncExitStack,
    components: Components,
    db: Database,
    listener: Listener,
    handlers: Handlers,
    pools: Mapping[str, Database],
    stopping: asyncio.Event,
) -> tuple[ReadinessService, Loops]:
    """Open the readiness service and the monitoring endpoint. Returns the service and the background loops.

    `handlers`: called with the payloads of their channels. `pools`: the pools in the metrics.
    """
    settings = components.settings
    readiness = ReadinessService(components.db, listener, components.blob_service)
    stack.push_async_callback(readiness.aclose)
    endpoint = serve_monitoring(
        settings.process.metrics,
        Gauges(pools, settings.runs.lease_seconds),
        lambda: readiness.examine(stopping=stopping.is_set()),
    )
    await stack.enter_async_context(endpoint)
    loops: Loops = {
        "listener": listener.run,
        "retention": RetentionLoop(db, retention_policy(settings)).run,
        "verification": VerificationLoop(db).run,
        "usage": UsageRollup(db).run,
        "memories": components.memories.run,
        "embedding usage": components.memories.record_usage,
        "search": SearchIndexer(db, enabled=settings.database.search, with_passages=components.passages.enabled).run,
        "search of files": BlobIndexer(db, components.blob_service, enabled=settings.database.search).run,
        "passages": components.passages.run,
        "router": components.router.run,
        "tool router": components.tool_router.run,
        "collector": BlobGarbageCollector(db, components.blob_service.store).run,
    }
    if (bus := components.wake_bus) is not None:
        # The listener continues to receive notifications of Postgres.
        received = {channel: handlers[channel] for channel in (THREADS_CHANNEL, RUNS_CHANNEL) if channel in handlers}
        loops["wake"] = lambda: bus.run(received)
    return readiness, loops


def retention_policy(settings: Settings) -> RetentionPolicy:
    """The time for which data is kept."""
    return RetentionPolicy(
        idle=timedelta(days=settings.accounts.anon_days), parts=timedelta(days=settings.database.parts_days)
    )


def _server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    timed = BodyDeadline(app, TransferRatePolicy(max_pause=settings.server.body_pause_seconds))
    return uvicorn.Config(
        RequestTelemetry(HostGuard(timed, settings.server.allowed_hosts)),
        lifespan="off",
        http=BoundedHttpProtocol,
        ws=WebSocketProtocol,
        # Deflate costs 60 % more CPU a frame and 150 KB a socket, for frames of half a kilobyte.
        ws_per_message_deflate=False,
        ws_max_size=MAX_SOCKET_FRAME_BYTES,
        ws_ping_interval=20,
        ws_ping_timeout=60,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_SECONDS,
    )


async def _drain(stopping: asyncio.Event, seconds: float) -> None:
    """Continue to serve, while readiness tells load balancers to send requests elsewhere."""
    stopping.set()
    await asyncio.sleep(seconds)


async def _close(server: UnsignalledServer, serving: "asyncio.Task[None]") -> None:
    server.stop()
    await asyncio.wait({serving}, timeout=2 * CLOSE_TIMEOUT_SECONDS)
