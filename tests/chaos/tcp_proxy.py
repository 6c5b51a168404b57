"""A TCP proxy that can delay or withhold data, or reset its connections."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing the socket sends a reset."""
CHUNK_BYTES = 1 << 16


class TcpProxy:
    """Forwards connections from its port to another one.

    `names` maps the local port of each upstream connection to the clients that used it: the results of `name`.
    """

    def __init__(self, upstream: int, name: Callable[[], str]) -> None:
        self.port = 0
        self.delay = 0.0
        """Seconds by which each chunk is delayed, in each direction."""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.names: dict[int, set[str]] = {}
        self._upstream = upstream
        self._name = name
        self._sockets: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["TcpProxy"]:
        """Listen for as long as this is open."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def reset_connections(self) -> int:
        """Reset all connections, on both sides; returns the number of sockets."""
        sockets = list(self._sockets)
        for writer in sockets:
            _reset(writer)
        return len(sockets)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except OSError:
            _reset(writer)
        except asyncio.CancelledError:
            # The proxy is closing; asyncio's server would log the cancellation as an error.
            pass
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        self.names.setdefault(upstream_writer.get_extra_info("sockname")[1], set()).add(self._name())
        self._sockets |= {writer, upstream_writer}
        pumps = {
            asyncio.create_task(self._pump(reader, upstream_writer)),
            asyncio.create_task(self._pump(upstream_reader, writer)),
        }
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            self._sockets -= {writer, upstream_writer}
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            upstream_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self.flowing.wait()
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw_socket = writer.get_extra_info("socket")
    if raw_socket is not None and raw_socket.fileno() >= 0:
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
