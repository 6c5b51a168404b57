"""A NATS server in a process of its own: started, killed, frozen, and restarted on the same port."""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from tests.support.ports import free_port
from tests.support.required_programs import program

READY_TIMEOUT_SECONDS = 10.0
"""For the server to listen."""


class NatsServer:
    """A server on loopback. `login`, a (name, password), or `token` restricts its clients."""

    def __init__(self, path: str, *, login: tuple[str, str] | None = None, token: str | None = None) -> None:
        self.port = free_port()
        self._arguments = [path, "--addr", "127.0.0.1", "--port", str(self.port)]
        if login:
            self._arguments += ["--user", login[0], "--pass", login[1]]
        if token:
            self._arguments += ["--auth", token]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def url(self, login: str = "") -> str:
        """The URL of the server, with a login if given."""
        return f"nats://{login}@127.0.0.1:{self.port}" if login else f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(self._arguments, stdin=silent, stdout=silent, stderr=silent)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self._listens():
            assert self._process.poll() is None, "The NATS server has ended by itself."
            assert time.monotonic() < deadline, "The NATS server does not listen."
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        """Send a signal without waiting for an effect."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without warning, even if it is frozen."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            return connection.recv(4) == b"INFO"
        return False


@contextlib.contextmanager
def nats_server(*, login: tuple[str, str] | None = None, token: str | None = None) -> Iterator[NatsServer]:
    """A server for as long as this is open."""
    server = NatsServer(program("nats-server"), login=login, token=token)
    try:
        server.start()
        yield server
    finally:
        server.kill()
