"""Khala's processes as an operator runs them: started, interrupted, killed, misconfigured and inspected."""

import asyncio
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from khala.cli import main
from tests.support import postgres
from tests.support.client import Thread, text_of
from tests.support.in_process import khala
from tests.support.observed_run import assert_verified, notices, observed_run
from tests.support.server import Server, command, ended

COMMANDS = (
    "serve", "work", "migrate", "verify", "purge", "doctor", "import", "backup", "restore", "blobs", "with-postgres",
    "partition-parts", "upgrade-check", "tokens", "accounts", "webhooks", "workers",
)  # fmt: skip
BAD = {
    "PORT": ("eighty", "PORT"),
    "KHALA_FLUSH_MS": ("-1", "KHALA_FLUSH_MS"),
    "KHALA_MODEL": ("delphi:oracle", "delphi:oracle"),
    "KHALA_LOG": ("loud", "KHALA_LOG"),
    "DATABASE_URL": ("no url", "DATABASE_URL"),
    "HOST": ("999.999.999.999", "999.999.999.999"),
}
"""Settings that can't be used, and what the complaint must mention."""
TAMPERING = (
    "UPDATE messages SET content = jsonb_set(content, '{{0,text}}', '\"else\"') WHERE id = '{message}'",
    "DELETE FROM message_parts WHERE run_id = '{run}' AND seq = 1",
    "DELETE FROM message_parts WHERE run_id = '{run}' AND kind = 'finish'",
)
NOBODY_THERE = "postgresql://khala@127.0.0.1:1/khala"


class Home:
    """A home directory with an embedded Postgres."""

    def __init__(self, path: Path, logs: Path) -> None:
        self.path = path
        self.env = {
            "KHALA_HOME": str(path),
            "DATABASE_URL": "",
            "KHALA_MODEL": "demo",
            "KHALA_LEASE_SECONDS": "1.5",
            "KHALA_GRACE_SECONDS": "0",
        }
        self._logs = logs

    def server(self, name: str = "server") -> Server:
        """`khala serve` on this home, not yet started."""
        return Server(self._logs / f"{name}.log", self.env, anew=True)

    def postmaster(self) -> psutil.Process:
        """The Postgres process of this home."""
        pid_file = self.path / "postgres" / "data" / "postmaster.pid"
        return psutil.Process(int(pid_file.read_text().split()[0]))

    def family(self) -> list[psutil.Process]:
        """All processes of this home's Postgres: its supervisor, the postmaster, and their descendants."""
        supervisor = self.postmaster().parent()
        assert supervisor is not None
        assert "supervisor" in " ".join(supervisor.cmdline())
        return [supervisor, *supervisor.children(recursive=True)]


@pytest.fixture(scope="module")
def prepared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a migrated database: creating one takes a second, and is tested here only once."""
    path = tmp_path_factory.mktemp("made") / "home"
    done = command(Home(path, path.parent).env, "migrate")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def home(prepared_home: Path, tmp_path: Path) -> Home:
    """The home of this module, on which no process runs."""
    return Home(prepared_home, tmp_path)


def all_end(processes: list[psutil.Process], *, within: float) -> bool:
    """Whether all these processes end in time."""
    _, alive = psutil.wait_procs(processes, timeout=within)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_an_interrupt_stops_everything_that_serve_started(home: Home) -> None:
    server = home.server()
    with ended(server):
        server.start()
        family = home.family()
        assert len(family) > 2
        assert server.kill(signal.SIGINT, within=10) == 0
        assert all_end(family, within=0.5)
        assert not (home.path / "postgres" / "data" / "postmaster.pid").exists()
        assert not server.crashes()
        assert "Traceback" not in server.log.read_text()


def test_a_server_raises_its_limit_of_open_files(home: Home) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = home.server()
    with ended(server):
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
        try:
            server.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
        here, _ = psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert here == (65_536 if most == resource.RLIM_INFINITY else min(most, 65_536))


def test_a_second_interrupt_does_not_wait_for_running_work(home: Home) -> None:
    home.env["KHALA_GRACE_SECONDS"] = "60"
    server = home.server()
    with ended(server):
        server.start()
        with httpx.Client(base_url=server.url) as http:
            made = http.post("/api/threads", json={}).raise_for_status().json()
            key = {"X-Anon-Key": made["anonKey"]}
            path = f"/api/threads/{made['thread']['id']}"
            http.post(f"{path}/send", json={"text": "/hang=3"}, headers=key).raise_for_status()
            until(lambda: "Hello"[:3] in str(http.get(path, headers=key).json()["messages"][-1]))
        family = home.family()
        server.send_signal(signal.SIGINT)
        server.wait_for("executor_draining")
        server.kill(signal.SIGINT, within=5)
        assert all_end(family, within=1)


async def test_a_killed_khala_leaves_no_postgres_behind_and_loses_nothing(home: Home) -> None:
    server = home.server()
    with ended(server):
        server.start()
        async with observed_run(server) as answer:
            await answer.wait_for_word(60)
            family = home.family()
            server.kill()
            assert all_end(family, within=5)
            seen = answer.known_text()
            server.start()
            message = await answer.check_end()
            assert text_of(message).startswith(seen)
            assert notices(message) == ["resumed"]
        assert not server.crashes()
    assert_verified(home.env)


async def test_two_khalas_start_at_once_on_a_new_home_and_the_last_one_stops_its_postgres(tmp_path: Path) -> None:
    home = Home(tmp_path / "new", tmp_path)
    first, second = home.server("first"), home.server("second")
    with ended(first, second):
        first.begin()
        second.begin()
        first.wait_until_ready()
        second.wait_until_ready()
        family = home.family()
        async with observed_run(second, words=120) as answer:
            await answer.wait_for_word(30)
            assert first.kill(signal.SIGTERM) == 0
            await answer.check_end()
        assert home.family()[:2] == family[:2]
        assert second.kill(signal.SIGTERM) == 0
        assert all_end(family, within=1)
        assert not [*first.crashes(), *second.crashes()]


def test_a_port_in_use_is_reported_in_one_line(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command({**home.env, "PORT": port}, "serve")
    assert_one_line(done, port)
    assert not (home.path / "postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_named_in_one_line(name: str) -> None:
    value, mention = BAD[name]
    done = command({"DATABASE_URL": NOBODY_THERE, "PORT": "0", "HOST": "127.0.0.1", name: value}, "serve")
    assert_one_line(done, mention)


@pytest.mark.parametrize("word", ["serve", "verify"])
def test_an_unreachable_database_is_reported_in_one_line(word: str) -> None:
    done = command({"DATABASE_URL": NOBODY_THERE, "PORT": "0", "HOST": "127.0.0.1"}, word)
    assert_one_line(done, "onnect")


def assert_one_line(done: "subprocess.CompletedProcess[str]", mention: str) -> None:
    """Assert that the command failed with one line that contains this text."""
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("Error: ")
    assert mention in done.stderr


def test_a_url_of_a_managed_database_is_accepted(database_url: str) -> None:
    joint = "&" if "?" in database_url else "?"
    done = command({"DATABASE_URL": f"{database_url}{joint}sslmode=prefer"}, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_lists_all_commands() -> None:
    done = command({}, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert all(name in done.stdout for name in COMMANDS)
    assert not done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    done = CliRunner().invoke(main, [name, "--help"], prog_name="khala")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: khala {name} ")
    assert "environment variables" in done.stdout


def test_the_doctor_finds_a_migrated_database_well(database_url: str) -> None:
    done = command({"DATABASE_URL": database_url, "KHALA_MODEL": "demo"}, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BAD" not in done.stdout


async def test_verify_names_every_answer_that_was_tampered_with_and_no_other(database_url: str) -> None:
    env = {"DATABASE_URL": database_url}
    async with khala(database_url) as server:
        thread = await server.thread()
        answers = [await finished_answer(thread) for _ in range(len(TAMPERING) + 1)]
    assert_verified(env)
    for sql, (message, run) in zip(TAMPERING, answers, strict=False):
        await postgres.execute(database_url, sql.format(message=message, run=run))
    done = command(env, "verify")
    assert done.returncode == 1
    assert not done.stderr
    for message, _ in answers[:-1]:
        assert f"message {message} of thread {thread.id}: " in done.stdout
    assert answers[-1][0] not in done.stdout


async def finished_answer(thread: Thread) -> tuple[str, str]:
    """The ids of another answer and its run, which has ended and has several parts."""
    sent = await thread.send("/words=60 /pace=150")
    await thread.ended(sent["runId"])
    assert len(await thread.parts(sent["runId"])) > 2
    return sent["assistantMessageId"], sent["runId"]


def until(condition: Callable[[], bool], *, within: float = 10.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_stopping_server_finishes_its_runs_and_claims_no_more(own_server: Server) -> None:
    async with httpx.AsyncClient(base_url=own_server.url) as http:
        thread = await Thread.create(http)
        sent = await thread.send("/hang=3")
        while not await thread.parts(sent["runId"]):
            await asyncio.sleep(0.02)
        own_server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while (ready := await http.get("/api/health/ready")).status_code == 200:
                await asyncio.sleep(0.02)
        working = dict.fromkeys(("database", "writable", "feed", "blobs", "disk"), True)
        assert ready.json() == {"ok": False, **working, "stopping": True}
        assert (await http.get("/api/health/live")).status_code == 200
    assert own_server.wait(within=20) == 0
