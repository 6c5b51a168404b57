"""Runs Khala as separate processes, as an operator does: started, killed, and restarted."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from tests.support.client import NO_TLS
from tests.support.forked import Forked
from tests.support.homes import home
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
CRASHES = ("_crashed", "background_loop_failed", "never retrieved")
"""Signs of an unexpected error in a log."""
READY_TIMEOUT_SECONDS = 60.0
"""For a process to become ready."""


def process_environment() -> dict[str, str]:
    """The environment of a process under test."""
    unusual = {"KHALA_TITLES": "0", "KHALA_UNDO_SECONDS": "0"}
    return {"KHALA_LOG": "json", "KHALA_HOME": str(home()), **unusual, **os.environ}


def command(env: Mapping[str, str], *words: str, within: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run a `khala` command to its end; returns its exit status and output."""
    with tempfile.TemporaryDirectory(prefix="khala-test-command-") as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = Forked(words, {**process_environment(), **env}, ROOT, out, errors)
        try:
            code = process.wait(within)
        finally:
            process.send_signal(signal.SIGKILL)
        return subprocess.CompletedProcess(words, code, out.read_text(), errors.read_text())


class Process:
    """One `khala` process; `log` is where its output goes.

    `anew`: it is started as an operator starts it, and not forked from a process that has imported Khala. Then its
    start-up time, its memory, preloaded libraries and the loaded sources are its own.
    """

    def __init__(self, log: Path, env: Mapping[str, str], *words: str, anew: bool = False) -> None:
        self.log = log
        self.env = {**process_environment(), **env}
        self._words = words
        self._anew = anew
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        self.log.touch()
        if not self._anew:
            self._process = Forked(self._words, self.env, ROOT, self.log, self.log)
            return
        with self.log.open("ab") as log:
            arguments = [sys.executable, "-m", "khala", *self._words]
            self._process = subprocess.Popen(arguments, env=self.env, cwd=ROOT, stdout=log, stderr=log)

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def ended_with(self) -> int | None:
        """Its exit status once it has ended, or None."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: int) -> None:
        """Send it a signal without waiting for an effect."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self, number: int = signal.SIGKILL, *, within: float = 40.0) -> int:
        """End it with a signal; returns its exit status."""
        self.send_signal(number)
        return self.wait(within=within)

    def wait(self, *, within: float = 40.0) -> int:
        """Wait for its end; returns its exit status."""
        assert self._process is not None
        return self._process.wait(within)

    def wait_for(self, text: str, *, times: int = 1, within: float = READY_TIMEOUT_SECONDS) -> None:
        """Wait until the log has this text `times` times."""
        deadline = time.monotonic() + within
        while self.log.read_text().count(text) < times:
            if time.monotonic() > deadline or not self.running():
                raise AssertionError(f"no {text!r} in the log:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def crashes(self) -> list[str]:
        """The lines of the log with unexpected errors."""
        return [line for line in self.log.read_text().splitlines() if _is_crash(line)]


def _is_crash(line: str) -> bool:
    """Whether the line has an unexpected error of Khala, or any error that a library has logged."""
    return any(sign in line for sign in (*CRASHES, "Traceback")) or ('"logger"' in line and '"exception"' in line)


class Worker(Process):
    """`khala work`."""

    def __init__(self, log: Path, env: Mapping[str, str], *, anew: bool = False) -> None:
        super().__init__(log, env, "work", anew=anew)

    @property
    def id(self) -> str:
        """The name under which it holds leases."""
        self.wait_for("Khala works as executor-")
        return self.log.read_text().rpartition("Khala works as ")[2].split()[0]


class Server(Process):
    """`khala serve` on a port of its own."""

    def __init__(self, log: Path, env: Mapping[str, str], *words: str, anew: bool = False) -> None:
        self.port = free_port()
        super().__init__(log, {"PORT": str(self.port), "HOST": "127.0.0.1", **env}, "serve", *words, anew=anew)
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket_url = f"ws://127.0.0.1:{self.port}/api/ws"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Start it without waiting until it is ready."""
        super().start()

    def wait_until_ready(self, *, within: float = READY_TIMEOUT_SECONDS) -> None:
        """Wait until it is ready."""
        deadline = time.monotonic() + within
        while not self._ready():
            if time.monotonic() > deadline or not self.running():
                raise AssertionError(f"the server did not become ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill it, and start it again with the same port and data."""
        self.kill()
        self.start()

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/health/ready", timeout=2, verify=NO_TLS).status_code == 200
        except httpx.HTTPError:
            return False


@contextlib.contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """End these processes in any case when this closes."""
    try:
        yield
    finally:
        for process in processes:
            if process.running():
                _end(process)


def _end(process: Process) -> None:
    try:
        process.kill(signal.SIGTERM)
    except subprocess.TimeoutExpired:
        process.kill()
