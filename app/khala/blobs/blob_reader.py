"""Looking into a blob that is text: its beginning, its end, a range of lines, or the lines with a pattern."""

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
from khala.store.blobs.blobs import Blob

ReadMode: TypeAlias = Literal["head", "tail", "range", "grep"]

MAX_LINES = 1000
MAX_TAIL_BYTES = 1 << 20
"""Bytes from the end of a blob in which its last lines are looked for."""
STEP_BYTES = 64 * 1024
"""Bytes that are looked at between two looks at the clock."""
LINE_COST_BYTES = 64
"""Bytes that beginning with a line counts for: the shortest takes its time, too."""
SEARCH_THREADS = 2
"""Threads that search. Others don't wait for them: these are used for nothing else."""
THREAD_WAIT_SECONDS = 10.0
"""Seconds past its own that a look may wait for a thread."""

_threads = ThreadPool(SEARCH_THREADS, "look")


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at. `start` is the first line of a range, from 1; `after` goes on where an answer ended.

    `lines` is how many, for `grep` how many that have the pattern; `context` how many around each of these.
    """

    mode: ReadMode = "head"
    lines: Annotated[int, Meta(ge=1, le=MAX_LINES)] = 100
    start: Annotated[int, Meta(ge=1)] = 1
    pattern: str | None = None
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=MAX_CONTEXT_LINES)] = 0
    after: str | None = None


class ReadResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was found. Ask the same with `after` set to `next` for more; without `next` there is none.

    A `next` may come with no lines at all, where the time was up. `binary`: this blob is no text and has no lines.
    """

    items: list[BlobLine]
    next: str | None = None
    binary: bool = False


async def read_lines(blob_service: BlobService, blob: Blob, question: ReadRequest, bounds: ReadLimits) -> ReadResult:
    """What the question asks for, in bounded time and memory. Raises `InvalidInput`, `BlobNotFound`, `Unavailable`."""
    cursor = LineCursor.read(question.after)
    view = _view(question, cursor, bounds)
    if not await _is_text(blob_service, blob):
        return ReadResult(items=[], binary=True)
    if question.mode == "tail":
        return await _read_tail(blob_service, blob, question.lines, bounds)
    return await _read_view(blob_service, blob, view, cursor, bounds)


def _view(question: ReadRequest, cursor: LineCursor, bounds: ReadLimits) -> LineView:
    if question.mode != "grep":
        return RangeView(cursor, bounds, first=question.start if question.mode == "range" else 1, lines=question.lines)
    if question.pattern is None:
        raise InvalidInput("What is looked for is missing.", path="pattern")
    pattern = compile_pattern(question.pattern, ignore_case=question.ignore_case)
    return GrepView(cursor, bounds, pattern, lines=question.lines, context=question.context)


async def _is_text(blob_service: BlobService, blob: Blob) -> bool:
    async with blob_service.read(blob, 0, HEAD_BYTES) as chunks:
        return content_type.is_text(b"".join([chunk async for chunk in chunks]))


async def _read_view(
    blob_service: BlobService, blob: Blob, view: LineView, cursor: LineCursor, bounds: ReadLimits
) -> ReadResult:
    reading = _TimedRead(view, time.monotonic() + bounds.seconds)
    try:
        async with (
            blob_service.read(blob, cursor.place.offset) as chunks,
            aclosing(split_lines(chunks, cursor.place)) as found,
        ):
            async for batch in found:
                if await _take_batch(reading, batch, bounds):
                    return _result(view, blob)
    finally:
        reading.stopped = True
    return ReadResult(items=view.items)


async def _take_batch(reading: "_TimedRead", batch: Sequence[LinePiece], bounds: ReadLimits) -> bool:
    if not batch or not isinstance(reading.view, GrepView):
        return reading.take(batch)
    try:
        async with asyncio.timeout(bounds.seconds + THREAD_WAIT_SECONDS):
            return await _threads.run(reading.take, batch)
    except TimeoutError as error:
        raise Unavailable("Too much is being searched. Try again soon.") from error


class _TimedRead:
    """Has a view take pieces until it is full, or the time is up, or nobody waits for it any more."""

    def __init__(self, view: LineView, deadline: float) -> None:
        self.view = view
        self.stopped = False
        self._deadline = deadline

    def take(self, batch: Sequence[LinePiece]) -> bool:
        """Take these; whether that was enough."""
        taken = 0
        for piece in batch:
            if self.stopped:
                return True
            self.view.take(piece)
            taken += LINE_COST_BYTES + len(piece.data)
            if self.view.full or (taken >= STEP_BYTES and self._late()):
                return True
            taken %= STEP_BYTES
        return self._late()

    def _late(self) -> bool:
        return self.view.moved and time.monotonic() > self._deadline


def _result(view: LineView, blob: Blob) -> ReadResult:
    cursor = view.cursor()
    ended = cursor.place.offset >= blob.size
    return ReadResult(items=view.items, next=None if ended else str(cursor))


async def _read_tail(blob_service: BlobService, blob: Blob, lines: int, bounds: ReadLimits) -> ReadResult:
    begin, data = blob.size, b""
    while begin > 0 and data.count(b"\n", 0, -1) < lines and len(data) < MAX_TAIL_BYTES:
        begin, end = max(0, begin - STEP_BYTES), begin
        async with blob_service.read(blob, begin, end) as chunks:
            data = b"".join([chunk async for chunk in chunks]) + data
    *ended, unended = data.split(b"\n")
    found = [line.removesuffix(b"\r") for line in ended] + ([unended] if unended else [])
    # The first line's beginning may not have been read.
    whole_from = 1 if begin > 0 else 0
    items: list[BlobLine] = []
    left = bounds.text
    for number, line in enumerate(reversed(found[-lines:]), 1):
        items.append(_tail_line(number, line, bounds.line, whole=len(found) - number >= whole_from))
        left -= len(items[-1].text)
        if left <= 0:
            break
    return ReadResult(items=items[::-1])


def _tail_line(number: int, line: bytes, most: int, *, whole: bool) -> BlobLine:
    text = line.decode(errors="replace")
    if not whole:
        return BlobLine(line=-number, text=ELLIPSIS + text[-most:], cut=True)
    cut = len(text) > most
    return BlobLine(line=-number, text=text[:most] + ELLIPSIS if cut else text, cut=cut)
