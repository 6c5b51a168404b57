"""Follows the feed of one thread: reconnects with its cursor, and requests missing revisions again."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala_client.connections import (
    FeedConnection,
    FeedFrame,
    Gone,
    Silence,
    UpgradeRefused,
    open_events,
    open_socket,
)
from khala_client.credentials import Keys
from khala_client.errors import (
    ConnectionFailed,
    Forbidden,
    KhalaError,
    Unauthenticated,
    error_of,
    error_of_code,
)
from khala_client.http_core import HttpCore
from khala_client.models import Delta, Snapshot

Transport: TypeAlias = Literal["auto", "websocket", "sse"]
"""`auto` uses a WebSocket, and server-sent events where there is none."""
ConnectionListener: TypeAlias = Callable[[Literal["connecting", "live", "waiting"]], None]

REPAIR_TIMEOUT_SECONDS = 5.0
"""After a gap, missing revisions are awaited for so long. Then the client reconnects for a snapshot."""
STABLE_AFTER_SECONDS = 5.0
"""A connection that lasted so long starts the back-off again."""


class FeedCursor:
    """Decides which frames continue the chain of revisions. Pure, without clock or socket."""

    def __init__(self, after: int | None) -> None:
        self.revision = after
        self.needs_snapshot = after is None

    @property
    def after(self) -> int | None:
        """The revision with which to subscribe, None for a snapshot."""
        return None if self.needs_snapshot else self.revision

    def accept(self, frame: Snapshot | Delta) -> Literal["apply", "stale", "gap"]:
        """Whether the frame is the next one. If so, the cursor moves behind it."""
        if isinstance(frame, Snapshot):
            self.needs_snapshot = False
        elif self.needs_snapshot or self.revision is None or frame.revision <= self.revision:
            return "stale"
        elif frame.since != self.revision:
            return "gap"
        self.revision = frame.revision
        return "apply"


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to follow. `on_connection` is told about each change of the connection, in the loop of the client."""

    transport: Transport = "auto"
    on_connection: ConnectionListener | None = None


class FeedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The thread to follow, the keys that open it, and the revision to continue from: None begins with a snapshot."""

    thread_id: UUID
    keys: Keys
    after: int | None = None


class Feed:
    """The feed of one thread."""

    def __init__(self, core: HttpCore, target: FeedTarget, options: FollowOptions) -> None:
        self._core = core
        self._thread_id = target.thread_id
        self._keys = target.keys.over(core.config.keys)
        self._options = options
        self._attempt = 0
        self._live_since: float | None = None
        self._lost_at: float | None = None
        self._refused: str | None = None  # The token with which access ended, until it is renewed.
        self._may_renew = True
        self.cursor = FeedCursor(target.after)

    def request_snapshot(self) -> None:
        """Have the feed begin again with a snapshot, because frames that it yielded could not be applied."""
        self.cursor.needs_snapshot = True

    async def frames(self) -> AsyncGenerator[Snapshot | Delta, None]:
        """The frames of the chain, without end. The next frame is read when it is asked for.

        Raises `NotFound` if the thread is deleted, `Forbidden` or `Unauthenticated` when access ends, and
        `ConnectionFailed` if there was no connection for `max_disconnected` seconds.
        """
        while True:
            self._tell("connecting")
            self._live_since = None
            try:
                async with contextlib.aclosing(self._connected()) as connection:
                    async for frame in connection:
                        self._lost_at, self._may_renew = None, True
                        yield frame
            except KhalaError as error:
                await self._wait(error)
            else:
                await self._wait(ConnectionFailed("Revisions are missing."))

    async def _connected(self) -> AsyncGenerator[Snapshot | Delta, None]:
        """The frames of one connection. It returns where only another connection helps."""
        refused, self._refused = self._refused, None
        async with contextlib.AsyncExitStack() as stack:
            connection = await self._open(stack, refused)
            self._live_since = asyncio.get_running_loop().time()
            self._tell("live")
            frames = await stack.enter_async_context(contextlib.aclosing(connection.frames()))
            repair_since: float | None = None
            async for frame in frames:
                match await self._receive(frame, connection):
                    case "apply" if isinstance(frame, Snapshot | Delta):
                        repair_since = None
                        yield frame
                        if self.cursor.needs_snapshot:
                            return
                    case "gap":
                        now = asyncio.get_running_loop().time()
                        if repair_since is None and not await self._resubscribe(connection):
                            return
                        if repair_since is not None and now - repair_since > REPAIR_TIMEOUT_SECONDS:
                            self.cursor.needs_snapshot = True
                            return
                        repair_since = repair_since or now
                    case _:
                        pass

    async def _receive(self, frame: FeedFrame, connection: FeedConnection) -> Literal["apply", "stale", "gap"]:
        match frame:
            case Silence():
                # If the last frame was lost, no later one would reveal the gap.
                await self._resubscribe(connection)
                return "stale"
            case Gone():
                raise self._refusal(frame)
            case _:
                return self.cursor.accept(frame)

    async def _resubscribe(self, connection: FeedConnection) -> bool:
        after = self.cursor.after
        return after is not None and await connection.resubscribe(after)

    def _refusal(self, frame: Gone) -> KhalaError:
        """The error that ends the feed."""
        error = error_of_code(frame.code, frame.message)
        return error or KhalaError(frame.message or f"The feed ended: {frame.code}.", code=frame.code)

    async def _open(self, stack: contextlib.AsyncExitStack, refused: str | None) -> FeedConnection:
        """Connect by the transport that works."""
        given = (self._core, self._thread_id, self._keys, self.cursor.after, refused)
        if self._options.transport == "sse":
            return await self._open_events(stack, refused)
        try:
            return await stack.enter_async_context(open_socket(*given))
        except UpgradeRefused as error:
            if self._options.transport == "websocket":
                raise error_of(error.status or 0, b"", None) if error.status in (401, 403) else error from None
        return await self._open_events(stack, refused)

    async def _open_events(self, stack: contextlib.AsyncExitStack, refused: str | None) -> FeedConnection:
        try:
            opening = open_events(self._core, self._thread_id, self._keys, self.cursor.after, refused)
            return await stack.enter_async_context(opening)
        except (Unauthenticated, Forbidden):
            self._may_renew = False  # The request has renewed the token already.
            raise

    async def _wait(self, error: KhalaError) -> None:
        """Wait before the next connection. Raises the error if there is none to try."""
        if isinstance(error, Unauthenticated | Forbidden) and self._may_renew and self._core.token.is_renewable:
            # The token may have expired. One that is new is tried once.
            self._may_renew, self._refused = False, await self._core.bearer()
            return
        now = asyncio.get_running_loop().time()
        policy = self._core.config.retry
        if self._live_since is not None and now - self._live_since > STABLE_AFTER_SECONDS:
            self._attempt = 0
        self._lost_at = now if self._lost_at is None else self._lost_at
        delay = policy.follow_delay(self._attempt, error)
        if delay is None or policy.is_over(now + delay - self._lost_at):
            raise error
        self._attempt += 1
        self._tell("waiting")
        # A single lost connection is ordinary, as after a restart of the server.
        await (self._core.pause(delay) if self._attempt == 1 else self._core.pause_after(error, delay))

    def _tell(self, phase: Literal["connecting", "live", "waiting"]) -> None:
        if self._options.on_connection is not None:
            self._options.on_connection(phase)
