"""The deployment under test: Postgres, web processes, executors, a model, tools, and the proxies between them."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import psutil

from khala.tools.supervised import SUPERVISOR
from tests.chaos.model import ScriptedModel
from tests.chaos.postgres_cluster import PostgresCluster
from tests.chaos.preloaded_libraries import compile_library
from tests.chaos.schedule import MEMBERS, WEBS
from tests.chaos.tcp_proxy import TcpProxy
from tests.support import postgres
from tests.support.command_agents import with_mark
from tests.support.ports import free_port
from tests.support.providers import serving
from tests.support.server import ROOT, Process, command

LEASE_SECONDS = 2.0
EVENT_LOG = Path(__file__).with_name("event_log.sql")
READY_LINES = ("Khala is at ", "Khala works as ")
"""What processes log when they are ready."""
SUPERVISE_INTERVAL_SECONDS = 0.2
SUPERVISED = ("-I", "-S", str(SUPERVISOR))
"""The beginning of the arguments of a process that supervises a command."""
COMMAND_AGENT = Path(__file__).with_name("command_agent.py")


class Member:
    """A `khala` process that is started again whenever it was killed; each start is a new incarnation."""

    def __init__(self, name: str, folder: Path, database_port: int) -> None:
        self.name = name
        self.incarnation = 0
        self.lock = asyncio.Lock()
        """Held by the fault that currently affects this process."""
        self.port = free_port()
        self.database = TcpProxy(database_port, lambda: f"{name}#{self.incarnation}")
        self.clients = TcpProxy(self.port, lambda: name)
        self.serves = name in WEBS
        self.log = folder / f"{name}.log"
        self.ended_by_itself: list[int] = []
        """Exit statuses of incarnations that ended by themselves after they had been ready."""
        self.failed_starts = 0
        """Number of incarnations that ended before they were ready, as they may if the database is unreachable."""
        self._log_start = 0
        self._clock = folder / f"{name}.clock"
        self._process: Process | None = None

    def begin(self, env: dict[str, str], library: Path | None) -> None:
        """Start the first incarnation, with the library that fakes its clock, if there is one."""
        overrides = {"DATABASE_URL": f"postgresql://khala@127.0.0.1:{self.database.port}/khala", "PORT": str(self.port)}
        self.set_clock(0)
        if library is not None:
            overrides |= {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._clock)}
        arguments = ("serve", "--no-executor") if self.serves else ("work",)
        self._process = Process(self.log, env | overrides, *arguments, anew=True)
        self.start()

    @property
    def process(self) -> Process:
        """The process of the current incarnation, or of the last one."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start another incarnation."""
        self.incarnation += 1
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process.start()

    def is_ready(self) -> bool:
        """Whether this incarnation has logged that it is ready."""
        return any(sign in self.log.read_text()[self._log_start :] for sign in READY_LINES)

    def set_clock(self, offset: float) -> None:
        """Set the offset of the wall clock, in seconds. The monotonic clock is unaffected, because it never jumps."""
        with self._clock.open("r+b" if self._clock.exists() else "w+b") as file:
            file.write(int(offset).to_bytes(8, sys.byteorder, signed=True))

    def revive(self) -> None:
        """Start it again if it has ended without a fault."""
        if not self.lock.locked() and not self.process.running():
            if self.is_ready():
                self.ended_by_itself.append(self.process.ended_with() or 0)
            else:
                self.failed_starts += 1
            self.start()

    def end(self) -> None:
        """End the process for good."""
        if self._process is not None and self._process.running():
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()


class Deployment:
    """The whole deployment. `began` is the start of the run by the monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = PostgresCluster(folder)
        self.model = ScriptedModel()
        self.members = {name: Member(name, folder, self.cluster.port) for name in MEMBERS}
        self.locks = {target: asyncio.Lock() for target in ("postgres", "model", "commands")}
        """Held by the fault that currently affects this target, which is no member."""
        self.journal = folder / "tools.jsonl"
        self.command_journal = folder / "commands.jsonl"
        self.checkouts = folder / "checkouts"
        self.clock_library: Path | None = None
        self.began = time.monotonic()
        self.faults: list[str] = []
        """The log of faults, in order."""

    @property
    def webs(self) -> list[Member]:
        """The web processes."""
        return [self.members[name] for name in WEBS]

    def record_event(self, event: str) -> None:
        """Log an event with its time."""
        self.faults.append(f"{time.monotonic() - self.began:8.2f} {event}")
        with (self.folder / "faults.log").open("a") as log:
            log.write(self.faults[-1] + "\n")

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A direct connection to the database."""
        connection = await asyncpg.connect(self.cluster.url, timeout=10, command_timeout=60)
        try:
            yield connection
        finally:
            await connection.close()

    async def supervise(self) -> None:
        """Restart processes that died without a fault, until cancelled, as an operator's supervisor would."""
        while True:
            await asyncio.sleep(SUPERVISE_INTERVAL_SECONDS)
            if self.cluster.revive():
                self.record_event("postgres died, and was started again")
            for member in self.members.values():
                member.revive()

    def command_programs(self) -> list[psutil.Process]:
        """The processes of command agents, without those of Khala that supervise them."""
        found = []
        for pid in with_mark(str(self.command_journal)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.cmdline()[1:4] != list(SUPERVISED):
                    found.append(process)
        return found

    async def verify(self) -> tuple[int, str]:
        """The exit status and output of `khala verify`."""
        done = await asyncio.to_thread(command, {"DATABASE_URL": self.cluster.url}, "verify")
        return done.returncode, done.stdout + done.stderr


@contextlib.asynccontextmanager
async def running_deployment(folder: Path) -> AsyncIterator[Deployment]:
    """Run a deployment until the context exits."""
    folder.chmod(0o711)  # for a server that runs as another user
    deployment = Deployment(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(deployment.cluster.destroy)
        await asyncio.to_thread(deployment.cluster.create)
        deployment.clock_library = await asyncio.to_thread(compile_library, "wrong_clock", folder)
        deployment.cluster.start()
        model = await stack.enter_async_context(serving(default=deployment.model))
        tools = await stack.enter_async_context(_tools(deployment))
        config = folder / "mcp.json"
        server = {"url": f"http://127.0.0.1:{tools}/mcp", "anonymous": True, "timeout": 10}
        config.write_text(json.dumps({"mcpServers": {"peculiar": server}}))
        await _prepare_database(deployment)
        env = _settings(folder, config, model.url) | {"KHALA_COMMANDS": str(_write_commands(deployment))}
        for member in deployment.members.values():
            await stack.enter_async_context(member.database.open())
            await stack.enter_async_context(member.clients.open())
            stack.callback(member.end)
            member.begin(env, deployment.clock_library)
        yield deployment


@contextlib.asynccontextmanager
async def _tools(deployment: Deployment) -> AsyncIterator[int]:
    """Run the MCP server whose tools journal their effects; yields its port."""
    port = free_port()
    command_line = [sys.executable, "-m", "tests.support.mcp_server", "http", str(deployment.journal), str(port)]
    with (deployment.folder / "tools.log").open("wb") as log:
        process = subprocess.Popen(command_line, cwd=ROOT, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(60):
            while not await _is_listening(port):
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _write_commands(deployment: Deployment) -> Path:
    """Write the configuration of the command agents. Returns its file."""
    command = {
        "argv": [sys.executable, "-S", str(COMMAND_AGENT), str(deployment.command_journal)],
        "guests": True, "killAfter": 0.5, "timeout": 30,
    }  # fmt: skip
    checkout = {"folder": f"{deployment.checkouts}/{{thread}}", "git": True}
    path = deployment.folder / "commands.json"
    path.write_text(json.dumps({"commands": {"write": command, "git": command | checkout}}))
    return path


async def _prepare_database(deployment: Deployment) -> None:
    await deployment.cluster.ready()
    await postgres.execute(deployment.cluster.postgres_url, "CREATE DATABASE khala")
    migrated = await asyncio.to_thread(command, {"DATABASE_URL": deployment.cluster.url}, "migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    async with deployment.connection() as connection:
        await connection.execute(EVENT_LOG.read_text())


def _settings(folder: Path, config: Path, model: str) -> dict[str, str]:
    """The environment of all processes: short times, so that much happens, and no limits that users would exceed."""
    limits = [
        f"KHALA_{name}" for name in (
            "REQUESTS_PER_MINUTE", "ANON_RUNS_PER_HOUR", "ANON_USD_PER_DAY", "ANON_TOKENS_PER_DAY",
            "NETWORK_RUNS_PER_HOUR", "NETWORK_USD_PER_DAY", "ANON_TOTAL_USD_PER_DAY", "USER_RUNS_PER_HOUR",
            "USER_USD_PER_DAY", "USER_TOTAL_USD_PER_DAY", "RUN_USD",
        )
    ]  # fmt: skip
    return dict.fromkeys(limits, "0") | {
        "HOST": "127.0.0.1",
        "KHALA_HOME": str(folder / "home"),
        "KHALA_MODEL": "openai:chaos",
        "KHALA_FALLBACK_MODELS": "",
        "OPENAI_BASE_URL": f"{model}/v1",
        "OPENAI_API_KEY": "chaos",
        "KHALA_MODEL_TIMEOUT": "3",
        "KHALA_LEASE_SECONDS": str(LEASE_SECONDS),
        "KHALA_GRACE_SECONDS": "1",
        "KHALA_CONTEXT_TOKENS": "200000",
        "KHALA_RUNS_PER_OWNER": "100",
        "KHALA_MCP_CONFIG": str(config),
    }
