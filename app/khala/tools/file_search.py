"""Searching in the workspace's files: each matching line can be had, page by page, and how many there are is said."""

import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.line_splitter import OVERLAP_BYTES
from khala.blobs.line_views import BORDER
from khala.blobs.patterns import LinePattern, compile_pattern
from khala.blobs.thread_pool import ThreadPool
from khala.domain.tools import ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.store.tools.workspace_files import WorkspaceEntry
from khala.tools import paths, tool_output
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.workspace_tools import FS, schema

PAGE = 200
"""Matching lines of one page."""
PAGE_CHARS = 32_000
"""Characters of one page; at least one line is in each."""
MOST_CONTEXT = 20
LONGEST_LINE = 1000
"""Characters of a line that are shown: those around what was found."""
BATCH = 1 << 20
"""Bytes of files that are held at once."""
PIECE = 64 * 1024
"""Characters of one line that are searched together; a longer line is searched in several pieces."""
OFTEN = 256
"""Lines after which it is seen whether to go on."""
SECONDS = 20.0
"""That one search may take."""
SEARCHING = 2
"""Threads that search. Others don't wait for them: these are used for nothing else."""

EDGE = BORDER.decode()

_threads = ThreadPool(SEARCHING, "grep")


class LinePosition(msgspec.Struct, frozen=True, order=True):
    """A line, by its file and its number from 1."""

    path: str
    line: int

    @classmethod
    def read(cls, cursor: str) -> "LinePosition":
        """The place that a cursor names."""
        path, _, line = cursor.rpartition(":")
        if not path or not line.isascii() or not line.isdigit() or len(line) > 9:
            raise ToolError("after: give what the page before named, as in notes.md:12.", code="bad_arguments")
        return cls(path, int(line))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for, and where this page begins."""

    pattern: LinePattern
    context: int
    after: LinePosition | None


class GrepFiles:
    """`grep`."""

    spec = ToolSpec(
        name="grep",
        description=(
            "Find the lines in files of the workspace that a regular expression matches. Says how many there are, and"
            f" gives up to {PAGE} at once, as path:line:text; go on with after."
        ),
        parameters=schema(
            "pattern",
            pattern={
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "A regular expression (RE2: no look-around, no back references).",
            },
            path={"type": "string", "description": "Only this file, or the files in this folder."},
            glob={"type": "string", "minLength": 1, "description": "Only files that this fits, as in *.py or src/**."},
            ignoreCase={"type": "boolean", "description": "Take upper and lower case for the same."},
            context={
                "type": "integer",
                "minimum": 0,
                "maximum": MOST_CONTEXT,
                "description": "Lines to show before and after each match.",
            },
            after={"type": "string", "description": "Where the page before ended, as in notes.md:12."},
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """One page of matches."""
        after = args.get("after")
        query = SearchQuery(
            pattern=compile_pattern(args["pattern"], ignore_case=args.get("ignoreCase", False)),
            context=int(args.get("context", 0)),
            after=None if after is None else LinePosition.read(after),
        )
        page = _Page(query, time.monotonic() + SECONDS)
        entries = await self._chosen(args, call.actor.owner_id)
        try:
            await self._look(page, entries, call.actor.owner_id)
        finally:
            page.stopped = True
        summary = tool_output.pluralize(page.total, "matching line")
        return await tool_output.text_result(call.sink, page.told(), summary)

    async def _look(self, page: "_Page", entries: Sequence[WorkspaceEntry], owner_id: UUID) -> None:
        for batch in _batches(entries):
            async with self._db.driver() as driver:
                contents = await workspace_files.contents(driver, owner_id, batch)
            await _threads.run(page.take, [(path, contents[path]) for path in batch if path in contents])

    async def _chosen(self, args: dict[str, Any], owner_id: UUID) -> list[WorkspaceEntry]:
        folder = paths.folder(args.get("path", ""))
        fits = paths.glob(args["glob"], names=True) if "glob" in args else None
        async with self._db.driver() as driver:
            entries = await workspace_files.entries(driver, owner_id)
        chosen = [entry for entry in entries if not folder or f"{entry.path}/".startswith(folder)]
        if folder and not chosen:
            raise ToolError(f"There is no file or folder {folder.removesuffix('/')}.", code="not_found")
        return chosen if fits is None else await _threads.run(_fitting, chosen, fits)


def _fitting(entries: Sequence[WorkspaceEntry], fits: LinePattern) -> list[WorkspaceEntry]:
    return [entry for entry in entries if fits.search(entry.path)]


def _batches(entries: Sequence[WorkspaceEntry]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for entry in entries:
        if batch and size + entry.size > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(entry.path)
        size += entry.size
    if batch:
        yield batch


class _Page:
    """Counts all matches, and gathers those of this page."""

    def __init__(self, query: SearchQuery, deadline: float) -> None:
        self._query = query
        self._deadline = deadline
        self.stopped = False
        """Nobody waits for it any more. May be set by another thread."""
        self._said: list[str] = []
        self._chars = 0
        self._shown = 0
        self._last: LinePosition | None = None
        self._full = False
        self._binary = 0
        self.total = 0

    def take(self, contents: Sequence[tuple[str, bytes]]) -> None:
        """Look through these files. Raises `ToolError` where the time is up."""
        for path, content in contents:
            try:
                lines = content.decode().split("\n")
            except UnicodeDecodeError:
                self._binary += 1
                continue
            if lines[-1] == "":
                lines.pop()
            self._look(path, lines)

    def _look(self, path: str, lines: list[str]) -> None:
        found = [number for number, line in enumerate(lines, 1) if self._found(number, line) is not None]
        self.total += len(found)
        after = self._query.after
        matches, told = set(found), 0
        for number in found:
            if self._full:
                return
            if after is None or LinePosition(path, number) > after:
                told = self._show(path, lines, number, told, matches)

    def _found(self, number: int, line: str) -> int | None:
        """Where in the line the pattern is first, or None."""
        if number % OFTEN == 1:
            self._go_on()
        if len(line) <= PIECE:
            found = self._query.pattern.search(line)
            return None if found is None else found.start()
        return self._found_in_pieces(line)

    def _found_in_pieces(self, line: str) -> int | None:
        for begin in range(0, len(line) - OVERLAP_BYTES, PIECE - OVERLAP_BYTES):
            self._go_on()
            before, after = "" if begin == 0 else EDGE, "" if begin + PIECE >= len(line) else EDGE
            found = self._query.pattern.search(f"{before}{line[begin : begin + PIECE]}{after}")
            if found is not None:
                return max(0, begin + found.start() - len(before))
        return None

    def _go_on(self) -> None:
        if self.stopped or time.monotonic() > self._deadline:
            said = "The search takes too long: give a simpler pattern, or fewer files with path or glob."
            raise ToolError(said, code="timeout")

    def _show(self, path: str, lines: list[str], number: int, told: int, matches: set[int]) -> int:
        """Add the match and the lines around it that were not told yet; returns the last line that was."""
        around = self._query.context
        first, last = max(1, told + 1, number - around), min(len(lines), number + around)
        # A line of the context that matches, too, comes by itself: the page may end before it.
        until = next((line - 1 for line in range(number + 1, last + 1) if line in matches), last)
        said_now = [self._line(path, line, lines[line - 1], line == number) for line in range(first, until + 1)]
        if around and self._said and (first > told + 1 or not told):
            said_now.insert(0, "--")
        size = sum(map(len, said_now))
        if self._shown and (self._shown >= PAGE or self._chars + size > PAGE_CHARS):
            self._full = True
            return told
        self._said += said_now
        self._chars += size
        self._shown += 1
        self._last = LinePosition(path, number)
        return until

    def _line(self, path: str, number: int, text: str, match: bool) -> str:  # noqa: FBT001  # private, and read at once
        sign = ":" if match else "-"
        return f"{path}{sign}{number}{sign}{self._cut(text, match)}"

    def _cut(self, text: str, match: bool) -> str:  # noqa: FBT001
        if len(text) <= LONGEST_LINE:
            return text
        found = self._found(0, text) if match else None
        start = 0 if found is None else max(0, min(found - LONGEST_LINE // 4, len(text) - LONGEST_LINE))
        return f"{text[start : start + LONGEST_LINE]} [{LONGEST_LINE} of {len(text):,} characters, from {start:,}]"

    def told(self) -> str:
        """The page as text: first how many there are and where to go on, then the lines."""
        head = tool_output.pluralize(self.total, "matching line")
        if self._full and self._last is not None:
            head += f"; {self._shown} of them here, go on with after={self._last}"
        elif self._query.after is not None:
            head += f"; the last {self._shown} of them here"
        if self._binary:
            head += f"; {tool_output.pluralize(self._binary, 'file')} not searched, being no text"
        return "\n".join([f"[{head}]", *self._said])
