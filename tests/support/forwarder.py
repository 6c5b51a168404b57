"""A TCP forwarder whose connections a test can abort."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.ports import free_port

CHUNK_BYTES = 65_536


class Forwarder:
    """Listens on a port of its own and forwards connections, while it is up."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the server through this forwarder."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Accept connections, always on the same port."""
        self.port = self.port or free_port()
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Stop to accept connections, and abort the existing ones."""
        if self._listener is not None:
            # A thread in accept() keeps a listener alive that is only closed.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> int:
        """Abort all connections; returns how many there were."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _end(end)
        return len(ends) // 2

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                server.settimeout(None)
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            _end(end)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def forwarder(port: int) -> Iterator[Forwarder]:
    """A forwarder to the server on this port, for as long as this is open."""
    running = Forwarder(port)
    running.up()
    try:
        yield running
    finally:
        running.down()
