"""A way to a server that a test can cut: bytes go through as they are, until they don't."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.ports import free_port

CHUNK = 65_536


class Forwarder:
    """Listens on a port of its own and passes connections on, while it is up."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where the server seems to be."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Take connections, always on the same port."""
        self.port = self.port or free_port()
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Take no connections any more, and cut those that there are."""
        if self._listener is not None:
            # A thread in accept() keeps a listener alive that is only closed.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> int:
        """Cut all connections without a word; how many there were."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _end(end)
        return len(ends) // 2

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                far.settimeout(None)
            except OSError:
                _end(near)
                continue
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
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
    """A way to the server on this port, for as long as this is open."""
    way = Forwarder(port)
    way.up()
    try:
        yield way
    finally:
        way.down()
