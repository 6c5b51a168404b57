"""A proxy that loses responses: it aborts a connection when the first byte of a response comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536


class AnswerDroppingProxy:
    """Forwards requests; the responses of the first `losing` connections never arrive."""

    def __init__(self, server_url: str, *, losing: int) -> None:
        server = urlsplit(server_url)
        self._server_address = (str(server.hostname), int(server.port or 80))
        self._losing = losing
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.lost = 0
        """Number of lost responses."""
        self.connections = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side disconnects."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        loses = self.connections <= self._losing
        server_reader, server_writer = await asyncio.open_connection(*self._server_address)
        requests = asyncio.create_task(_pass(reader, server_writer))
        responses = asyncio.create_task(self._lose(server_reader) if loses else _pass(server_reader, writer))
        try:
            await asyncio.wait({requests, responses}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            for pump in (requests, responses):
                pump.cancel()
            writer.transport.abort()
            server_writer.transport.abort()
            self._tasks.discard(task)

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lose(self, reader: asyncio.StreamReader) -> None:
        if await reader.read(1):
            self.lost += 1


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def losing_answers(server_url: str, count: int = 1) -> AsyncIterator[AnswerDroppingProxy]:
    """A proxy to the server that loses the responses of the first connections."""
    proxy = AnswerDroppingProxy(server_url, losing=count)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
