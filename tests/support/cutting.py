"""A way to a server on which answers get lost: the connection is cut when the first byte of an answer comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

CHUNK = 65_536


class AnswerCutter:
    """Passes requests on; of so many connections, what the server answers never arrives."""

    def __init__(self, server_url: str, *, losing: int) -> None:
        there = urlsplit(server_url)
        self._there = (str(there.hostname), int(there.port or 80))
        self._losing = losing
        self._ways: set[asyncio.Task[None]] = set()
        self.url = ""
        self.lost = 0
        """Answers that were lost."""
        self.connections = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side hangs up."""
        task = asyncio.current_task()
        assert task is not None
        self._ways.add(task)
        self.connections += 1
        loses = self.connections <= self._losing
        far_reader, far_writer = await asyncio.open_connection(*self._there)
        there = asyncio.create_task(_pass(reader, far_writer))
        back = asyncio.create_task(self._lose(far_reader) if loses else _pass(far_reader, writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            for end in (there, back):
                end.cancel()
            writer.transport.abort()
            far_writer.transport.abort()
            self._ways.discard(task)

    async def close(self) -> None:
        """End all connections."""
        ways = list(self._ways)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _lose(self, reader: asyncio.StreamReader) -> None:
        if await reader.read(1):
            self.lost += 1


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def losing_answers(server_url: str, many: int = 1) -> AsyncIterator[AnswerCutter]:
    """A way to the server on which the answers of the first connections are lost."""
    cutter = AnswerCutter(server_url, losing=many)
    server = await asyncio.start_server(cutter.accept, "127.0.0.1", 0)
    cutter.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
