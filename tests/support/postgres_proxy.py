"""A proxy between Khala and Postgres that aborts connections, for example just after a commit."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from sqlalchemy.engine import URL

from khala.store.postgres.database import asyncpg_url

ENCRYPTION_REQUESTS = (80877103, 80877104)
"""Requests for SSL and GSS before the start-up message; the proxy refuses both with N."""
TOP = struct.Struct("!ci")
LENGTH = struct.Struct("!i")
IN_TRANSACTION = b"T"
"""The status that the server reports with ReadyForQuery between BEGIN and COMMIT."""


class Proxy:
    """Forwards Postgres' protocol, message by message.

    `commits_to_lose` counts commits whose confirmation is to be lost: the transaction commits, but the connection ends.
    A statement outside of a transaction commits by itself.
    """

    def __init__(self, upstream: URL) -> None:
        self.url = ""
        self.commits_to_lose = 0
        self.lost_commits = 0
        self.mark = b"text-delta"
        """The confirmation is lost if these bytes occur in an argument or in copied data of the transaction."""
        self._upstream = upstream
        self._refusing = False
        self._links: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side disconnects."""
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
        """Abort all connections on both sides."""
        links = list(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Make the database unreachable for as long as this is open."""
        self._refusing = True
        await self.cut()
        try:
            yield
        finally:
            self._refusing = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await _start(reader, writer)
        server_reader, server_writer = await self._connect()
        try:
            server_writer.write(start)
            link = Link(self)
            pumps = {
                asyncio.create_task(link.requests(reader, server_writer)),
                asyncio.create_task(link.responses(server_reader, writer)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            server_writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = self._upstream.query.get("host", self._upstream.host or "127.0.0.1")
        assert isinstance(host, str)
        port = self._upstream.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class Link:
    """One client's connection; it knows whether to lose the confirmation of the current transaction."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._in_transaction = False
        self._marked = False
        self._lost: tuple[bytes, bytes] | None = None
        """The kind, and the beginning, of the message that is not forwarded, when the connection ends."""

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the messages of the client."""
        while True:
            kind, message = await _message(reader)
            if kind in (b"B", b"d") and self._proxy.mark in message:
                self._marked = True
            if kind == b"Q" and message[TOP.size :].startswith(b"COMMIT"):
                self._lose(b"C", b"COMMIT")
            elif kind == b"S" and not self._in_transaction:
                # The statement commits before the server is ready for the next one.
                self._lose(b"Z", b"")
            writer.write(message)
            await writer.drain()

    async def responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the messages of the server, except for a confirmation that is to be lost."""
        while True:
            kind, message = await _message(reader)
            if self._lost is not None and kind == self._lost[0] and message[TOP.size :].startswith(self._lost[1]):
                self._proxy.lost_commits += 1
                return
            if kind == b"Z":
                self._in_transaction = message[TOP.size :] == IN_TRANSACTION
            writer.write(message)
            await writer.drain()

    def _lose(self, kind: bytes, beginning: bytes) -> None:
        """Lose the confirmation of the commit that begins, if it is marked and there are commits to lose."""
        if self._marked and self._proxy.commits_to_lose > 0:
            self._proxy.commits_to_lose -= 1
            self._lost = kind, beginning
        self._marked = False


@contextlib.asynccontextmanager
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """Run a proxy for this database; `url` is the database through the proxy."""
    upstream = asyncpg_url(database_url)
    running = Proxy(upstream)
    server = await asyncio.start_server(running.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    query = {name: value for name, value in upstream.query.items() if name != "host"}
    url = upstream.set(drivername="postgresql", host="127.0.0.1", port=port, query=query)
    running.url = url.render_as_string(hide_password=False)
    try:
        yield running
    finally:
        server.close()
        await running.cut()


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
