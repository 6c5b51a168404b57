"""A TCP proxy that can be slow, fall silent, or reset all that goes through it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends a reset."""
CHUNK = 1 << 16


class Link:
    """Passes bytes from its port to another one.

    `names` tells by the local ports of its own connections who was at the other end of them: what `name` said then.
    """

    def __init__(self, upstream: int, name: Callable[[], str]) -> None:
        self.port = 0
        self.delay = 0.0
        """Seconds for which each piece is held back, in each direction."""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.names: dict[int, set[str]] = {}
        self._upstream = upstream
        self._name = name
        self._sockets: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Link"]:
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

    def cut(self) -> int:
        """Reset all connections, on both sides; returns how many sockets that were."""
        sockets = list(self._sockets)
        for one in sockets:
            _reset(one)
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
            # The end of all: the server's own callback would call this an error.
            pass
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._upstream)
        self.names.setdefault(there.get_extra_info("sockname")[1], set()).add(self._name())
        self._sockets |= {writer, there}
        pumps = {asyncio.create_task(self._pump(reader, there)), asyncio.create_task(self._pump(there_reader, writer))}
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            self._sockets -= {writer, there}
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            there.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self.flowing.wait()
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
