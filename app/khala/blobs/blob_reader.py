"""Reads lines of a text blob: the first, the last, a range, or those that match a pattern."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from khala.blobs import content_type
from khala.blobs.blob_service import BlobService
from khala.blobs.line_splitter import LinePiece, split_lines
from khala.blobs.line_views import (
    ELLIPSIS,
    MAX_CONTEXT_LINES,
    BlobLine,
    GrepView,
    LineCursor,
    LineView,
    RangeView,
    ReadLimits,
)
from khala.blobs.patterns import compile_pattern
from khala.blobs.spool import HEAD_BYTES
from khala.blobs.thread_pool import ThreadPool
from khala.domain.errors import InvalidInput, Unavailable
from khala.store.blobs.blobs import StoredFile

ReadMode: TypeAlias = Literal["head", "tail", "range", "grep"]

MAX_LINES = 1000
MAX_TAIL_BYTES = 1 << 20
"""Bytes from the end of a blob in which `tail` looks for lines."""
STEP_BYTES = 64 * 1024
"""Bytes that are read between two checks of the time limit."""
LINE_COST_BYTES = 64
"""The cost of each line in bytes, because short lines take time, too."""
SEARCH_THREADS = 2
"""Threads that only run searches, so that no other work waits for a search."""
THREAD_WAIT_SECONDS = 10.0
"""Seconds beyond its own time limit that a search may wait for a thread."""

_threads = ThreadPool(SEARCH_THREADS, "search")


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The lines to read. `start` is the first line of a range, from 1. `after` continues a previous result.

    `lines` is the maximum number of lines, or of matches for `grep`. `context` is the number of lines before and after
    each match.
    """

    mode: ReadMode = "head"
    lines: Annotated[int, Meta(ge=1, le=MAX_LINES)] = 100
    start: Annotated[int, Meta(ge=1)] = 1
    pattern: str | None = None
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=MAX_CONTEXT_LINES)] = 0
    after: str | None = None


class ReadResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Lines of a blob. To read on, repeat the request with `after` set to `next`. The last result has no `next`.

    If the time limit was reached, a result may have a `next` but no lines. `binary`: the blob is not text, and has no
    lines.
    """

    items: list[BlobLine]
    next: str | None = None
    binary: bool = False


async def read_lines(
    blob_service: BlobService, blob: StoredFile, request: ReadRequest, limits: ReadLimits
) -> ReadResult:
    """The requested lines, in bounded time and memory. Raises `InvalidInput`, `BlobNotFound` and `Unavailable`."""
    cursor = LineCursor.read(request.after)
    view = _view(request, cursor, limits)
    if not await _is_text(blob_service, blob):
        return ReadResult(items=[], binary=True)
    if request.mode == "tail":
        return await _read_tail(blob_service, blob, request.lines, limits)
    return await _read_view(blob_service, blob, view, cursor, limits)


def _view(request: ReadRequest, cursor: LineCursor, limits: ReadLimits) -> LineView:
    if request.mode != "grep":
        return RangeView(cursor, limits, first=request.start if request.mode == "range" else 1, lines=request.lines)
    if request.pattern is None:
        raise InvalidInput("The mode grep needs a pattern.", path="pattern")
    pattern = compile_pattern(request.pattern, ignore_case=request.ignore_case)
    return GrepView(cursor, limits, pattern, lines=request.lines, context=request.context)


async def _is_text(blob_service: BlobService, blob: StoredFile) -> bool:
    async with blob_service.read(blob, 0, HEAD_BYTES) as chunks:
        return content_type.is_text(b"".join([chunk async for chunk in chunks]))


async def _read_view(
    blob_service: BlobService, blob: StoredFile, view: LineView, cursor: LineCursor, limits: ReadLimits
) -> ReadResult:
    timed_read = _TimedRead(view, time.monotonic() + limits.seconds)
    try:
        async with (
            blob_service.read(blob, cursor.position.offset) as chunks,
            aclosing(split_lines(chunks, cursor.position)) as batches,
        ):
            async for batch in batches:
                if await _take_batch(timed_read, batch, limits):
                    return _result(view, blob)
    finally:
        timed_read.stopped = True
    return ReadResult(items=view.items)


async def _take_batch(timed_read: "_TimedRead", batch: Sequence[LinePiece], limits: ReadLimits) -> bool:
    if not batch or not isinstance(timed_read.view, GrepView):
        return timed_read.take(batch)
    try:
        async with asyncio.timeout(limits.seconds + THREAD_WAIT_SECONDS):
            return await _threads.run(timed_read.take, batch)
    except TimeoutError as error:
        raise Unavailable("Too many searches are running. Try again soon.") from error


class _TimedRead:
    """Feeds pieces to a view until it is full, the time is up, or the reader has stopped waiting."""

    def __init__(self, view: LineView, deadline: float) -> None:
        self.view = view
        self.stopped = False
        self._deadline = deadline

    def take(self, batch: Sequence[LinePiece]) -> bool:
        """Feed these pieces. Returns whether reading is complete."""
        taken_bytes = 0
        for piece in batch:
            if self.stopped:
                return True
            self.view.take(piece)
            taken_bytes += LINE_COST_BYTES + len(piece.data)
            if self.view.full or (taken_bytes >= STEP_BYTES and self._is_late()):
                return True
            taken_bytes %= STEP_BYTES
        return self._is_late()

    def _is_late(self) -> bool:
        return self.view.moved and time.monotonic() > self._deadline


def _result(view: LineView, blob: StoredFile) -> ReadResult:
    cursor = view.cursor()
    ended = cursor.position.offset >= blob.size
    return ReadResult(items=view.items, next=None if ended else str(cursor))


async def _read_tail(blob_service: BlobService, blob: StoredFile, lines: int, limits: ReadLimits) -> ReadResult:
    start, data = blob.size, b""
    while start > 0 and data.count(b"\n", 0, -1) < lines and len(data) < MAX_TAIL_BYTES:
        start, end = max(0, start - STEP_BYTES), start
        async with blob_service.read(blob, start, end) as chunks:
            data = b"".join([chunk async for chunk in chunks]) + data
    *terminated, unterminated = data.split(b"\n")
    tail = [line.removesuffix(b"\r") for line in terminated] + ([unterminated] if unterminated else [])
    # The first line may begin before the part that was read.
    first_complete = 1 if start > 0 else 0
    items: list[BlobLine] = []
    remaining_characters = limits.text
    for number, line in enumerate(reversed(tail[-lines:]), 1):
        items.append(_tail_line(number, line, limits.line, complete=len(tail) - number >= first_complete))
        remaining_characters -= len(items[-1].text)
        if remaining_characters <= 0:
            break
    return ReadResult(items=items[::-1])


def _tail_line(number: int, line: bytes, max_characters: int, *, complete: bool) -> BlobLine:
    text = line.decode(errors="replace")
    if not complete:
        return BlobLine(line=-number, text=ELLIPSIS + text[-max_characters:], cut=True)
    cut = len(text) > max_characters
    return BlobLine(line=-number, text=text[:max_characters] + ELLIPSIS if cut else text, cut=cut)
