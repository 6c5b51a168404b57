"""Wake-ups over NATS: published after a group commit, so that no commit waits for the NOTIFY of another.

Like a NOTIFY, a wake-up says only that something has changed. It is delivered at most once and in any order. A wake-up
is lost if a process dies between its commit and the publication, or if the server fails; observers then get the change
with the next fallback poll. After a reconnect, everything is read again. While the server is unavailable, the writer
notifies through Postgres, to which every process always listens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError, SlowConsumerError

from khala.domain.backoff import Backoff
from khala.live.nats_url import NatsServers
from khala.store.postgres.notifications import (
    EVERYTHING,
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)

log = structlog.get_logger()

PUBLISHED_CHANNELS = (THREADS_CHANNEL, RUNS_CHANNEL)
"""The channels of the wake-ups of a group commit."""
HEARTBEAT_INTERVAL_SECONDS = 5
"""Seconds between two checks that the connection is alive, and the timeout of a check."""
CONNECT_TIMEOUT_SECONDS = 5.0
"""Seconds to connect, for all servers together."""
CLOSE_TIMEOUT_SECONDS = 1.0
"""Seconds to close the connection."""
RECONNECT = Backoff(first_seconds=0.1, max_seconds=5.0)
"""Delays between two attempts to connect."""
MAX_PENDING_BYTES = 1 << 18
"""Bytes that may wait to be sent. While there are more, Postgres notifies instead."""
MAX_PENDING_MESSAGES = 1 << 10
"""Received messages that may wait for their handler. If there are more, everything is read again instead."""

WakeHandlers = Mapping[str, Callable[[str], None]]


class NatsBus:
    """The NATS connection of a process: publishes wake-ups, and passes received ones to their channel's handler."""

    def __init__(self, url: NatsServers) -> None:
        self._url = url
        self._client: Client | None = None
        self._lost_before = False

    @property
    def connected(self) -> bool:
        """Whether a wake-up published now would be sent."""
        client = self._client
        return client is not None and client.is_connected and client.pending_data_size <= MAX_PENDING_BYTES

    async def publish(self, channel: str, payload: str) -> None:
        """Wake all listeners of this channel, without waiting for the server. Does nothing without a connection."""
        if self._client is None or not self.connected:
            return
        try:
            await self._client.publish(self._subject(channel), payload.encode())
        except NatsError as error:
            log.warning("wake_up_not_published", channel=channel, error=str(error))

    async def check(self) -> None:
        """Connect once and subscribe to the channels. Raises `ConnectionError` with the servers and the reason."""
        try:
            async with self._connection(dict.fromkeys(PUBLISHED_CHANNELS, _ignore)):
                return
        except (OSError, NatsError, TimeoutError) as error:
            reason = str(error) or f"no answer in {CONNECT_TIMEOUT_SECONDS:.0f} s"
            raise ConnectionError(f"KHALA_WAKE_URL: NATS at {self._url} is out of reach: {reason}") from error

    async def run(self, handlers: WakeHandlers) -> None:
        """Pass wake-ups to these handlers, for ever."""
        failures = 1
        while True:
            try:
                await self._listen(handlers)
            except (OSError, NatsError, TimeoutError) as error:
                log.warning(
                    "nats_disconnected", server=str(self._url), error=str(error), connected=self._client is not None
                )
            failures = 1 if self._client else failures + 1
            self._lost_before, self._client = self._lost_before or self._client is not None, None
            await asyncio.sleep(RECONNECT.delay(failures))

    async def _listen(self, handlers: WakeHandlers) -> None:
        async with self._connection(handlers) as connection:
            self._client = connection.client
            await self._refresh_all(handlers)
            while not await connection.failed(HEARTBEAT_INTERVAL_SECONDS):
                await connection.client.flush(HEARTBEAT_INTERVAL_SECONDS)
            raise ConnectionResetError(connection.failure)

    async def _refresh_all(self, handlers: WakeHandlers) -> None:
        """Have everything read again, because this process may have missed wake-ups.

        After a lost connection, other processes do so, too: they may have missed wake-ups that this process published
        before it detected the loss.
        """
        for handler in handlers.values():
            handler(EVERYTHING)
        for channel in PUBLISHED_CHANNELS if self._lost_before else ():
            await self.publish(channel, EVERYTHING)

    @asynccontextmanager
    async def _connection(self, handlers: WakeHandlers) -> AsyncIterator["_Connection"]:
        """A new connection that is subscribed to the handlers' channels. It is closed at the end."""
        connection = _Connection(handlers)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await connection.open(self._url)
                for channel in handlers:
                    await connection.subscribe(self._subject(channel), channel)
            yield connection
        finally:
            await connection.close()

    def _subject(self, channel: str) -> str:
        return f"{self._url.prefix}.{channel}"


class _Connection:
    """One connection, and the reason of its failure."""

    def __init__(self, handlers: WakeHandlers) -> None:
        self.client = Client()
        self.failure = ""
        self._handlers = handlers
        self._failed = asyncio.Event()

    async def open(self, url: NatsServers) -> None:
        """Connect to any of the servers."""
        try:
            await self.client.connect(
                list(url.servers),
                name="khala",
                user=url.name,
                password=url.password,
                token=url.token,
                error_cb=self._on_error,
                # The client's own reconnect gives up permanently after some errors.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                pending_size=2 * MAX_PENDING_BYTES,
            )
        except NoServersError as error:
            raise ConnectionRefusedError(self.failure) from error
        # Another server of the list may have failed before this one.
        self._failed.clear()

    async def subscribe(self, subject: str, channel: str) -> None:
        """Subscribe, and return when no further message can be missed. Raises `PermissionError`."""

        async def receive(message: Msg) -> None:
            self._receive(channel, message.data)

        await self.client.subscribe(subject, cb=receive, pending_msgs_limit=MAX_PENDING_MESSAGES)
        # The first flush may overtake the pending subscription; the second one comes after it.
        for _ in range(2):
            await self.client.flush(HEARTBEAT_INTERVAL_SECONDS)
        if self._failed.is_set():
            raise PermissionError(self.failure)

    async def failed(self, seconds: float) -> bool:
        """Whether the connection fails within this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._failed.wait()
        return self.client.is_closed

    async def close(self) -> None:
        """Close the connection, in any state."""
        with suppress(OSError, NatsError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.client.close()

    def _receive(self, channel: str, payload: bytes) -> None:
        try:
            self._handlers[channel](payload.decode())
        except ValueError:
            log.warning("wake_up_invalid", channel=channel, size=len(payload))

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            for handler in self._handlers.values():
                handler(EVERYTHING)
        else:
            self.failure = str(error)
            self._failed.set()


def _ignore(payload: str) -> None:
    """Ignore a wake-up that arrives during the check."""
