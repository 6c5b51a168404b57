"""Khala as a process of its own, as an operator runs it: started, killed, and started again."""

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
"""What a log says of an error that nobody has named."""
READY = 60.0
"""Seconds that a process has to become ready."""


def surroundings() -> dict[str, str]:
    """The environment of a process under test."""
    return {"KHALA_LOG": "json", "KHALA_HOME": str(home()), **os.environ}


def command(env: Mapping[str, str], *words: str, within: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run a `khala` command to its end; with its exit code and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="khala-test-command-") as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = Forked(words, {**surroundings(), **env}, ROOT, out, errors)
        try:
            code = process.wait(within)
        finally:
            process.send_signal(signal.SIGKILL)
        return subprocess.CompletedProcess(words, code, out.read_text(), errors.read_text())


class Process:
    """One `khala` process; `log` is where its output goes.

    `anew`: it is begun as an operator begins it, and not forked from one that has imported Khala. Then its start is
    its own: its time and memory, the library that its environment preloads, its sources.
    """

    def __init__(self, log: Path, env: Mapping[str, str], *words: str, anew: bool = False) -> None:
        self.log = log
        self.env = {**surroundings(), **env}
        self._words = words
        self._anew = anew
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; says nothing about whether it is ready."""
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
        """Its exit code, once it has ended."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: int) -> None:
        """Send it a signal, and go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self, number: int = signal.SIGKILL, *, within: float = 40.0) -> int:
        """End it with a signal; returns its exit code."""
        self.send_signal(number)
        return self.wait(within=within)

    def wait(self, *, within: float = 40.0) -> int:
        """Wait for its end; returns its exit code."""
        assert self._process is not None
        return self._process.wait(within)

    def wait_for(self, text: str, *, times: int = 1, within: float = READY) -> None:
        """Wait until the log has this text, so many times."""
        deadline = time.monotonic() + within
        while self.log.read_text().count(text) < times:
            if time.monotonic() > deadline or not self.running():
                raise AssertionError(f"no {text!r} in the log:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def crashes(self) -> list[str]:
        """Lines of the log that tell of an error that nobody has named."""
        return [line for line in self.log.read_text().splitlines() if _tells_of_a_crash(line)]


def _tells_of_a_crash(line: str) -> bool:
    """Whether the line is about an error of ours that nobody has named, or any that a library has logged."""
    return any(sign in line for sign in (*CRASHES, "Traceback")) or ('"logger"' in line and '"exception"' in line)


class Worker(Process):
    """`khala work`."""

    def __init__(self, log: Path, env: Mapping[str, str], *, anew: bool = False) -> None:
        super().__init__(log, env, "work", anew=anew)

    @property
    def id(self) -> str:
        """What it calls itself as the holder of a run."""
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
        """Start it; says nothing about whether it is ready."""
        super().start()

    def wait_until_ready(self, *, within: float = READY) -> None:
        """Wait until it can do its work."""
        deadline = time.monotonic() + within
        while not self._ready():
            if time.monotonic() > deadline or not self.running():
                raise AssertionError(f"the server did not become ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill it without warning, and start it again on the same port and data."""
        self.kill()
        self.start()

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/health/ready", timeout=2, verify=NO_TLS).status_code == 200
        except httpx.HTTPError:
            return False


@contextlib.contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Whatever happens, end these processes, by their pids."""
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
