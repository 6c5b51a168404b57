"""A proxy between Khala and Postgres that loses connections at the worst of moments."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from sqlalchemy.engine import URL

from khala.store.postgres.database import asyncpg_url

ENCRYPTION_REQUESTS = (80877103, 80877104)
"""Asked before the start-up message, for SSL and for GSS; answered with N for no."""
TOP = struct.Struct("!ci")
LENGTH = struct.Struct("!i")


class Proxy:
    """Passes Postgres' protocol on, message by message.

    `swallow` counts commits whose news is still to be lost: the transaction is committed, the client never hears of it.
    """

    def __init__(self, upstream: URL) -> None:
        self.url = ""
        self.swallow = 0
        self.swallowed = 0
        self.mark = b"text-delta"
        """Bytes in a statement's arguments, or in what is copied, that make its transaction's commit one to swallow."""
        self._upstream = upstream
        self._refusing = False
        self._links: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side hangs up."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            if not self._refusing:
                await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def cut(self) -> None:
        """Lose all connections, without a word to either side."""
        links = list(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """For as long as this is open, the database is out of reach."""
        self._refusing = True
        await self.cut()
        try:
            yield
        finally:
            self._refusing = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await _start(reader, writer)
        there_reader, there_writer = await self._connect()
        try:
            there_writer.write(start)
            link = Link(self)
            pumps = {
                asyncio.create_task(link.requests(reader, there_writer)),
                asyncio.create_task(link.responses(there_reader, writer)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            there_writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = self._upstream.query.get("host", self._upstream.host or "127.0.0.1")
        assert isinstance(host, str)
        port = self._upstream.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class Link:
    """One client's connection, and whether its transaction is one whose commit is to be swallowed."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._marked = False
        self._doomed = False

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the client says."""
        while True:
            kind, message = await _message(reader)
            if kind in (b"B", b"d") and self._proxy.mark in message:
                self._marked = True
            if kind == b"Q" and message[TOP.size :].startswith(b"COMMIT"):
                self._doomed = self._marked and self._proxy.swallow > 0
                self._proxy.swallow -= self._doomed
                self._marked = False
            writer.write(message)
            await writer.drain()

    async def responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the server says, but the word that a doomed transaction is committed."""
        while True:
            kind, message = await _message(reader)
            if self._doomed and kind == b"C" and message[TOP.size :].startswith(b"COMMIT"):
                self._proxy.swallowed += 1
                return
            writer.write(message)
            await writer.drain()


@contextlib.asynccontextmanager
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy for this database; `url` is how to reach it through the proxy."""
    upstream = asyncpg_url(database_url)
    between = Proxy(upstream)
    server = await asyncio.start_server(between.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    query = {name: value for name, value in upstream.query.items() if name != "host"}
    here = upstream.set(drivername="postgresql", host="127.0.0.1", port=port, query=query)
    between.url = here.render_as_string(hide_password=False)
    try:
        yield between
    finally:
        server.close()
        await between.cut()


async def _start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    while True:
        head = await reader.readexactly(LENGTH.size)
        body = await reader.readexactly(LENGTH.unpack(head)[0] - LENGTH.size)
        if LENGTH.unpack_from(body)[0] not in ENCRYPTION_REQUESTS:
            return head + body
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(TOP.size)
    kind, length = TOP.unpack(head)
    return kind, head + await reader.readexactly(length - LENGTH.size)
