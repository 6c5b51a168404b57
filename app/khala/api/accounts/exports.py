"""Limits concurrent exports: each spools rows, and keeps a temporary file until the client has read it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import structlog
from litestar.response import Stream
from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, Scope, Send

from khala.domain.errors import RateLimited, ReachedLimit
from khala.store.budgets import counters
from khala.store.postgres.database import Database

MAX_EXPORTS_PER_HOUR = 30
"""Per account, in both formats, by all processes."""
MAX_OPEN_ARCHIVES = 16
"""Archives that one process sends at once. Each has up to 4 GiB in a temporary file."""
MAX_READING_ARCHIVES = 2
"""Archives whose rows are read at once. Each uses a database connection."""
STALL_TIMEOUT_SECONDS = 120.0
"""A response ends if the client reads nothing for so long."""
HOUR_SECONDS = 3600

log = structlog.get_logger()


class ExportLimiter:
    """Allows one archive per account in this process, and few in total."""

    def __init__(self) -> None:
        self._open: set[UUID] = set()
        self._reading = asyncio.Semaphore(MAX_READING_ARCHIVES)

    def check(self, user_id: UUID) -> None:
        """Raise `RateLimited` if an archive of the account is being sent, or too many archives are."""
        if user_id in self._open:
            limit = ReachedLimit("open_exports", "account", 1)
            message = "An export of this account is running. Wait until it ends."
            raise RateLimited(message, limit=limit, retry_after=10)
        if len(self._open) >= MAX_OPEN_ARCHIVES:
            limit = ReachedLimit("open_exports", "deployment", MAX_OPEN_ARCHIVES)
            raise RateLimited("Too many exports are running. Try again later.", limit=limit, retry_after=60)

    async def count(self, db: Database, user_id: UUID) -> None:
        """Count an export. Raises `RateLimited` if the account has had too many."""
        wait = await counters.count(
            db, "export", user_id.bytes, "tries", MAX_EXPORTS_PER_HOUR, window_seconds=HOUR_SECONDS
        )
        if wait is not None:
            message = f"An account is exported at most {MAX_EXPORTS_PER_HOUR} times an hour."
            limit = ReachedLimit("exports_per_hour", "account", MAX_EXPORTS_PER_HOUR)
            raise RateLimited(message, limit=limit, retry_after=wait)

    async def start(self, user_id: UUID, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Wait for the first chunk, and return all chunks. An account has one archive at a time.

        Raises `RateLimited` if too many exports are running, and the errors of the first chunk.
        """
        self.check(user_id)
        counted = self._counted(user_id, chunks)
        await anext(counted)
        return counted

    async def _counted(self, user_id: UUID, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield an empty chunk when the first one is available, then all chunks."""
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
    """The response with an archive. The chunks are closed when the response ends, however it ends."""

    def to_asgi_response(self, *args: Any, **named: Any) -> ASGIResponse:
        """Return `Stream`'s response with a stall timeout."""
        response = super().to_asgi_response(*args, **named)
        return _StallTimeout(response, self.iterator)  # type: ignore[arg-type, return-value]  # Litestar needs only an ASGI application


class _StallTimeout:
    """Sends a response, and ends it if the client reads nothing for too long."""

    def __init__(self, response: ASGIResponse, chunks: AsyncGenerator[bytes, None]) -> None:
        self._response = response
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(STALL_TIMEOUT_SECONDS):
                await send(message)

        try:
            await self._response(scope, receive, send_in_time)
        except* TimeoutError:
            log.warning("export_client_stalled", seconds=STALL_TIMEOUT_SECONDS)
        finally:
            await self._chunks.aclose()
