"""Reads an export, conversation by conversation: JSON, or a zip with `conversations.json`.

Only one conversation is in memory at once. What a zip unpacks to is counted while it is read, and bounded.
"""

import io
import zipfile
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import ijson
import msgspec
from ijson.common import ObjectBuilder

from khala.blobs.zip_directory import BoundedDirectory
from khala.domain.errors import InvalidInput
from khala.domain.imports import chatgpt, claude, open_webui
from khala.domain.imports.chats import SourceChat

MAX_JSON_BYTES = 1 << 30
"""Bytes of all conversations, unpacked."""
MAX_CONVERSATION_BYTES = 32 << 20
"""Bytes that are read for one conversation, which is in memory as a whole."""
MAX_FILE_BYTES = 32 << 20
"""Bytes of one file of a message, unpacked."""
MAX_RATIO = 200
"""How many times larger than its packed form an entry of a zip may be: text is at most a tenth of that."""
MAX_ENTRIES = 200_000
"""Files in a zip: about as many objects of 500 bytes are in memory."""
MAX_DIRECTORY_BYTES = 64 << 20
"""Bytes of the directory of a zip: more than 300 for each file."""
MAX_DEPTH = 200
"""Levels of nesting in an export."""
MAX_VALUES = 1_000_000
"""JSON values and keys in one conversation. A long conversation has about 100,000; a megabyte of `[[],[],…]` has as
many as 700 MB of Python objects."""
CHUNK_BYTES = 64 << 10
DEPTHS = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""The errors of a zip that is damaged, encrypted (`RuntimeError`) or packed in another way."""
MAX_REPORTED_THREADS = 10
UNKNOWN = "This is no export of ChatGPT, Claude or Open WebUI."


def _too_many_entries() -> InvalidInput:
    return InvalidInput(f"The zip has more than {MAX_ENTRIES:,} files, or their names are too long.")


class ExportReader:
    """An open export. `left_out` counts what is not imported, by kind."""

    def __init__(self, path: Path) -> None:
        self.left_out: Counter[str] = Counter()
        self._path = path
        self._file = path.open("rb")
        try:
            self._zip = self._open_zip()
        except BaseException:
            self._file.close()
            raise
        self._names = sorted(self._zip.namelist()) if self._zip else []

    def close(self) -> None:
        """Close the file."""
        if self._zip is not None:
            self._zip.close()
        self._file.close()

    def _open_zip(self) -> zipfile.ZipFile | None:
        if not zipfile.is_zipfile(self._path):
            return None
        bounded = BoundedDirectory(
            self._file, max_bytes=MAX_DIRECTORY_BYTES, max_entries=MAX_ENTRIES, refusal=_too_many_entries
        )
        try:
            found = zipfile.ZipFile(bounded)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise InvalidInput("The zip is damaged.") from error
        bounded.end_checks()
        return found

    def chats(self) -> Iterator[SourceChat]:
        """The conversations. Raises `InvalidInput` for a file that is no export, is damaged or unpacks to too much."""
        for stream in self._documents():
            try:
                for item in _items(stream):
                    stream.begin_item()
                    yield self._chat(item)
            except (ijson.JSONError, UnicodeDecodeError, *DAMAGED) as error:
                raise InvalidInput("The export is damaged, or is not a JSON list of conversations.") from error
            finally:
                stream.close()

    def file(self, stem: str) -> bytes | None:
        """The bytes of the file of this archive whose name begins so; None without one, or if it is too large."""
        place = bisect_left(self._files, (stem, ""))
        if self._zip is None or place == len(self._files) or not self._files[place][0].startswith(stem):
            return None
        info = self._zip.getinfo(self._files[place][1])
        if info.file_size > MAX_FILE_BYTES or _ratio(info) > MAX_RATIO:
            return None
        try:
            with self._zip.open(info) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except DAMAGED:
            return None
        return content if len(content) <= MAX_FILE_BYTES else None

    @cached_property
    def _files(self) -> list[tuple[str, str]]:
        """The names of the files without their folders, sorted, with their whole names."""
        return sorted((name.rpartition("/")[2], name) for name in self._names)

    def _documents(self) -> Iterator["_BoundedStream"]:
        if self._zip is None:
            yield _BoundedStream(self._path.open("rb"))
            return
        # Large exports of ChatGPT have several files, as in conversations-001.json.
        names = [name for name in self._names if _is_document(name)]
        if not names:
            raise InvalidInput("There is no conversations.json in this zip.")
        for name in names:
            info = self._zip.getinfo(name)
            if info.file_size > MAX_JSON_BYTES or _ratio(info) > MAX_RATIO or info.flag_bits & 1:
                raise InvalidInput("The zip unpacks to too much, or is encrypted.")
            try:
                stream = self._zip.open(info)
            except DAMAGED as error:
                raise InvalidInput("The zip is damaged.") from error
            yield _BoundedStream(stream)

    def _chat(self, item: Any) -> SourceChat:
        if isinstance(item, dict):
            if isinstance(item.get("mapping"), dict):
                return chatgpt.read(item, self.left_out)
            if isinstance(item.get("chat_messages"), list):
                return claude.read(item, self.left_out)
            if isinstance(item.get("chat"), dict):
                return open_webui.read(item, self.left_out)
        raise InvalidInput(UNKNOWN)


class AddedThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that an import has added."""

    id: UUID
    title: str | None


class ImportReport(msgspec.Struct, kw_only=True, rename="camel"):
    """The numbers of what was added, of what was there before, and of what was left out, by kind.

    `threads` are the first that were added, at most `MAX_REPORTED_THREADS`.
    """

    conversations: int = 0
    known: int = 0
    messages: int = 0
    files: int = 0
    threads: list[AddedThread] = []
    left_out: dict[str, int] = {}


class _BoundedStream:
    """A stream that refuses to be read further when it, or one of its conversations, is too large."""

    def __init__(self, stream: Any) -> None:
        self._stream: io.BufferedIOBase = stream
        self._total = 0
        self._item = 0

    def begin_item(self) -> None:
        self._item = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, CHUNK_BYTES) if size >= 0 else CHUNK_BYTES)
        self._total += len(data)
        self._item += len(data)
        if self._total > MAX_JSON_BYTES or self._item > MAX_CONVERSATION_BYTES:
            raise InvalidInput("The export unpacks to too much, or one of its conversations is too large.")
        return data

    def close(self) -> None:
        self._stream.close()


def _items(stream: "_BoundedStream") -> Iterator[Any]:
    """The items of a list, one after the other.

    Not `ijson.items`: it keeps the path of each value as text, which is quadratic in the depth.
    """
    builder, depth, values = ObjectBuilder(), 0, 0
    for event, value in ijson.basic_parse(stream, use_float=True):
        if depth == 0 and event != "start_array":
            raise InvalidInput(UNKNOWN)
        if depth == 0 or (depth == 1 and event == "end_array"):
            depth = 1 - depth
            continue
        builder.event(event, value)
        values += 1
        if values > MAX_VALUES:
            raise InvalidInput(f"A conversation of the export has more than {MAX_VALUES:,} JSON values.")
        depth += DEPTHS.get(event, 0)
        if depth > MAX_DEPTH:
            raise InvalidInput(f"The export is nested in more than {MAX_DEPTH} levels.")
        if depth == 1:
            yield builder.value
            builder, values = ObjectBuilder(), 0


def _is_document(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base == "conversations.json" or (base.startswith("conversations-") and base.endswith(".json"))


def _ratio(info: zipfile.ZipInfo) -> float:
    return info.file_size / max(info.compress_size, 1)
