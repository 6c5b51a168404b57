"""The watchdog: it ends a process whose event loop hangs, for any cause, but not a process that was stopped."""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.poison import HARMLESS, POISONED
from tests.support.ports import free_port
from tests.support.server import Server, ended

SECONDS = 3.0
EXIT_CODE = 14
"""As the documents promise."""
EVENT = "watchdog_ended_process"


@pytest.fixture
def env(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Settings of a server with a separate home, in which messages can block the event loop."""
    return POISONED | {
        "DATABASE_URL": database_url,
        "KHALA_HOME": str(tmp_path / "home"),
        "KHALA_MODEL": "demo",
        "KHALA_WATCHDOG_SECONDS": str(SECONDS),
        "KHALA_METRICS": f"127.0.0.1:{free_port()}",
        "KHALA_GRACE_SECONDS": "0",
        # A restarted server must not take over the run that blocked it.
        "KHALA_LEASE_SECONDS": "300",
    }


@pytest.fixture
def server(env: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    """`khala serve` with these settings."""
    with running_server(Server(tmp_path / "server.log", env)) as server:
        yield server


@pytest.fixture
def healthy(env: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    """The same server, without the harmful messages."""
    with running_server(Server(tmp_path / "server.log", env | HARMLESS)) as server:
        yield server


@contextlib.contextmanager
def running_server(server: Server) -> Iterator[Server]:
    """Start the server, and end it with the context."""
    with ended(server):
        server.start()
        yield server


def ask(server: Server, text: str) -> None:
    """Send this in a new thread. A server that hangs at once may not respond."""
    with httpx.Client(base_url=server.url, timeout=30) as http, contextlib.suppress(httpx.ReadError):
        made = http.post("/api/threads", json={}).raise_for_status().json()
        path, key = f"/api/threads/{made['thread']['id']}/send", {"X-Anon-Key": made["anonKey"]}
        http.post(path, json={"text": text}, headers=key).raise_for_status()


def watchdogs(server: Server) -> list[psutil.Process]:
    """The watchdog processes of this server."""
    return [process for process in psutil.Process(server.pid).children() if _is_watchdog(process)]


def _is_watchdog(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # also raised for a zombie
        return any(word.endswith("watchdog/process.py") for word in process.cmdline())
    return False


def metric(server: Server, name: str) -> float:
    """A metric of the server."""
    text = httpx.get(f"http://{server.env['KHALA_METRICS']}/metrics", timeout=10).raise_for_status().text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def events(server: Server) -> list[dict[str, Any]]:
    """The events that the watchdog has logged."""
    return [json.loads(line) for line in server.log.read_text().splitlines() if EVENT in line and line.startswith("{")]


def until(condition: Callable[[], bool], *, within: float = 20.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("freeze", "where"), [("/hold", "re/__init__.py"), ("/sleep", "sitecustomize.py")])
def test_a_process_whose_loop_hangs_ends_with_its_exit_code_and_logs_the_stack(
    server: Server, freeze: str, where: str
) -> None:
    ask(server, freeze)
    assert server.wait(within=SECONDS + 20) == EXIT_CODE
    (event,) = events(server)
    assert (event["pid"], event["silent_seconds"], event["level"]) == (server.pid, SECONDS, "critical")
    assert where in event["stack"]
    assert "in harm" in event["stack"]
    assert not server.crashes()


def test_only_the_next_process_counts_an_end_by_the_watchdog(server: Server) -> None:
    assert metric(server, "khala_watchdog_ended_processes") == 0
    until(lambda: metric(server, "khala_loop_lag_seconds_count") > 0)
    ask(server, "/sleep")
    assert server.wait(within=SECONDS + 20) == EXIT_CODE
    server.start()
    assert metric(server, "khala_watchdog_ended_processes") == 1
    server.wait_for("watchdog_killed_processes")
    server.kill(signal.SIGTERM)
    server.start()
    assert metric(server, "khala_watchdog_ended_processes") == 0


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its watchdog"])
def test_a_process_that_was_stopped_for_longer_than_the_limit_continues(healthy: Server, whole: bool) -> None:
    stopped = [psutil.Process(healthy.pid), *(watchdogs(healthy) if whole else ())]
    for _ in range(2):
        for process in stopped:
            process.suspend()
        time.sleep(2 * SECONDS)
        for process in reversed(stopped):
            process.resume()
        ask(healthy, "/words=3")
    # By now a delayed watchdog would have ended it.
    time.sleep(SECONDS)
    ask(healthy, "/words=3")
    assert healthy.running()
    assert not events(healthy)


def test_a_watchdog_process_that_is_killed_is_replaced(server: Server) -> None:
    (first,) = watchdogs(server)
    first.kill()
    until(lambda: [process for process in watchdogs(server) if process != first] != [])
    server.wait_for("watchdog_process_lost")
    ask(server, "/hold")
    assert server.wait(within=SECONDS + 20) == EXIT_CODE


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_watchdog_process_ends_with_its_server(healthy: Server, how: signal.Signals) -> None:
    (watchdog,) = watchdogs(healthy)
    assert watchdog.memory_info().rss < 32 << 20
    healthy.kill(how)
    until(lambda: not watchdog.is_running())
    assert not events(healthy)


def test_without_a_watchdog_there_is_no_process(env: dict[str, str], tmp_path: Path) -> None:
    with running_server(Server(tmp_path / "server.log", env | {"KHALA_WATCHDOG_SECONDS": "0"})) as server:
        assert watchdogs(server) == []
        until(lambda: metric(server, "khala_loop_lag_seconds_count") > 0)
