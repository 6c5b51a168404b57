"""The LISTEN connection of a process. It detects a dead connection; after a reconnect, everything is read again."""

import asyncio
from collections.abc import Callable, Mapping

import asyncpg
import structlog

from khala.domain.backoff import Backoff
from khala.live.own_appends import OwnAppends
from khala.live.polling import wait_until_set
from khala.signals.metrics import LISTENER_CONNECTED, LISTENER_LOST
from khala.store.postgres.database import (
    driver_url,
)
from khala.store.postgres.notifications import EVERYTHING, THREADS_CHANNEL

log = structlog.get_logger()

HEARTBEAT_INTERVAL_SECONDS = 5.0
"""Seconds between two checks that the connection is alive."""
RECONNECT = Backoff(first_seconds=0.1, max_seconds=5.0)
"""Delays between two attempts to connect."""


class Listener:
    """Passes each payload to its channel's handler, and `EVERYTHING` to all of them after a reconnect.

    Notifications of threads that `own` expects are left out.
    """

    def __init__(self, url: str, handlers: Mapping[str, Callable[[str], None]], own: OwnAppends | None = None) -> None:
        self._url = driver_url(url)
        self._handlers = handlers
        self._own = own
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def connected(self) -> bool:
        """Whether notifications are received now."""
        return self._connection is not None and not self._connection.is_closed()

    async def run(self) -> None:
        """Listen, for ever."""
        failures = 1
        while True:
            try:
                await self._listen()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                LISTENER_LOST.inc()
                log.warning("listener_disconnected", error=str(error), connected=self.connected)
            failures = 1 if self._connection else failures + 1
            self._connection = None
            LISTENER_CONNECTED.set(0)
            await asyncio.sleep(RECONNECT.delay(failures))

    async def _listen(self) -> None:
        connection = await asyncpg.connect(
            self._url, timeout=10, server_settings={"application_name": "khala listener"}
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            for channel in self._handlers:
                await connection.add_listener(channel, self._handle)
            self._connection = connection
            LISTENER_CONNECTED.set(1)
            self._refresh_all()
            while not await wait_until_set(lost, HEARTBEAT_INTERVAL_SECONDS):
                await connection.execute("SELECT", timeout=HEARTBEAT_INTERVAL_SECONDS)
            raise ConnectionResetError("Postgres closed the connection")
        finally:
            connection.terminate()

    def _handle(self, connection: object, pid: int, channel: str, payload: object) -> None:
        if channel == THREADS_CHANNEL and self._own is not None and self._own.take(pid, str(payload)):
            return
        self._handlers[channel](str(payload))

    def _refresh_all(self) -> None:
        if self._own is not None:
            self._own.clear()
        for handler in self._handlers.values():
            handler(EVERYTHING)
