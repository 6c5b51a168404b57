"""Follows the feed of a thread as server-sent events, over any number of connections."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from uuid import UUID

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong

from khala.operations.plan_client.api import (
    MAX_ANSWER_BYTES,
    PlanApiClient,
    RequestRefused,
    ServerUnreachable,
    refusal,
)
from khala.operations.plan_client.view_state import FeedFrame

SILENCE_TIMEOUT_SECONDS = 40.0
"""The server sends a comment after each 15 s of silence."""
CONNECT_TIMEOUT_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 15.0
MAX_DISCONNECTED_SECONDS = 900.0
"""Time without a connection after which following ends."""
MAX_FRAME_BYTES = 8 << 20


class Disconnected(msgspec.Struct, frozen=True):
    """The connection is lost. The next attempt is in so many seconds."""

    reason: str
    retry_seconds: float


class ThreadEventStream:
    """The feed of a thread. `revision` is its cursor: None begins with a snapshot."""

    def __init__(self, client: PlanApiClient, thread_id: UUID, revision: int | None) -> None:
        self._client = client
        self._url = f"{client.connection.server}/api/threads/{thread_id}/events"
        self.revision = revision

    async def items(self) -> AsyncGenerator[FeedFrame | Disconnected]:
        """All frames after the cursor, for ever, and each loss of the connection.

        After a frame of type `skipped`, the cursor has to be set behind it.
        Raises `RequestRefused` if the thread may not be read, and `ServerUnreachable` after 15 minutes without a
        connection.
        """
        failures, alive_at = 0, time.monotonic()
        while True:
            try:
                async for frame in self._connection():
                    failures, alive_at = 0, time.monotonic()
                    yield frame
                reason = "the server closed the connection"
            except RequestRefused as error:
                if not error.is_temporary:
                    raise
                reason = error.message
            except (TimeoutError, aiohttp.ClientError) as error:
                reason = str(error) or "the server is silent"
            except (LineTooLong, ValueError) as error:  # The frame is too large, or can't be read.
                reason = str(error).splitlines()[0]
                yield FeedFrame(type="skipped")
            if time.monotonic() - alive_at > MAX_DISCONNECTED_SECONDS:
                raise ServerUnreachable(f"The connection is lost: {reason}. The plan goes on without this view.")
            seconds = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**failures) * random.uniform(0.5, 1)
            failures = min(failures + 1, 16)
            yield Disconnected(reason, seconds)
            await asyncio.sleep(seconds)

    async def _connection(self) -> AsyncGenerator[FeedFrame]:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=SILENCE_TIMEOUT_SECONDS
        )
        after = {} if self.revision is None else {"after": str(self.revision)}
        async with self._client.session.get(
            self._url, params=after, timeout=timeout, allow_redirects=False, read_bufsize=MAX_FRAME_BYTES // 2
        ) as response:
            if response.status != 200:
                raise refusal(response.status, await response.content.read(MAX_ANSWER_BYTES))
            while line := await response.content.readline():
                if not line.startswith(b"data: "):
                    continue
                frame = msgspec.json.decode(line[6:], type=FeedFrame)
                if frame.type == "gone":
                    raise RequestRefused(403, frame.code or "forbidden", "You may no longer read this thread.")
                if frame.revision is not None:
                    self.revision = frame.revision
                yield frame
