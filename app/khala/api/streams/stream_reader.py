"""Responses to reads of a stream: what there is, a long-poll, and server-sent events."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from litestar import Request, Response
from litestar.response import Stream

from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, MEDIA_TYPE
from khala.api.streams import stream_headers as names
from khala.domain.errors import InvalidInput, NotFound
from khala.domain.streams import content, cursors, offsets
from khala.live.polling import wait_until_set
from khala.live.stream_follower import StreamRead
from khala.signals.metrics import EVENT_STREAMS
from khala.store.streams.stream_rows import StreamSpace, usable

LiveMode: TypeAlias = Literal["long-poll", "sse"]
CONNECTION_SECONDS = 60.0
"""After this time, an event stream ends, and the client connects again: so caches and access rules take effect."""
KEEP_ALIVE_INTERVAL_SECONDS = 15.0
REVALIDATE = "private, no-cache"
"""A client may keep the response, and must ask with `If-None-Match` before it uses it again."""
EVENT_HEADERS = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no"}


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query parameters of a read."""

    offset: str
    live: LiveMode | None
    cursor: str | None

    @property
    def position(self) -> int | None:
        """The position to read from; None for the end of the stream."""
        return None if self.offset == offsets.NOW else offsets.parse_offset(self.offset)

    def next_cursor(self) -> str:
        """Return the cursor of a live response."""
        # Without a cursor of the client, none has to be exceeded.
        jitter = random.randint(cursors.MIN_JITTER_SECONDS, cursors.MAX_JITTER_SECONDS) if self.cursor else 0
        return cursors.next_cursor(time.time(), self.cursor, jitter)


def parse_query(request: Request[Any, Any, Any]) -> StreamQuery:
    """Return the query. Raises `InvalidInput`; unknown parameters are ignored, as the protocol says."""
    sent: dict[str, Sequence[str]] = {
        name: request.query_params.getall(name, []) for name in ("offset", "live", "cursor")
    }
    if len(sent["offset"]) > 1 or "" in sent["offset"]:
        raise InvalidInput("Send one offset.", path="offset")
    live = next(iter(sent["live"]), None)
    if live is not None and live not in get_args(LiveMode):
        raise InvalidInput(f"live must be one of {', '.join(get_args(LiveMode))}.", path="live")
    if live is not None and not sent["offset"]:
        raise InvalidInput("A live read needs an offset.", path="offset")
    query = StreamQuery(
        offset=next(iter(sent["offset"]), offsets.BEGINNING),
        live=_live_mode(live),
        cursor=next(iter(sent["cursor"]), None),
    )
    query.position  # noqa: B018  # refuses a malformed offset
    return query


def _live_mode(value: str | None) -> LiveMode | None:
    match value:
        case "long-poll" | "sse":
            return value
        case _:
            return None


class StreamReader:
    """Reads one stream for one request."""

    def __init__(self, context: Context, space: StreamSpace, name: str, query: StreamQuery) -> None:
        self._context = context
        self._space = space
        self._name = name
        self._query = query

    async def respond(self, if_none_match: str | None) -> Response[bytes] | Stream:
        """Return the response. Raises `NotFound`, `StreamGone`, and `InvalidInput` for an offset beyond the end."""
        first = await self._read(self._query.position)
        start = first.stream.state.tail if self._query.position is None else self._query.position
        if start > first.stream.state.tail:
            raise InvalidInput("The offset is beyond the end of the stream.", path="offset")
        match self._query.live:
            case None:
                return self._catch_up(first, start, if_none_match)
            case "long-poll":
                return await self._long_poll(first, start)
            case "sse":
                return self._event_stream(first, start)

    async def _read(self, first: int | None) -> StreamRead:
        read = await self._context.live.streams.read(self._space, self._name, first)
        if read is None:
            raise NotFound("There is no such stream.")
        usable(read.stream)
        return read

    def _catch_up(self, read: StreamRead, start: int, if_none_match: str | None) -> Response[bytes]:
        headers = _headers(read)
        if self._query.position is None:
            return _body_response(read, headers | {"Cache-Control": "no-store"})
        closed = ":c" if read.closed else ""
        tag = f'"{read.stream.id}:{start}:{read.end}{closed}"'
        headers |= {"ETag": tag, "Cache-Control": REVALIDATE}
        if if_none_match is not None and tag in (each.strip() for each in if_none_match.split(",")):
            return Response(b"", status_code=304, headers=headers)
        return _body_response(read, headers)

    async def _long_poll(self, read: StreamRead, start: int) -> Response[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._context.streams.long_poll_seconds
        with self._context.live.streams.watch(read.stream.id) as changed:
            while not read.chunks and not read.closed and loop.time() < deadline:
                # Between the first read and `watch`, the stream may have changed.
                read = await self._again(read, start)
                if read.chunks or read.closed:
                    break
                await wait_until_set(changed, deadline - loop.time())
                changed.clear()
                read = await self._again(read, start)
        headers = _headers(read) | {"Cache-Control": "no-store"}
        if not read.closed:
            headers[names.CURSOR] = self._query.next_cursor()
        if read.chunks:
            return _body_response(read, headers)
        return Response(b"", status_code=204, headers=headers)

    async def _again(self, before: StreamRead, start: int) -> StreamRead:
        read = await self._read(start)
        if read.stream.id != before.stream.id:
            raise NotFound("The stream was deleted, and another one has its name.")
        return read

    def _event_stream(self, read: StreamRead, start: int) -> Stream:
        headers = dict(EVENT_HEADERS)
        if not content.is_text(read.stream.state.content_type):
            headers[names.EVENT_ENCODING] = "base64"
        return Stream(self._events(read, start), media_type=MEDIA_TYPE, headers=headers)

    async def _events(self, read: StreamRead, start: int) -> AsyncIterator[str]:
        """Yield events: after each one with data, one with the position; and a first one without data if there is none.

        It ends after a minute, with the stream, and when the stream is deleted.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECTION_SECONDS
        EVENT_STREAMS.inc()
        try:
            with self._context.live.streams.watch(read.stream.id) as changed:
                encoder = StreamEventEncoder(self._query, start)
                yield encoder.encode(read, first=True)
                while not read.closed and loop.time() < deadline:
                    changed.clear()
                    read = await self._again(read, encoder.position)
                    if events := encoder.encode(read):
                        yield events
                    elif not await wait_until_set(changed, min(KEEP_ALIVE_INTERVAL_SECONDS, deadline - loop.time())):
                        yield KEEP_ALIVE
        except NotFound:
            return
        finally:
            EVENT_STREAMS.dec()


class StreamEventEncoder:
    """Encodes reads of one stream as events. `position` is the one after everything that was sent."""

    def __init__(self, query: StreamQuery, position: int) -> None:
        self.position = position
        self._query = query
        self._closed = False

    def encode(self, read: StreamRead, *, first: bool = False) -> str:
        """Return the events of this read; nothing if it has nothing new and is not the first."""
        content_type = read.stream.state.content_type
        body = content.response_body(content_type, read.chunks)
        # The rest of a character follows with the next append.
        held = 0 if read.closed else content.incomplete_suffix(content_type, body)
        end = read.end - held
        has_data = end > self.position
        if not (has_data or first or read.closed):
            return ""
        self.position = end
        data = data_event(content_type, body[: len(body) - held]) if has_data else ""
        return data + control_event(self._query, end, up_to_date=read.up_to_date, closed=read.closed)


def control_event(query: StreamQuery, position: int, *, up_to_date: bool, closed: bool = False) -> str:
    """Return the event that says how far the client has come."""
    fields: dict[str, str | bool] = {"streamNextOffset": offsets.format_offset(position)}
    if not closed:
        fields["streamCursor"] = query.next_cursor()
    if up_to_date:
        fields["upToDate"] = True
    if closed:
        fields["streamClosed"] = True
    return f"event: control\ndata:{msgspec.json.encode(fields).decode()}\n\n"


def data_event(content_type: str, body: bytes) -> str:
    """Return the event that has contents."""
    return f"event: data\n{content.event_lines(content_type, body)}\n\n"


def _headers(read: StreamRead) -> dict[str, str]:
    headers = {names.NEXT_OFFSET: offsets.format_offset(read.end)}
    if read.up_to_date:
        headers[names.UP_TO_DATE] = "true"
    if read.closed:
        headers[names.CLOSED] = "true"
    return headers


def _body_response(read: StreamRead, headers: dict[str, str]) -> Response[bytes]:
    content_type = read.stream.state.content_type
    body = content.response_body(content_type, read.chunks)
    return Response(body, headers=headers | {"Content-Type": content_type}, media_type=content_type)
