"""Khala as a process of its own, as an operator runs it: started, killed, and started again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

READY = 30.0
"""Seconds that a process has to become ready."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Process:
    """One `khala` process; `log` is where its output goes."""

    def __init__(self, log: Path, env: Mapping[str, str], *words: str) -> None:
        self.log = log
        self._env = {**os.environ, "KHALA_LOG": "json", **env}
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; says nothing about whether it is ready."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "app", *self._words]
            self._process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill(self, number: int = signal.SIGKILL, *, within: float = 40.0) -> int:
        """End it with a signal; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(within)

    def wait_for(self, text: str, *, within: float = READY) -> None:
        """Wait until the log has this text."""
        deadline = time.monotonic() + within
        while text not in self.log.read_text():
            if time.monotonic() > deadline or not self.running():
                raise AssertionError(f"no {text!r} in the log:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)


class Server(Process):
    """`khala serve` on a port of its own."""

    def __init__(self, log: Path, env: Mapping[str, str], *words: str) -> None:
        self.port = free_port()
        super().__init__(log, {"PORT": str(self.port), "HOST": "127.0.0.1", **env}, "serve", *words)
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket_url = f"ws://127.0.0.1:{self.port}/api/ws"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        super().start()
        deadline = time.monotonic() + READY
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
            return httpx.get(f"{self.url}/api/health/ready", timeout=2).status_code == 200
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
                process.kill(signal.SIGTERM)
