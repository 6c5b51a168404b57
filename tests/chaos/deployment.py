"""All that takes part in a chaos run: Postgres, servers, executors, a model, tools, and the links between them."""

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

from tests.chaos.cluster import Cluster
from tests.chaos.links import Link
from tests.chaos.model import Scripted
from tests.chaos.preloads import compiled
from tests.chaos.schedule import MEMBERS, WEBS
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.providers import serving
from tests.support.server import ROOT, Process, command

LEASE = 2.0
JOURNAL = Path(__file__).with_name("journal.sql")
AT_WORK = ("Khala is at ", "Khala works as ")
"""What processes say when they are."""
LOOK = 0.2
"""Seconds between two looks whether all are alive."""


class Member:
    """A `khala` process, which is started again as often as it is killed: each time it is another incarnation."""

    def __init__(self, name: str, folder: Path, database_port: int) -> None:
        self.name = name
        self.incarnation = 0
        self.lock = asyncio.Lock()
        """Held by the fault that has it in its hands."""
        self.port = free_port()
        self.database = Link(database_port, lambda: f"{name}#{self.incarnation}")
        self.clients = Link(self.port, lambda: name)
        self.serves = name in WEBS
        self.log = folder / f"{name}.log"
        self.ended_by_itself: list[int] = []
        """Exit codes of incarnations that nobody ended, once they had been at work."""
        self.began_in_vain = 0
        """Incarnations that ended before that, as they may where the database is out of reach."""
        self._log_start = 0
        self._clock = folder / f"{name}.clock"
        self._process: Process | None = None

    def begin(self, env: dict[str, str], library: Path | None) -> None:
        """Start the first incarnation, with the library that puts its clock wrong, if there is one."""
        own = {"DATABASE_URL": f"postgresql://khala@127.0.0.1:{self.database.port}/khala", "PORT": str(self.port)}
        self.set_clock(0)
        if library is not None:
            own |= {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._clock)}
        words = ("serve", "--no-executor") if self.serves else ("work",)
        self._process = Process(self.log, env | own, *words, anew=True)
        self.start()

    @property
    def process(self) -> Process:
        """The present incarnation, or the last one."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start another incarnation."""
        self.incarnation += 1
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process.start()

    def at_work(self) -> bool:
        """Whether this incarnation has said that it is at work."""
        return any(sign in self.log.read_text()[self._log_start :] for sign in AT_WORK)

    def set_clock(self, offset: float) -> None:
        """Its clock is off by so many seconds. The monotonic one is not: that never jumps."""
        with self._clock.open("r+b" if self._clock.exists() else "w+b") as file:
            file.write(int(offset).to_bytes(8, sys.byteorder, signed=True))

    def revive(self) -> None:
        """Start it if it has ended without anybody's doing."""
        if not self.lock.locked() and not self.process.running():
            if self.at_work():
                self.ended_by_itself.append(self.process.ended_with() or 0)
            else:
                self.began_in_vain += 1
            self.start()

    def end(self) -> None:
        """End it for good."""
        if self._process is not None and self._process.running():
            self._process.tell(signal.SIGCONT)
            self._process.kill()


class World:
    """The whole of it. `began` is when, by the monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder)
        self.model = Scripted()
        self.members = {name: Member(name, folder, self.cluster.port) for name in MEMBERS}
        self.postgres_lock = asyncio.Lock()
        self.model_lock = asyncio.Lock()
        self.journal = folder / "tools.jsonl"
        self.clock_library: Path | None = None
        self.began = time.monotonic()
        self.faults: list[str] = []
        """What was done, in order."""

    @property
    def webs(self) -> list[Member]:
        """Those whom users talk to."""
        return [self.members[name] for name in WEBS]

    def told(self, what: str) -> None:
        """Write down that something was done."""
        self.faults.append(f"{time.monotonic() - self.began:8.2f} {what}")
        with (self.folder / "faults.log").open("a") as log:
            log.write(self.faults[-1] + "\n")

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A connection straight to the database."""
        connection = await asyncpg.connect(self.cluster.url, timeout=10, command_timeout=60)
        try:
            yield connection
        finally:
            await connection.close()

    async def watch(self) -> None:
        """Bring back what died without our doing, for ever, as an operator's supervisor would."""
        while True:
            await asyncio.sleep(LOOK)
            if self.cluster.revive():
                self.told("postgres had died, and is started again")
            for member in self.members.values():
                member.revive()

    async def verify(self) -> tuple[int, str]:
        """What `khala verify` says of it all."""
        done = await asyncio.to_thread(command, {"DATABASE_URL": self.cluster.url}, "verify")
        return done.returncode, done.stdout + done.stderr


@contextlib.asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """All of it at work, for as long as this is open."""
    folder.chmod(0o711)  # for a server that runs as another user
    made = World(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(made.cluster.destroy)
        await asyncio.to_thread(made.cluster.create)
        made.clock_library = await asyncio.to_thread(compiled, "wrong_clock", folder)
        made.cluster.start()
        model = await stack.enter_async_context(serving(default=made.model))
        tools = await stack.enter_async_context(_tools(made))
        config = folder / "mcp.json"
        server = {"url": f"http://127.0.0.1:{tools}/mcp", "anonymous": True, "timeout": 10}
        config.write_text(json.dumps({"mcpServers": {"peculiar": server}}))
        await _prepared(made)
        env = _settings(folder, config, model.url)
        for member in made.members.values():
            await stack.enter_async_context(member.database.open())
            await stack.enter_async_context(member.clients.open())
            stack.callback(member.end)
            member.begin(env, made.clock_library)
        yield made


@contextlib.asynccontextmanager
async def _tools(made: World) -> AsyncIterator[int]:
    """The server of tools whose effects count; its port."""
    port = free_port()
    words = [sys.executable, "-m", "tests.support.mcp_server", "http", str(made.journal), str(port)]
    with (made.folder / "tools.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(60):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _prepared(made: World) -> None:
    await made.cluster.ready()
    await postgres.execute(made.cluster.postgres_url, "CREATE DATABASE khala")
    migrated = await asyncio.to_thread(command, {"DATABASE_URL": made.cluster.url}, "migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    async with made.connection() as connection:
        await connection.execute(JOURNAL.read_text())


def _settings(folder: Path, config: Path, model: str) -> dict[str, str]:
    """Times are short, so that much happens; no limits that users would run into."""
    limits = [
        f"KHALA_{who}" for who in (
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
        "KHALA_LEASE_SECONDS": str(LEASE),
        "KHALA_GRACE_SECONDS": "1",
        "KHALA_CONTEXT_TOKENS": "200000",
        "KHALA_RUNS_PER_OWNER": "100",
        "KHALA_MCP_CONFIG": str(config),
    }
