"""Reads .zip archives, whose directory is bounded before Python's `zipfile` reads it into memory."""

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from khala.blobs.zip_directory import BoundedDirectory
from khala.tools.repositories.archive_entries import ArchiveEntry, EntryKind, OpenedArchive, commit_of, damaged
from khala.tools.repositories.archive_limits import ArchiveBudget, too_many_entries

CHUNK_BYTES = 64 * 1024
ENCRYPTED_FLAG, UTF8_FLAG = 0x1, 0x800
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Other methods can demand any amount of memory."""
KINDS: dict[int, EntryKind] = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink"}
"""By type of file; any other is a device."""


def open_zip(file: BinaryIO, budget: ArchiveBudget) -> OpenedArchive:
    """Open the archive. Raises `RepositoryError`, as its entries do."""
    limits = budget.limits
    bounded = BoundedDirectory(
        file,
        max_bytes=limits.directory_bytes,
        max_entries=limits.entries,
        refusal=lambda: too_many_entries(limits),
    )
    with _translated():
        archive = zipfile.ZipFile(bounded)
    comment = archive.comment
    return OpenedArchive(entries=_entries(archive, budget), commit=lambda: commit_of(comment))


def _entries(archive: zipfile.ZipFile, budget: ArchiveBudget) -> Iterator[ArchiveEntry]:
    for info in archive.infolist():
        budget.count_entry()
        kind = _kind(info)
        if kind == "file":
            budget.expand(info.file_size)
        yield ArchiveEntry(name=_name(info), kind=kind, size=info.file_size, read=_reader(archive, info, budget))


def _reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: ArchiveBudget) -> Callable[[], bytes]:
    def read() -> bytes:
        pieces = []
        with _translated(), archive.open(info) as content:
            # `zipfile` never returns more than the size that the entry declares, and which the budget has counted.
            while piece := content.read(CHUNK_BYTES):
                budget.check()
                pieces.append(piece)
        return b"".join(pieces)

    return read


def _kind(info: zipfile.ZipInfo) -> EntryKind:
    # `ZipInfo.is_dir` fails for an empty name.
    if info.orig_filename.endswith("/"):
        return "folder"
    kind = KINDS.get(stat.S_IFMT(info.external_attr >> 16), "device")
    if kind != "file":
        return kind
    if info.flag_bits & ENCRYPTED_FLAG:
        return "encrypted"
    return "file" if info.compress_type in METHODS else "unsupported"


def _name(info: zipfile.ZipInfo) -> str | None:
    """The name, with what follows a NUL. Without the flag for UTF-8, `zipfile` has read it as code page 437."""
    name: str = info.orig_filename
    if info.flag_bits & UTF8_FLAG or name.isascii():
        return name
    try:
        return name.encode("cp437").decode()
    except UnicodeError:
        return None


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the errors of `zipfile` as `RepositoryError`."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, OverflowError) as error:
        raise damaged("it is incomplete or damaged") from error
    except (NotImplementedError, RuntimeError) as error:
        raise damaged("it uses a feature that is not supported") from error
