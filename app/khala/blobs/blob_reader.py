"""Looking into a blob that is text: its beginning, its end, a range of lines, or the lines with a pattern."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from khala.blobs import content_type
from khala.blobs.blob_service import Vault
from khala.blobs.line_splitter import Piece, pieces
from khala.blobs.line_views import MARK, MOST_CONTEXT, Bounds, Cursor, Grep, Line, Range, View
from khala.blobs.patterns import compiled
from khala.blobs.spool import HEAD
from khala.blobs.thread_pool import Threads
from khala.domain.errors import InvalidInput, Unavailable
from khala.store.blobs.blobs import Blob

Mode: TypeAlias = Literal["head", "tail", "range", "grep"]

MOST_LINES = 1000
MOST_BACK = 1 << 20
"""Bytes from the end of a blob in which its last lines are looked for."""
STEP = 64 * 1024
"""Bytes that are looked at between two looks at the clock."""
PER_LINE = 64
"""Bytes that beginning with a line counts for: the shortest takes its time, too."""
SEARCHING = 2
"""Threads that search. Others don't wait for them: these are used for nothing else."""
PATIENCE = 10.0
"""Seconds past its own that a look may wait for a thread."""

_threads = Threads(SEARCHING, "look")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at. `start` is the first line of a range, from 1; `after` goes on where an answer ended.

    `lines` is how many, for `grep` how many that have the pattern; `context` how many around each of these.
    """

    mode: Mode = "head"
    lines: Annotated[int, Meta(ge=1, le=MOST_LINES)] = 100
    start: Annotated[int, Meta(ge=1)] = 1
    pattern: str | None = None
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=MOST_CONTEXT)] = 0
    after: str | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was found. Ask the same with `after` set to `next` for more; without `next` there is none.

    A `next` may come with no lines at all, where the time was up. `binary`: this blob is no text and has no lines.
    """

    items: list[Line]
    next: str | None = None
    binary: bool = False


async def look(vault: Vault, blob: Blob, question: Question, bounds: Bounds) -> Look:
    """What the question asks for, in bounded time and memory. Raises `InvalidInput`, `BlobNotFound`, `Unavailable`."""
    cursor = Cursor.read(question.after)
    view = _view(question, cursor, bounds)
    if not await _is_text(vault, blob):
        return Look(items=[], binary=True)
    if question.mode == "tail":
        return await _tail(vault, blob, question.lines, bounds)
    return await _read(vault, blob, view, cursor, bounds)


def _view(question: Question, cursor: Cursor, bounds: Bounds) -> View:
    if question.mode != "grep":
        return Range(cursor, bounds, first=question.start if question.mode == "range" else 1, lines=question.lines)
    if question.pattern is None:
        raise InvalidInput("What is looked for is missing.", path="pattern")
    pattern = compiled(question.pattern, ignore_case=question.ignore_case)
    return Grep(cursor, bounds, pattern, lines=question.lines, context=question.context)


async def _is_text(vault: Vault, blob: Blob) -> bool:
    async with vault.read(blob, 0, HEAD) as chunks:
        return content_type.is_text(b"".join([chunk async for chunk in chunks]))


async def _read(vault: Vault, blob: Blob, view: View, cursor: Cursor, bounds: Bounds) -> Look:
    reading = _Reading(view, time.monotonic() + bounds.seconds)
    try:
        async with vault.read(blob, cursor.place.offset) as chunks, aclosing(pieces(chunks, cursor.place)) as found:
            async for batch in found:
                if await _taken(reading, batch, bounds):
                    return _seen(view, blob)
    finally:
        reading.stopped = True
    return Look(items=view.items)


async def _taken(reading: "_Reading", batch: Sequence[Piece], bounds: Bounds) -> bool:
    if not batch or not isinstance(reading.view, Grep):
        return reading.take(batch)
    try:
        async with asyncio.timeout(bounds.seconds + PATIENCE):
            return await _threads.run(reading.take, batch)
    except TimeoutError as error:
        raise Unavailable("Too much is being searched. Try again soon.") from error


class _Reading:
    """Has a view take pieces until it is full, or the time is up, or nobody waits for it any more."""

    def __init__(self, view: View, deadline: float) -> None:
        self.view = view
        self.stopped = False
        self._deadline = deadline

    def take(self, batch: Sequence[Piece]) -> bool:
        """Take these; whether that was enough."""
        taken = 0
        for piece in batch:
            if self.stopped:
                return True
            self.view.take(piece)
            taken += PER_LINE + len(piece.data)
            if self.view.full or (taken >= STEP and self._late()):
                return True
            taken %= STEP
        return self._late()

    def _late(self) -> bool:
        return self.view.moved and time.monotonic() > self._deadline


def _seen(view: View, blob: Blob) -> Look:
    cursor = view.cursor()
    ended = cursor.place.offset >= blob.size
    return Look(items=view.items, next=None if ended else str(cursor))


async def _tail(vault: Vault, blob: Blob, lines: int, bounds: Bounds) -> Look:
    begin, data = blob.size, b""
    while begin > 0 and data.count(b"\n", 0, -1) < lines and len(data) < MOST_BACK:
        begin, end = max(0, begin - STEP), begin
        async with vault.read(blob, begin, end) as chunks:
            data = b"".join([chunk async for chunk in chunks]) + data
    *ended, unended = data.split(b"\n")
    found = [line.removesuffix(b"\r") for line in ended] + ([unended] if unended else [])
    # The first line's beginning may not have been read.
    whole_from = 1 if begin > 0 else 0
    items: list[Line] = []
    left = bounds.text
    for number, line in enumerate(reversed(found[-lines:]), 1):
        items.append(_last(number, line, bounds.line, whole=len(found) - number >= whole_from))
        left -= len(items[-1].text)
        if left <= 0:
            break
    return Look(items=items[::-1])


def _last(number: int, line: bytes, most: int, *, whole: bool) -> Line:
    text = line.decode(errors="replace")
    if not whole:
        return Line(line=-number, text=MARK + text[-most:], cut=True)
    cut = len(text) > most
    return Line(line=-number, text=text[:most] + MARK if cut else text, cut=cut)
