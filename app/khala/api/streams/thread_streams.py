"""`/v1/stream/threads/{id}`: a thread as a read-only JSON stream of its changes, whose offsets are revisions.

A message is a frame of the thread's feed: first a snapshot, then a delta for each change, as over the WebSocket. The
stream has the access rules of the thread.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, get, head
from litestar.di import NamedDependency
from litestar.response import Stream

from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.server_sent_events import KEEP_ALIVE, MEDIA_TYPE
from khala.api.streams import browser_isolation
from khala.api.streams import stream_headers as names
from khala.api.streams.stream_reader import (
    CONNECTION_SECONDS,
    EVENT_HEADERS,
    REVALIDATE,
    StreamQuery,
    control_event,
    parse_query,
)
from khala.api.threads.feed_reader import read_frames
from khala.domain.access import Authorization, Caller
from khala.domain.errors import ThreadNotFound
from khala.domain.streams import offsets
from khala.domain.streams.content import JSON_TYPE
from khala.live.encoded_frame import EncodedFrame
from khala.live.observer import CatchUpRead, OutgoingFrame
from khala.signals.metrics import EVENT_STREAMS
from khala.store.threads import thread_feed


class ThreadStreamController(Controller):
    """Streams of threads."""

    path = "/threads/{thread_id:uuid}"
    include_in_schema = False
    response_headers = browser_isolation.HEADERS
    guards = (browser_isolation.refuse_code,)

    @get("/", lenient=True)
    async def read(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        thread_id: ThreadId,
    ) -> Response[bytes] | Stream:  # fmt: skip
        """Read the changes after an offset, and wait for more if the request asks for it."""
        authorization = await context.live.threads.authorize(context.db, thread_id, caller)
        reader = ThreadStreamReader(context, thread_id, authorization, parse_query(request))
        return await reader.respond(request.headers.get("if-none-match"))

    @head("/", lenient=True)
    async def inspect(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Response[None]:
        """Return the offset of the last change."""
        await context.live.threads.authorize(context.db, thread_id, caller)
        revision = await _revision(context, thread_id)
        headers = {"Content-Type": JSON_TYPE, names.NEXT_OFFSET: offsets.format_offset(revision)}
        return Response(None, headers=headers | {"Cache-Control": "no-store"})


class ThreadStreamReader:
    """Reads one thread for one request."""

    def __init__(self, context: Context, thread_id: UUID, authorization: Authorization, query: StreamQuery) -> None:
        self._context = context
        self._thread_id = thread_id
        self._authorization = authorization
        self._query = query

    async def respond(self, if_none_match: str | None) -> Response[bytes] | Stream:
        """Return the response. Raises `ThreadNotFound`, and `Forbidden` if the caller has lost access."""
        after = await self._after()
        if self._query.live == "long-poll":
            return await self._long_poll(after)
        read = await self._read(after)
        if self._query.live == "sse":
            return Stream(self._events(after, read), media_type=MEDIA_TYPE, headers=dict(EVENT_HEADERS))
        return self._catch_up(after, read, if_none_match)

    async def _after(self) -> int | None:
        """Return the revision that the client has; None for none."""
        if self._query.offset == offsets.BEGINNING:
            return None
        position = self._query.position
        return await _revision(self._context, self._thread_id) if position is None else position

    async def _read(self, after: int | None) -> CatchUpRead:
        read = await self._context.live.threads.read(self._thread_id, -1 if after is None else after)
        if read is None:
            raise ThreadNotFound("There is no such thread.")
        if read.access_id != self._authorization.access_id:
            # Access may have changed between the authorization and the read.
            caller = self._authorization.caller
            self._authorization = await self._context.live.threads.authorize(self._context.db, self._thread_id, caller)
        return read

    def _catch_up(self, after: int | None, read: CatchUpRead, if_none_match: str | None) -> Response[bytes]:
        revision = after or 0 if read.revision is None else read.revision
        headers = _headers(revision)
        if self._query.position is None:
            return _json(None, headers | {"Cache-Control": "no-store"})
        tag = f'"{self._thread_id}:{-1 if after is None else after}:{revision}"'
        headers |= {"ETag": tag, "Cache-Control": REVALIDATE}
        if if_none_match is not None and tag in (each.strip() for each in if_none_match.split(",")):
            return Response(b"", status_code=304, headers=headers)
        return _json(None if read.body is None else read.body.text, headers)

    async def _long_poll(self, after: int | None) -> Response[bytes]:
        frame = await self._next_frame(after)
        revision = after or 0 if frame is None or frame.revision is None else frame.revision
        headers = _headers(revision) | {names.CURSOR: self._query.next_cursor(), "Cache-Control": "no-store"}
        if frame is None:
            return Response(b"", status_code=204, headers=headers)
        if frame.revision is None:
            # The thread was deleted, or the caller has lost access: this raises the reason.
            await self._context.live.threads.authorize(self._context.db, self._thread_id, self._authorization.caller)
            raise ThreadNotFound("There is no such thread.")
        return _json(frame.body.text, headers)

    async def _next_frame(self, after: int | None) -> OutgoingFrame | None:
        """Return the next frame after this revision; None if none comes in time."""
        frames = read_frames(self._context.live, self._thread_id, after, self._authorization)
        try:
            async with asyncio.timeout(self._context.streams.long_poll_seconds), aclosing(frames):
                async for frame in frames:
                    if frame is not None:
                        return frame
        except TimeoutError:
            return None
        return None

    async def _events(self, after: int | None, read: CatchUpRead) -> AsyncIterator[str]:
        """Yield what there is, and then each change with the offset after it. It ends after about a minute."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECTION_SECONDS
        revision = after or 0 if read.revision is None else read.revision
        EVENT_STREAMS.inc()
        try:
            yield (
                control_event(self._query, revision, up_to_date=True)
                if read.body is None
                else self._event(read.body, revision)
            )
            following = read_frames(self._context.live, self._thread_id, revision, self._authorization)
            async with aclosing(following) as frames:
                async for frame in frames:
                    if frame is None:
                        yield KEEP_ALIVE
                    elif frame.revision is None:
                        return
                    else:
                        yield self._event(frame.body, frame.revision)
                    if loop.time() > deadline:
                        return
        finally:
            EVENT_STREAMS.dec()

    def _event(self, frame: EncodedFrame, revision: int) -> str:
        """Return the frame and the offset after it, which are encoded once for all readers with the same cursor."""
        return frame.derive(("durable-streams", self._query.cursor), lambda: self._encode(frame, revision))

    def _encode(self, frame: EncodedFrame, revision: int) -> str:
        # JSON has no line breaks outside of strings, and msgspec writes none between values.
        return f"event: data\ndata:[{frame.text}]\n\n{control_event(self._query, revision, up_to_date=True)}"


async def _revision(context: Context, thread_id: UUID) -> int:
    async with context.db.driver() as driver:
        return await thread_feed.read_revision(driver, thread_id)


def _headers(revision: int) -> dict[str, str]:
    return {names.NEXT_OFFSET: offsets.format_offset(revision), names.UP_TO_DATE: "true"}


def _json(frame: str | None, headers: dict[str, str]) -> Response[bytes]:
    body = b"[]" if frame is None else f"[{frame}]".encode()
    return Response(body, headers=headers | {"Content-Type": JSON_TYPE}, media_type=JSON_TYPE)
