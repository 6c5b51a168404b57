"""How many exports may be under way: each spools its rows, and holds its temporary file until the client has them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import structlog
from litestar.response import Stream
from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, Scope, Send

from khala.domain.errors import RateLimited
from khala.store.budgets import counters
from khala.store.postgres.database import Database

MAX_PER_HOUR = 30
"""Exports of one account, in both forms and by all processes."""
MAX_OPEN = 16
"""Archives that one process sends at once; each has up to 4 GiB in a temporary file."""
MAX_READING = 2
"""Archives whose rows are being read at once; each has a connection to the database."""
MAX_STALL_SECONDS = 120.0
"""For which a client may take nothing of an archive."""
HOUR = 3600

log = structlog.get_logger()


class ExportLimiter:
    """Lets each account have one archive under way in this process, and few altogether."""

    def __init__(self) -> None:
        self._open: set[UUID] = set()
        self._reading = asyncio.Semaphore(MAX_READING)

    async def count(self, db: Database, user_id: UUID) -> None:
        """Count an export. Raises `RateLimited` where the account has had too many."""
        wait = await counters.count(db, "export", user_id.bytes, "tries", MAX_PER_HOUR, window_seconds=HOUR)
        if wait is not None:
            raise RateLimited(f"An account is exported at most {MAX_PER_HOUR} times an hour.", retry_after=wait)

    async def begun(self, user_id: UUID, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The same chunks, when the first is there; one archive of an account at a time.

        Raises `RateLimited` where too many are under way, and what the first chunk raises.
        """
        if user_id in self._open:
            raise RateLimited("An export of this account is under way. Wait until it ends.", retry_after=10)
        if len(self._open) >= MAX_OPEN:
            raise RateLimited("Too many exports are under way. Try again later.", retry_after=60)
        sent = self._sent(user_id, chunks)
        await anext(sent)
        return sent

    async def _sent(self, user_id: UUID, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """First nothing, when the first chunk is there; then all of them."""
        self._open.add(user_id)
        try:
            async with self._reading:
                first = await anext(chunks)
            yield b""
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            self._open.discard(user_id)
            await chunks.aclose()


class ArchiveStream(Stream):
    """An archive as an HTTP answer. Its chunks are closed when the answer is over, however it ends."""

    def to_asgi_response(self, *args: Any, **named: Any) -> ASGIResponse:
        """As `Stream` does, bounded."""
        made = super().to_asgi_response(*args, **named)
        return _Bounded(made, self.iterator)  # type: ignore[arg-type, return-value]  # an ASGI application is all it takes


class _Bounded:
    """Sends an answer, unless the client takes nothing of it for too long."""

    def __init__(self, answer: ASGIResponse, chunks: AsyncGenerator[bytes, None]) -> None:
        self._answer = answer
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            async with asyncio.timeout(MAX_STALL_SECONDS):
                await send(message)

        try:
            await self._answer(scope, receive, sending)
        except* TimeoutError:
            log.warning("export_stalled", seconds=MAX_STALL_SECONDS)
        finally:
            await self._chunks.aclose()
