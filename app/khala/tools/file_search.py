"""The tool `grep`: searches the files of the workspace. It counts all matching lines, and returns them page by page."""

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

MAX_PAGE_MATCHES = 200
"""Matching lines of one page."""
MAX_PAGE_CHARACTERS = 32_000
"""Characters of one page; each page has at least one line."""
MAX_CONTEXT_LINES = 20
MAX_LINE_CHARACTERS = 1000
"""Characters that are shown of a line: those around the match."""
BATCH_BYTES = 1 << 20
"""Bytes of files that are in memory at once."""
PIECE_CHARACTERS = 64 * 1024
"""Characters that are searched at once; a longer line is searched in pieces."""
CHECK_INTERVAL_LINES = 256
"""Lines between two checks of whether the search is cancelled or out of time."""
SEARCH_TIMEOUT_SECONDS = 20.0
SEARCH_THREADS = 2
"""Threads that only run searches, so that no other work waits for a search."""

PIECE_BORDER = BORDER.decode()

_threads = ThreadPool(SEARCH_THREADS, "grep")


class MatchPosition(msgspec.Struct, frozen=True, order=True):
    """The position of a line: its file, and its number from 1."""

    path: str
    line: int

    @classmethod
    def read(cls, cursor: str) -> "MatchPosition":
        """The position that a cursor names. Raises `ToolError` for an invalid cursor."""
        path, _, line = cursor.rpartition(":")
        if not path or not line.isascii() or not line.isdigit() or len(line) > 9:
            raise ToolError(
                "after: must be the position from the previous page, for example notes.md:12.", code="bad_arguments"
            )
        return cls(path, int(line))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The pattern to search for, and where the page begins."""

    pattern: LinePattern
    context: int
    after: MatchPosition | None


class GrepFiles:
    """`grep`: search the files of the workspace."""

    spec = ToolSpec(
        name="grep",
        description=(
            "Find the lines in workspace files that match a regular expression. Returns their number, and up to"
            f" {MAX_PAGE_MATCHES} at once as path:line:text; continue with after."
        ),
        parameters=schema(
            "pattern",
            pattern={
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "A regular expression (RE2: no look-around, no back references).",
            },
            path={"type": "string", "description": "Search only this file, or the files in this folder."},
            glob={
                "type": "string",
                "minLength": 1,
                "description": "Search only matching files, for example *.py or src/**.",
            },
            ignoreCase={"type": "boolean", "description": "Ignore upper and lower case."},
            context={
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_CONTEXT_LINES,
                "description": "Lines to show before and after each match.",
            },
            after={"type": "string", "description": "Where the previous page ended, for example notes.md:12."},
        ),
        permissions=FS,
        idempotent=True,
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Search, and return one page of matches."""
        after = args.get("after")
        query = SearchQuery(
            pattern=compile_pattern(args["pattern"], ignore_case=args.get("ignoreCase", False)),
            context=int(args.get("context", 0)),
            after=None if after is None else MatchPosition.read(after),
        )
        page = _Page(query, time.monotonic() + SEARCH_TIMEOUT_SECONDS)
        entries = await self._select(args, call.actor.owner_id)
        try:
            await self._search(page, entries, call.actor.owner_id)
        finally:
            page.stopped = True
        summary = tool_output.pluralize(page.total, "matching line")
        return await tool_output.text_result(call.sink, page.text(), summary)

    async def _search(self, page: "_Page", entries: Sequence[WorkspaceEntry], owner_id: UUID) -> None:
        for batch in _batches(entries):
            async with self._db.driver() as driver:
                contents = await workspace_files.contents(driver, owner_id, batch)
            await _threads.run(page.search, [(path, contents[path]) for path in batch if path in contents])

    async def _select(self, args: dict[str, Any], owner_id: UUID) -> list[WorkspaceEntry]:
        folder = paths.folder_prefix(args.get("path", ""))
        pattern = paths.compile_glob(args["glob"], names=True) if "glob" in args else None
        async with self._db.driver() as driver:
            entries = await workspace_files.entries(driver, owner_id)
        chosen = [entry for entry in entries if not folder or f"{entry.path}/".startswith(folder)]
        if folder and not chosen:
            raise ToolError(f"The file or folder {folder.removesuffix('/')} does not exist.", code="not_found")
        return chosen if pattern is None else await _threads.run(_matching, chosen, pattern)


def _matching(entries: Sequence[WorkspaceEntry], pattern: LinePattern) -> list[WorkspaceEntry]:
    return [entry for entry in entries if pattern.search(entry.path)]


def _batches(entries: Sequence[WorkspaceEntry]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for entry in entries:
        if batch and size + entry.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(entry.path)
        size += entry.size
    if batch:
        yield batch


class _Page:
    """Counts all matches, and collects those of one page."""

    def __init__(self, query: SearchQuery, deadline: float) -> None:
        self._query = query
        self._deadline = deadline
        self.stopped = False
        """Whether the search is cancelled. Another thread sets it."""
        self._lines: list[str] = []
        self._characters = 0
        self._shown = 0
        self._last: MatchPosition | None = None
        self._full = False
        self._binary_files = 0
        self.total = 0

    def search(self, contents: Sequence[tuple[str, bytes]]) -> None:
        """Search these files. Raises `ToolError` if the search takes too long."""
        for path, content in contents:
            try:
                lines = content.decode().split("\n")
            except UnicodeDecodeError:
                self._binary_files += 1
                continue
            if lines[-1] == "":
                lines.pop()
            self._search_file(path, lines)

    def _search_file(self, path: str, lines: list[str]) -> None:
        numbers = [number for number, line in enumerate(lines, 1) if self._match(number, line) is not None]
        self.total += len(numbers)
        after = self._query.after
        matches, shown = set(numbers), 0
        for number in numbers:
            if self._full:
                return
            if after is None or MatchPosition(path, number) > after:
                shown = self._show(path, lines, number, shown, matches)

    def _match(self, number: int, line: str) -> int | None:
        """The offset of the first match in the line; None if it does not match."""
        if number % CHECK_INTERVAL_LINES == 1:
            self._check_time()
        if len(line) <= PIECE_CHARACTERS:
            match = self._query.pattern.search(line)
            return None if match is None else match.start()
        return self._match_in_pieces(line)

    def _match_in_pieces(self, line: str) -> int | None:
        for begin in range(0, len(line) - OVERLAP_BYTES, PIECE_CHARACTERS - OVERLAP_BYTES):
            self._check_time()
            before, after = (
                "" if begin == 0 else PIECE_BORDER,
                "" if begin + PIECE_CHARACTERS >= len(line) else PIECE_BORDER,
            )
            match = self._query.pattern.search(f"{before}{line[begin : begin + PIECE_CHARACTERS]}{after}")
            if match is not None:
                return max(0, begin + match.start() - len(before))
        return None

    def _check_time(self) -> None:
        if self.stopped or time.monotonic() > self._deadline:
            message = "The search takes too long. Use a simpler pattern, or limit the files with path or glob."
            raise ToolError(message, code="timeout")

    def _show(self, path: str, lines: list[str], number: int, shown: int, matches: set[int]) -> int:
        """Add the match and the lines around it that are not shown yet. Returns the last line that is shown."""
        context = self._query.context
        first, last = max(1, shown + 1, number - context), min(len(lines), number + context)
        # A context line that matches is shown as a match of its own, perhaps on the next page.
        last_shown = next((line - 1 for line in range(number + 1, last + 1) if line in matches), last)
        new_lines = [self._line(path, line, lines[line - 1], line == number) for line in range(first, last_shown + 1)]
        if context and self._lines and (first > shown + 1 or not shown):
            new_lines.insert(0, "--")
        size = sum(map(len, new_lines))
        if self._shown and (self._shown >= MAX_PAGE_MATCHES or self._characters + size > MAX_PAGE_CHARACTERS):
            self._full = True
            return shown
        self._lines += new_lines
        self._characters += size
        self._shown += 1
        self._last = MatchPosition(path, number)
        return last_shown

    def _line(self, path: str, number: int, text: str, match: bool) -> str:  # noqa: FBT001
        sign = ":" if match else "-"
        return f"{path}{sign}{number}{sign}{self._shorten(text, match)}"

    def _shorten(self, text: str, match: bool) -> str:  # noqa: FBT001
        if len(text) <= MAX_LINE_CHARACTERS:
            return text
        offset = self._match(0, text) if match else None
        start = 0 if offset is None else max(0, min(offset - MAX_LINE_CHARACTERS // 4, len(text) - MAX_LINE_CHARACTERS))
        end = start + MAX_LINE_CHARACTERS
        return f"{text[start:end]} [{MAX_LINE_CHARACTERS} of {len(text):,} characters, from {start:,}]"

    def text(self) -> str:
        """The page as text: the number of matches, where to continue, and the lines."""
        head = tool_output.pluralize(self.total, "matching line")
        if self._full and self._last is not None:
            head += f"; {self._shown} of them here, continue with after={self._last}"
        elif self._query.after is not None:
            head += f"; the last {self._shown} of them here"
        if self._binary_files:
            head += f"; {tool_output.pluralize(self._binary_files, 'binary file')} not searched"
        return "\n".join([f"[{head}]", *self._lines])
