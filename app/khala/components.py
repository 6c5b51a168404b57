"""Builds the components that processes share: database, blobs, tools and the executor's runtime.

`khala serve`, `khala work` and the child process of a single run are built here in the same order, and taken down in
reverse.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from khala.blobs import store_url, temporary_folder
from khala.blobs.blob_service import BlobService
from khala.domain.parts import TokenUsage
from khala.domain.secret_box import SecretBox
from khala.lifecycle import background
from khala.memory.agent_router import AgentRouter
from khala.memory.extractor import ExtractionOptions, MemoryExtractor
from khala.memory.memory_service import MemoryService
from khala.memory.tool_router import ToolRouter
from khala.models import prices
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.factory import open_embedder
from khala.models.providers import Providers
from khala.models.token_counter import TokenCounter
from khala.plans.agent_probe import AgentProbe
from khala.plans.checkout_cleaner import CheckoutCleaner
from khala.plans.driver import DriverOptions, PlanDriver
from khala.plans.pump import PumpOptions
from khala.plans.step_tasks import StepTasks
from khala.runs import isolation
from khala.runs.executor import Executor
from khala.runs.executor_options import ExecutorOptions
from khala.runs.isolation import IsolatedExecutor
from khala.runs.model_turn import ModelDependencies
from khala.runs.run_executor import RunExecutor
from khala.runs.tool_executor import ToolDependencies
from khala.schedules.runner import ScheduleRunner
from khala.sdk.loading import App, load_app
from khala.search.passage_embedder import PassageEmbedder
from khala.settings import Settings
from khala.store.embedded import EmbeddedPostgres
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from khala.store.runs.group_commit import LocalFeed, Writer
from khala.store.threads.sends import SendLimits
from khala.titles.title_writer import TitleOptions, TitleWriter
from khala.tools.commands import CommandRunner
from khala.tools.mcp import McpConnections
from khala.tools.mcp.accounts.account_servers import AccountServers
from khala.tools.sandbox import Sandbox
from khala.tools.tool_registry import ToolRegistry
from khala.watchdog import watched_loop

if TYPE_CHECKING:
    from khala.live.nats_bus import NatsBus

POSTGRES_CHECK_INTERVAL_SECONDS = 1.0
"""Time between two checks of the embedded Postgres."""
MCP_START_TIMEOUT_SECONDS = 15.0
"""Time that MCP servers have to start before runs are executed without them."""


@dataclass(frozen=True, kw_only=True)
class Components:
    """The components of a process that executes runs or answers requests."""

    settings: Settings
    db: Database
    blob_service: BlobService
    connections: McpConnections
    account_servers: AccountServers | None
    """None if there are no MCP servers to which accounts connect their own."""
    tool_registry: ToolRegistry
    commands: CommandRunner
    app: App
    embedder: Embedder | None
    """None if no embedding model is configured."""
    memories: MemoryService
    passages: PassageEmbedder
    router: AgentRouter
    tool_router: ToolRouter
    wake_bus: "NatsBus | None"


@asynccontextmanager
async def open_components(
    settings: Settings, *, pool_size: int | None = None, migrate: bool = True, app: App | None = None
) -> AsyncIterator[Components]:
    """Open all components; the schema is up to date unless `migrate` is false.

    `pool_size` is the number of connections to the database, by default that of the settings. `app` stands for the
    modules of the settings, which are imported without it. Raises
    `ConnectionError` if a NATS server is set and does not answer, `EmbeddingModelError` if the embedding model cannot
    be used, and `AppError` if a module of the application cannot be imported.
    """
    async with AsyncExitStack() as stack:
        if app is None:
            app = await asyncio.to_thread(load_app, settings.runs.app)
        wake_bus = await _open_wake_bus(settings)
        db = await stack.enter_async_context(open_database(settings, pool_size=pool_size))
        if migrate:
            await migrations.upgrade(db.direct_url)
        blob_service = await stack.enter_async_context(open_blobs(settings, db))
        connections = McpConnections(settings.mcp)
        account_servers = await _open_account_servers(settings, db)
        embedder = await stack.enter_async_context(_open_embedder(settings))
        memories = MemoryService(db, embedder, settings.budgets)
        stack.push_async_callback(memories.aclose)
        await memories.prepare()
        passages = PassageEmbedder(db, memories, days=_message_days(settings))
        await passages.prepare()
        router = AgentRouter(db, embedder, memories)
        await router.prepare()
        tool_router = ToolRouter(embedder, memories, router)
        sandbox, tool_registry = await stack.enter_async_context(
            _open_tools(settings, db, blob_service, connections, account_servers, memories, app)
        )
        yield Components(
            settings=settings,
            db=db,
            blob_service=blob_service,
            connections=connections,
            account_servers=account_servers,
            tool_registry=tool_registry,
            commands=CommandRunner(settings.commands, sandbox),
            app=app,
            embedder=embedder,
            memories=memories,
            passages=passages,
            router=router,
            tool_router=tool_router,
            wake_bus=wake_bus,
        )


@asynccontextmanager
async def open_database(settings: Settings, *, pool_size: int | None = None) -> AsyncIterator[Database]:
    """Open the database. Without a URL the embedded Postgres runs for as long as this is open."""
    async with AsyncExitStack() as stack:
        url = settings.database.url
        if url is None:
            postgres = await asyncio.to_thread(
                EmbeddedPostgres.start, settings.process.home, settings.database.embedded_parameters
            )
            stack.push_async_callback(asyncio.to_thread, postgres.stop)
            url = postgres.url
            await stack.enter_async_context(background({"postgres": lambda: _supervise(postgres)}))
        size = settings.database.pool_size if pool_size is None else pool_size
        db = Database(url, direct_url=settings.database.direct_url, pool_size=size)
        stack.push_async_callback(db.close)
        yield db


async def _supervise(postgres: EmbeddedPostgres) -> None:
    while True:
        await asyncio.sleep(POSTGRES_CHECK_INTERVAL_SECONDS)
        await asyncio.to_thread(postgres.check)


@asynccontextmanager
async def open_blobs(settings: Settings, db: Database) -> AsyncIterator[BlobService]:
    """Open the blob service, with its store and the folder of its temporary files."""
    store = store_url.open_store(settings.blobs.url, settings.process.home)
    with temporary_folder.temporary_folder(settings.process.home / "spool") as folder:
        blob_service = BlobService(db, store, folder=folder, quota=settings.storage_quota)
        try:
            yield blob_service
        finally:
            await blob_service.aclose()
            await store.aclose()


@asynccontextmanager
async def _open_tools(
    settings: Settings,
    db: Database,
    blob_service: BlobService,
    connections: McpConnections,
    account_servers: AccountServers | None,
    memories: MemoryService,
    app: App,
) -> AsyncIterator[tuple[Sandbox | None, ToolRegistry]]:
    loops: dict[str, Callable[[], Awaitable[None]]] = {"mcp": connections.run}
    if account_servers is not None:
        loops["mcp accounts"] = account_servers.run
    async with background(loops):
        sandbox = await Sandbox.find()  # while the MCP servers start
        # A run that is taken over continues with its tools: a server that is still starting would count as missing.
        await connections.wait_settled(MCP_START_TIMEOUT_SECONDS)
        registry = ToolRegistry(
            db,
            blob_service,
            sandbox=sandbox,
            connections=connections,
            account_tools=None if account_servers is None else account_servers.tools,
            memories=memories,
            app_tools=app.tools,
            options=settings.tools.options,
        )
        yield sandbox, registry


async def _open_account_servers(settings: Settings, db: Database) -> AccountServers | None:
    if not any(server.is_per_account for server in settings.mcp.servers.values()):
        return None
    # The MCP library takes a second to load.
    await asyncio.to_thread(importlib.import_module, "khala.tools.mcp.accounts.compose")
    from khala.tools.mcp.accounts.compose import open_account_servers

    return open_account_servers(
        settings.mcp,
        db,
        SecretBox(settings.accounts.secret_keys),
        allow=settings.tools.fetch_allow,
        public_url=settings.server.public_url,
    )


@asynccontextmanager
async def _open_embedder(settings: Settings) -> AsyncIterator[Embedder | None]:
    if settings.embeddings.model is None:
        yield None
        return
    embedder = await asyncio.to_thread(open_embedder, settings.embeddings.model, settings.embedding_access)
    try:
        yield embedder
    finally:
        await embedder.aclose()


def _message_days(settings: Settings) -> int:
    """The days whose messages are embedded: none where messages are not searched."""
    return settings.embeddings.message_days if settings.database.search else 0


async def _open_wake_bus(settings: Settings) -> "NatsBus | None":
    if settings.database.wake_url is None:
        return None
    # Its library is installed with khala-server[nats] only.
    from khala.live.nats_bus import NatsBus

    bus = NatsBus(settings.database.wake_url)
    await bus.check()
    return bus


class WorkerRuntime:
    """An executor with its writer, models and token counter.

    Runs over which executors were lost are executed in child processes, whose environment is `isolated_environment`.
    Without one, every run is executed in this process. `db` is the pool of the executor and its writer. `local`
    delivers what it writes to the observers of this process.
    """

    def __init__(
        self,
        components: Components,
        db: Database,
        *,
        isolated_environment: Mapping[str, str] | None,
        grace_seconds: float,
        local: LocalFeed | None = None,
    ) -> None:
        settings = components.settings
        self._providers = Providers(settings.provider_config)
        self._models = settings.model_chain
        self._writer = Writer(db, settings.runs.flush, components.wake_bus, local)
        self._counter = TokenCounter()
        options = _executor_options(settings, grace_seconds)
        models = ModelDependencies(open=self._providers.open, store_reasoning=settings.models.store_reasoning)
        tools = _tool_dependencies(components)
        run_executor = RunExecutor(db, self._writer, models, self._counter, tools, components.memories, options)
        isolated = None if isolated_environment is None else IsolatedExecutor(isolated_environment)
        self.executor = Executor(db, run_executor, options, isolated)
        self.driver = PlanDriver(
            db,
            self._pump_options(components),
            DriverOptions(lease_seconds=options.lease_seconds),
            CheckoutCleaner(components.db, components.commands.commands),
        )
        self.schedules = ScheduleRunner(db, send_limits(settings), settings.allows_model)
        self._extractor = MemoryExtractor(
            components.db, components.memories, self._providers.open, _extraction_options(settings)
        )
        self._titles = self._title_writer(components)

    def _title_writer(self, components: Components) -> TitleWriter | None:
        settings = components.settings
        if not settings.titles.enabled:
            return None
        options = TitleOptions(model=settings.titles.model, fallback=settings.model_chain[0], budgets=settings.budgets)
        return TitleWriter(components.db, self._providers.open, options)

    def _pump_options(self, components: Components) -> PumpOptions:
        settings = components.settings
        return PumpOptions(
            budgets=settings.budgets,
            per_owner=settings.limits.runs_per_owner,
            tasks=StepTasks(components.db, components.commands.commands, components.app),
            probe=AgentProbe(
                components.db, components.commands, self._providers.open, settings.model_chain[0], components.app
            ).probe,
        )

    def _load_models(self) -> None:
        """Import the models' SDKs and load the price list, which takes a second: now, and not during a request."""
        for ref in self._models:
            model = self._providers.open(ref)
            prices.cost(model.provider, model.name, TokenUsage())
            prices.context_window(model.provider, model.name)
            self._counter.count("warm", model.name)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Execute runs for as long as this is open; they are drained when it closes."""
        await asyncio.to_thread(self._load_models)
        await self._counter.load(self._models[0].name)
        loops = {
            "writer": self._writer.run,
            "executor": self.executor.run,
            "plans": self.driver.run,
            "schedules": self.schedules.run,
            "extraction": self._extractor.run,
        }
        if self._titles is not None:
            loops["titles"] = self._titles.run
        async with background(loops):
            try:
                yield
            finally:
                await self.executor.drain()
        await self._providers.aclose()


def child_environment(db: Database, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of child processes that execute single runs: ours, with the database that is open here."""
    return isolation.environment(db.url, db.direct_url, environment)


def send_limits(settings: Settings) -> SendLimits:
    """The limits of sends, by requests and by schedules."""
    limits = settings.limits
    return SendLimits(per_owner=limits.runs_per_owner, waiting=limits.queue_limit, budgets=settings.budgets)


def _tool_dependencies(components: Components) -> ToolDependencies:
    return ToolDependencies(
        tool_registry=components.tool_registry,
        blob_service=components.blob_service,
        commands=components.commands,
        app=components.app,
        tool_router=components.tool_router,
        approval_seconds=components.settings.runs.approval_hours * 3600,
    )


def _executor_options(settings: Settings, grace_seconds: float) -> ExecutorOptions:
    return ExecutorOptions(
        models=settings.model_chain,
        system=settings.models.system_prompt,
        allows_model=settings.allows_model,
        concurrency=settings.runs.concurrency,
        max_isolated=settings.runs.isolated,
        context_tokens=settings.models.context_tokens,
        lease_seconds=settings.runs.lease_seconds,
        grace_seconds=grace_seconds,
        cooldown_seconds=settings.runs.cooldown_ms / 1000,
        titles=settings.titles.enabled,
        demo_titles=settings.titles.model is not None,
        extraction=settings.memory.extraction,
        extraction_delay_seconds=settings.memory.delay_seconds,
    )


def _extraction_options(settings: Settings) -> ExtractionOptions:
    return ExtractionOptions(
        default=settings.memory.extraction,
        model=settings.memory.model,
        fallback=settings.model_chain[0],
        budgets=settings.budgets,
        delay_seconds=settings.memory.delay_seconds,
    )


def open_watchdog(settings: Settings, *, counts_marks: bool = True) -> AbstractAsyncContextManager[Callable[[], None]]:
    """End this process when its event loop hangs, for as long as this is open.

    Call what it yields when the process has started. `counts_marks`: see `khala.watchdog.watched_loop`.
    """
    return watched_loop(
        settings.process.watchdog_seconds,
        log_format=settings.process.log_format,
        folder=settings.process.home / "watchdog",
        counts_marks=counts_marks,
    )
