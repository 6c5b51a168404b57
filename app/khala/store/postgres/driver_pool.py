"""A pool of the driver's connections: one that is free is handed out, and returned, without waiting for anything.

The driver's own pool creates a task and several timers for each connection that it hands out, which takes as long as
four small statements.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import asyncpg

DriverConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

MAX_IDLE_SECONDS = 300.0
"""Seconds after which a connection that nobody has used is closed."""
MAX_AGE_SECONDS = 3600.0
"""Seconds after which a connection is replaced, since the memory of its session grows with what it has used."""


class DriverPool:
    """Up to `most` connections. The one that was returned last is handed out first. Belongs to one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[DriverConnection]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, DriverConnection]] = deque()
        """Since when each connection is idle, the longest first."""
        self._opened_at: dict[DriverConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def in_use(self) -> int:
        """Connections that are handed out."""
        return len(self._opened_at) - len(self._idle)

    async def acquire(self, timeout: float) -> DriverConnection:
        """A free or new connection. Raises `TimeoutError` if there is none in time, and the driver's errors."""
        if self._closed:
            raise asyncpg.InterfaceError("The pool is closed.")
        if self._places.locked():
            async with asyncio.timeout(timeout):
                await self._places.acquire()
        else:
            await self._places.acquire()
        try:
            return self._take() or await self._open()
        except BaseException:
            self._places.release()
            raise

    def release(self, connection: DriverConnection) -> None:
        """Return a connection. One that is closed, old or still in a transaction is not handed out again."""
        self._places.release()
        now = time.monotonic()
        is_old = now - self._opened_at.get(connection, now) > MAX_AGE_SECONDS
        if self._closed or is_old or connection.is_closed() or connection.is_in_transaction():
            self._drop(connection)
            return
        self._idle.append((now, connection))
        self._watch_idle()

    async def close(self, timeout: float) -> None:
        """Close all connections. Waits for those in use, and then terminates them."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._idle:
                    await self._idle.pop()[1].close()
                for _ in range(self._most):
                    await self._places.acquire()
        for connection in list(self._opened_at):
            self._drop(connection)

    def _take(self) -> "DriverConnection | None":
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        return None

    async def _open(self) -> DriverConnection:
        connection = await self._connect()
        self._opened_at[connection] = time.monotonic()
        return connection

    def _drop(self, connection: DriverConnection) -> None:
        self._opened_at.pop(connection, None)
        connection.terminate()

    def _watch_idle(self) -> None:
        """Close idle connections by one timer, and not by one for each time that a connection is used."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        until = time.monotonic() - MAX_IDLE_SECONDS
        while self._idle and self._idle[0][0] <= until:
            self._drop(self._idle.popleft()[1])
        if self._idle:
            self._watch_idle()
