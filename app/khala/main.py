"""The composition root: makes the parts, joins them, and takes them down in order."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import uvicorn
from litestar import Litestar

from khala.api.application import application
from khala.api.context import (
    BlobContext,
    Context,
    LimitContext,
    ModelContext,
    ProcessContext,
    SignInContext,
    ThreadContext,
    ToolContext,
)
from khala.api.http.body_limits import BodyDeadline
from khala.api.http.host_guard import HostGuard
from khala.api.http.http_protocol import BoundedHttpProtocol, UnsignalledServer, open_listening_socket, socket_url
from khala.api.http.rate_limits import RateLimiter
from khala.api.http.request_origin import OriginPolicy
from khala.api.http.request_telemetry import RequestTelemetry
from khala.api.http.websocket_protocol import WebSocketProtocol
from khala.api.operations.readiness import ReadinessService
from khala.blobs import store_url as blob_settings
from khala.blobs import temporary_folder
from khala.blobs.blob_service import BlobService
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.domain.parts import TokenUsage
from khala.domain.transfer_rate import TransferRatePolicy
from khala.identity.oidc import OidcProvider
from khala.lifecycle import background, stopped_by_signal
from khala.live.listener import Listener
from khala.live.service import LiveService
from khala.models import prices
from khala.models.providers import Providers
from khala.models.token_counter import Counter
from khala.runs import isolation
from khala.runs.executor import Executor
from khala.runs.executor_options import ExecutorOptions
from khala.runs.isolation import IsolatedExecutor
from khala.runs.model_turn import ModelDependencies
from khala.runs.run_executor import RunExecutor
from khala.runs.tool_executor import ToolDependencies
from khala.settings import INNER_POOL_SIZE, Settings
from khala.store.embedded import EmbeddedPostgres
from khala.store.operations.retention import RetentionLoop, RetentionPolicy
from khala.store.postgres import migrations
from khala.store.postgres.database import RUNS_CHANNEL, THREADS_CHANNEL, Database
from khala.store.runs.group_commit import WakeBus, Writer
from khala.store.threads.sends import SendLimits
from khala.telemetry.endpoint import watched
from khala.telemetry.gauges import Gauges
from khala.telemetry.tracing import tracing
from khala.tools.mcp import McpConnections
from khala.tools.sandbox import Sandbox
from khala.tools.tool_registry import ToolRegistry
from khala.watchdog import watched_loop

if TYPE_CHECKING:
    from khala.live.nats_bus import NatsBus

log = structlog.get_logger()

HERE = Path(__file__).parent
WEB = HERE / "web" if (HERE / "web").is_dir() else HERE.parent / "web" / "dist"
"""The built page: inside the package in a wheel, beside the package in a checkout."""
WATCH = 1.0
"""Seconds between two looks at whether the embedded Postgres is well."""
SETTLING = 15.0
"""Seconds that servers of tools have to be there before runs are worked on."""
CLOSING = 3
"""Seconds that open requests have to end when the process stops."""
MOST_SOCKET_FRAME = 1 << 20
"""Bytes of a frame over which uvicorn closes the socket; below it the API answers with an error."""


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[Database]:
    """The database; the embedded Postgres runs for as long as this is open, unless a URL was given."""
    async with AsyncExitStack() as stack:
        url = settings.database.url
        if url is None:
            postgres = await asyncio.to_thread(EmbeddedPostgres.start, settings.process.home)
            stack.push_async_callback(asyncio.to_thread, postgres.stop)
            url = postgres.url
            await stack.enter_async_context(background({"postgres": lambda: _watch(postgres)}))
        db = Database(url, direct_url=settings.database.direct_url, pool_size=settings.database.pool_size)
        stack.push_async_callback(db.close)
        yield db


@asynccontextmanager
async def blobs(settings: Settings, db: Database) -> AsyncIterator[BlobService]:
    """The blob service; its store and the folder of its temporary files are there for as long as this is open."""
    store = blob_settings.open_store(settings.blobs.url, settings.process.home)
    with temporary_folder.temporary_folder(settings.process.home / "spool") as folder:
        blob_service = BlobService(db, store, folder=folder, quota=settings.blobs.quota)
        try:
            yield blob_service
        finally:
            await blob_service.aclose()
            await store.aclose()


@asynccontextmanager
async def tools(
    settings: Settings, db: Database, blob_service: BlobService, connections: McpConnections
) -> AsyncIterator[ToolRegistry]:
    """The tools that there are."""
    async with background({"mcp": connections.run}):
        sandbox = await Sandbox.find()  # while the servers start
        # A run that is taken over goes on with its tools, and would take one for missing that is not there yet.
        await connections.wait_settled(SETTLING)
        yield ToolRegistry(db, blob_service, sandbox=sandbox, connections=connections, options=settings.tools.options)


@asynccontextmanager
async def _pool_of_our_own(db: Database) -> AsyncIterator[Database]:
    """Connections that no flood of requests can take from the writer, the heartbeat and the feed."""
    inner = Database(db.url, direct_url=db.direct_url, pool_size=INNER_POOL_SIZE)
    try:
        yield inner
    finally:
        await inner.close()


async def _watch(postgres: EmbeddedPostgres) -> None:
    while True:
        await asyncio.sleep(WATCH)
        await asyncio.to_thread(postgres.ensure)


class WorkerRuntime:
    """An executor and its dependencies. Without `isolation` it executes all runs in this process."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        tool_registry: ToolRegistry,
        blob_service: BlobService,
        bus: WakeBus | None,
        isolation: IsolatedExecutor | None,
        *,
        grace_seconds: float | None = None,
    ) -> None:
        self._providers = Providers(settings.provider_config)
        self._models = settings.model_chain
        self._writer = Writer(db, settings.runs.flush, bus)
        self._counter = Counter()
        options = ExecutorOptions(
            models=settings.model_chain,
            system=settings.models.system_prompt,
            concurrency=settings.runs.concurrency,
            max_isolated=settings.runs.isolated,
            context_tokens=settings.models.context_tokens,
            lease_seconds=settings.runs.lease_seconds,
            grace_seconds=settings.runs.grace_seconds if grace_seconds is None else grace_seconds,
            cooldown_seconds=settings.runs.cooldown_ms / 1000,
        )
        tool_dependencies = ToolDependencies(
            tool_registry=tool_registry, blob_service=blob_service, approval_seconds=settings.runs.approval_hours * 3600
        )
        models = ModelDependencies(open=self._providers.open, store_reasoning=settings.models.store_reasoning)
        run_executor = RunExecutor(db, self._writer, models, self._counter, tool_dependencies, options)
        self.executor = Executor(db, run_executor, options, isolation)

    def _warm(self) -> None:
        for ref in self._models:
            model = self._providers.open(ref)
            prices.cost(model.provider, model.name, TokenUsage())
            prices.context_window(model.provider, model.name)
            self._counter.count("warm", model.name)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work on runs for as long as this is open; they are drained when it closes."""
        # The first use of a model imports its SDK and the price list, for a second: now, not while somebody waits.
        await asyncio.to_thread(self._warm)
        await self._counter.ready(self._models[0].name)
        async with background({"writer": self._writer.run, "executor": self.executor.run}):
            try:
                yield
            finally:
                await self.executor.drain()
        await self._providers.aclose()


class Running(msgspec.Struct, frozen=True):
    """A server at work: where it is, and a task that ends only if serving fails."""

    address: str
    serving: "asyncio.Task[None]"


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    with_executor: bool = True,
    environment: Mapping[str, str] = os.environ,
    started: Callable[[], None] = lambda: None,
) -> AsyncIterator[Running]:
    """Serve for as long as this is open; then end or hand over what is under way.

    `environment` is what the settings were read from, for processes of single runs. `started` is called when the parts
    are made and runs are going to be executed.
    """
    async with AsyncExitStack() as stack:
        bound = stack.enter_context(open_listening_socket(settings.server.host, settings.server.port, backlog=2048))
        bus = await bus_of(settings)
        db = await stack.enter_async_context(database(settings))
        await migrations.upgrade(db.direct_url)
        inner = await stack.enter_async_context(_pool_of_our_own(db))
        blob_service = await stack.enter_async_context(blobs(settings, db))
        connections = McpConnections(settings.mcp)
        tool_registry = await stack.enter_async_context(tools(settings, db, blob_service, connections))
        apart = IsolatedExecutor(isolation.environment(db.url, db.direct_url, environment))
        worker = WorkerRuntime(settings, inner, tool_registry, blob_service, bus, apart) if with_executor else None
        live = LiveService(db, inner)
        handlers = live.handlers
        if worker:
            handlers[RUNS_CHANNEL] = worker.executor.notified
        listener = Listener(db.direct_url, handlers)
        readiness = ReadinessService(db, listener, blob_service)
        stack.push_async_callback(readiness.aclose)
        stopping = asyncio.Event()
        await stack.enter_async_context(
            watched(
                settings.process.metrics,
                Gauges({"inner": inner, "requests": db}, settings.runs.lease_seconds),
                lambda: readiness.examine(stopping=stopping.is_set()),
            )
        )
        # Closed in reverse: runs are drained while observers still watch, then sockets, then the feed.
        stack.push_async_callback(live.presence.close)
        loops = {**live.loops, "listener": listener.run, "retention": _retention(settings, inner).run}
        loops["collector"] = BlobGarbageCollector(inner, blob_service.store).run
        loops |= _hearing(bus, handlers)
        await stack.enter_async_context(background(loops))
        provider = OidcProvider(settings.accounts.oidc) if settings.accounts.oidc else None
        if provider:
            stack.push_async_callback(provider.aclose)
        app = _application(settings, db, blob_service, tool_registry, connections, live, readiness, provider, stopping)
        server = UnsignalledServer(_config(app, settings))
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        stack.push_async_callback(_close, server, serving)
        started()
        if worker:
            await stack.enter_async_context(worker.working())
        stack.push_async_callback(_linger, stopping, settings.server.drain_seconds)
        yield Running(socket_url(bound), serving)


def watchdog(settings: Settings, *, counts_marks: bool = True) -> AbstractAsyncContextManager[Callable[[], None]]:
    """Ends this process when its event loop hangs, while this is open; to be told when the process has started."""
    folder = settings.process.home / "watchdog"
    return watched_loop(
        settings.process.watchdog_seconds,
        log_format=settings.process.log_format,
        folder=folder,
        counts_marks=counts_marks,
    )


async def serve(settings: Settings, *, with_executor: bool, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. A second signal does not wait for what is under way."""
    stop = asyncio.create_task(stopped_by_signal().wait())
    async with (
        watchdog(settings) as started,
        tracing(on=settings.traces),
        running(settings, with_executor=with_executor, started=started) as server,
    ):
        announce(server.address)
        await asyncio.wait({stop, server.serving}, return_when=asyncio.FIRST_COMPLETED)
        if server.serving.done():
            server.serving.result()
            raise RuntimeError("The server ended by itself.")


async def work(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Execute runs until SIGTERM or SIGINT, without serving anybody."""
    stop = stopped_by_signal()
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(watchdog(settings))
        await stack.enter_async_context(tracing(on=settings.traces))
        bus = await bus_of(settings)
        db = await stack.enter_async_context(database(settings))
        blob_service = await stack.enter_async_context(blobs(settings, db))
        await migrations.upgrade(db.direct_url)
        connections = McpConnections(settings.mcp)
        tool_registry = await stack.enter_async_context(tools(settings, db, blob_service, connections))
        apart = IsolatedExecutor(isolation.environment(db.url, db.direct_url))
        worker = WorkerRuntime(settings, db, tool_registry, blob_service, bus, apart)
        handlers = {RUNS_CHANNEL: worker.executor.notified}
        listener = Listener(db.direct_url, handlers)
        readiness = ReadinessService(db, listener, blob_service)
        stack.push_async_callback(readiness.aclose)
        await stack.enter_async_context(
            watched(
                settings.process.metrics,
                Gauges({"inner": db}, settings.runs.lease_seconds),
                lambda: readiness.examine(stopping=stop.is_set()),
            )
        )
        loops = {"listener": listener.run, "retention": _retention(settings, db).run}
        loops["collector"] = BlobGarbageCollector(db, blob_service.store).run
        loops |= _hearing(bus, handlers)
        started()
        async with background(loops), worker.working():
            announce(worker.executor.id)
            await stop.wait()


async def bus_of(settings: Settings) -> "NatsBus | None":
    """The way of wake-ups beside Postgres, if one is set. Raises `ConnectionError`."""
    if settings.database.wake_url is None:
        return None
    # What it needs is installed only with khala[nats].
    from khala.live.nats_bus import NatsBus

    bus = NatsBus(settings.database.wake_url)
    await bus.check()
    return bus


def _hearing(
    bus: "NatsBus | None", handlers: Mapping[str, Callable[[str], None]]
) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
    """The loop that hears what comes by the bus; the listener goes on hearing what comes by Postgres."""
    told = {channel: handlers[channel] for channel in (THREADS_CHANNEL, RUNS_CHANNEL) if channel in handlers}
    return {} if bus is None else {"wake": lambda: bus.run(told)}


def _retention(settings: Settings, db: Database) -> RetentionLoop:
    return RetentionLoop(db, retention_policy(settings))


def retention_policy(settings: Settings) -> RetentionPolicy:
    """How long what is kept, by these settings."""
    return RetentionPolicy(idle=timedelta(days=settings.accounts.anon_days))


def _application(
    settings: Settings,
    db: Database,
    blob_service: BlobService,
    tool_registry: ToolRegistry,
    connections: McpConnections,
    live: LiveService,
    readiness: ReadinessService,
    provider: OidcProvider | None,
    stopping: asyncio.Event,
) -> Litestar:
    context = Context(
        db=db,
        live=live,
        origins=OriginPolicy(
            allowed=settings.server.origins,
            public_url=settings.server.public_url,
            proxies=settings.server.trusted_proxies,
            count_loopback=settings.limits.limit_loopback_networks,
        ),
        blobs=BlobContext(service=blob_service, max_upload_bytes=settings.blobs.max_upload_bytes),
        tools=ToolContext(registry=tool_registry, mcp_connections=connections, groups=settings.mcp.groups),
        models=ModelContext(listed=settings.listed_models, is_allowed=settings.allows_model),
        threads=ThreadContext(
            welcome=settings.server.welcome,
            allow_public=settings.server.public_threads,
            detail_token_lifetime=timedelta(minutes=settings.runs.detail_minutes),
        ),
        limits=_limits(settings),
        sign_in=SignInContext(
            provider=provider,
            provider_name=settings.accounts.oidc.name if settings.accounts.oidc else "",
            allow_registration=settings.accounts.registration == "open",
        ),
        process=ProcessContext(readiness=readiness, stopping=stopping),
    )
    return application(context, web=WEB, version=version("khala"))


def _limits(settings: Settings) -> LimitContext:
    limits = settings.limits
    return LimitContext(
        sends=SendLimits(per_owner=limits.runs_per_owner, waiting=limits.queue_limit, budgets=limits.budgets),
        requests=RateLimiter(limits.requests_per_minute, count_loopback=limits.limit_loopback_requests),
    )


def _config(app: Litestar, settings: Settings) -> uvicorn.Config:
    timed = BodyDeadline(app, TransferRatePolicy(pause=settings.server.body_pause_seconds))
    return uvicorn.Config(
        RequestTelemetry(HostGuard(timed, settings.server.allowed_hosts)),
        lifespan="off",
        http=BoundedHttpProtocol,
        ws=WebSocketProtocol,
        # Deflate costs 60 % more CPU a frame and 150 KB a socket, for frames of half a kilobyte.
        ws_per_message_deflate=False,
        ws_max_size=MOST_SOCKET_FRAME,
        ws_ping_interval=20,
        ws_ping_timeout=60,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=CLOSING,
    )


async def _linger(stopping: asyncio.Event, seconds: float) -> None:
    """Go on as before, and say that this will end: who sends requests here has this time to send them elsewhere."""
    stopping.set()
    await asyncio.sleep(seconds)


async def _close(server: UnsignalledServer, serving: "asyncio.Task[None]") -> None:
    server.should_exit = True
    await asyncio.wait({serving}, timeout=2 * CLOSING)
