"""Wake-ups over NATS: what a group commit has changed is told after it, so that no commit waits for another's NOTIFY.

Like a NOTIFY it says "look again" and nothing else, at most once and in any order. What gets lost, with a process
between its commit and the telling, or with the server, costs an observer the hub's slow poll at most. After a reconnect
all look at everything. While the server is away the writer notifies by Postgres, to which all listen anyhow.
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
from khala.store.postgres.database import EVERYTHING, RUNS_CHANNEL, THREADS_CHANNEL

log = structlog.get_logger()

PUBLISHED_CHANNELS = (THREADS_CHANNEL, RUNS_CHANNEL)
"""The channels of what a group commit tells."""
HEARTBEAT_INTERVAL_SECONDS = 5
"""Seconds between two proofs that the connection is alive, and for one."""
CONNECT_TIMEOUT_SECONDS = 5.0
"""Seconds to connect, whatever the number of servers."""
CLOSE_TIMEOUT_SECONDS = 1.0
"""Seconds to say goodbye."""
RECONNECT = Backoff(first_seconds=0.1, max_seconds=5.0)
"""Delays between two tries to connect."""
MAX_PENDING_BYTES = 1 << 18
"""Bytes that may wait for the server to take them; over that, Postgres notifies."""
MAX_PENDING_MESSAGES = 1 << 10
"""Messages that may wait to be heard; over that, everything is looked at instead."""

WakeHandlers = Mapping[str, Callable[[str], None]]


class NatsBus:
    """One connection a process: it tells, and passes what it hears to each channel's handler."""

    def __init__(self, url: NatsServers) -> None:
        self._url = url
        self._client: Client | None = None
        self._broken = False

    @property
    def connected(self) -> bool:
        """Whether what is told now goes out."""
        client = self._client
        return client is not None and client.is_connected and client.pending_data_size <= MAX_PENDING_BYTES

    async def publish(self, channel: str, payload: str) -> None:
        """Wake all who hear this channel; without a connection nobody. It does not wait for the server."""
        if self._client is None or not self.connected:
            return
        try:
            await self._client.publish(self._subject(channel), payload.encode())
        except NatsError as error:
            log.warning("wake_untold", channel=channel, error=str(error))

    async def check(self) -> None:
        """Connect once, and try the channels. Raises `ConnectionError`, which says to whom and why not."""
        try:
            async with self._connection(dict.fromkeys(PUBLISHED_CHANNELS, _ignore)):
                return
        except (OSError, NatsError, TimeoutError) as error:
            why = str(error) or f"no answer in {CONNECT_TIMEOUT_SECONDS:.0f} s"
            raise ConnectionError(f"KHALA_WAKE_URL: NATS at {self._url} is out of reach: {why}") from error

    async def run(self, handlers: WakeHandlers) -> None:
        """Hear, for ever."""
        failures = 1
        while True:
            try:
                await self._listen(handlers)
            except (OSError, NatsError, TimeoutError) as error:
                log.warning("wake_lost", server=str(self._url), error=str(error), connected=self._client is not None)
            failures = 1 if self._client else failures + 1
            self._broken, self._client = self._broken or self._client is not None, None
            await asyncio.sleep(RECONNECT.delay(failures))

    async def _listen(self, handlers: WakeHandlers) -> None:
        async with self._connection(handlers) as connection:
            self._client = connection.client
            await self._refresh_all(handlers)
            while not await connection.failed(HEARTBEAT_INTERVAL_SECONDS):
                await connection.client.flush(HEARTBEAT_INTERVAL_SECONDS)
            raise ConnectionResetError(connection.why)

    async def _refresh_all(self, handlers: WakeHandlers) -> None:
        """Something may have been missed here; and by others, of what was told here before the loss was noticed."""
        for handler in handlers.values():
            handler(EVERYTHING)
        for channel in PUBLISHED_CHANNELS if self._broken else ():
            await self.publish(channel, EVERYTHING)

    @asynccontextmanager
    async def _connection(self, handlers: WakeHandlers) -> AsyncIterator["_Connection"]:
        """Subscribed to all channels. It is not mended when it breaks: a new one is made."""
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
    """A connection, and why it is of no use any more."""

    def __init__(self, handlers: WakeHandlers) -> None:
        self.client = Client()
        self.why = ""
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
                # The client's own reconnect gives up for good after some errors.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                pending_size=2 * MAX_PENDING_BYTES,
            )
        except NoServersError as error:
            raise ConnectionRefusedError(self.why) from error
        # Another server of theirs may have failed before this one.
        self._failed.clear()

    async def subscribe(self, subject: str, channel: str) -> None:
        """Hear it; returns when nothing more of it can be missed. Raises `PermissionError`."""

        async def heard(message: Msg) -> None:
            self._receive(channel, message.data)

        await self.client.subscribe(subject, cb=heard, pending_msgs_limit=MAX_PENDING_MESSAGES)
        # A flush overtakes what is pending, and takes it along: the second one comes after the subscription.
        for _ in range(2):
            await self.client.flush(HEARTBEAT_INTERVAL_SECONDS)
        if self._failed.is_set():
            raise PermissionError(self.why)

    async def failed(self, seconds: float) -> bool:
        """Whether it fails in this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._failed.wait()
        return self.client.is_closed

    async def close(self) -> None:
        """Let go of it, whatever state it is in."""
        with suppress(OSError, NatsError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.client.close()

    def _receive(self, channel: str, payload: bytes) -> None:
        try:
            self._handlers[channel](payload.decode())
        except ValueError:
            log.warning("wake_not_understood", channel=channel, size=len(payload))

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            for handler in self._handlers.values():
                handler(EVERYTHING)
        else:
            self.why = str(error)
            self._failed.set()


def _ignore(payload: str) -> None:
    """Nobody listens yet."""
