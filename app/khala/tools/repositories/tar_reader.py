"""Reads .tar.gz archives as a stream, in constant memory. Python's `tarfile` reads headers of any size into memory."""

import tarfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from khala.tools.repositories.archive_entries import ArchiveEntry, EntryKind, OpenedArchive, commit_of, damaged
from khala.tools.repositories.archive_limits import ArchiveBudget

BLOCK_BYTES = 512
CHUNK_BYTES = 64 * 1024
MAX_DIGITS = 18
"""Digits of a number in a header."""
GZIP_MAGIC = b"\x1f\x8b"
PAX_TYPES = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
KINDS: dict[bytes, EntryKind] = {
    tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file", tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink", tarfile.LNKTYPE: "hard_link", tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "device",
}  # fmt: skip
"""Any other type is unsupported."""
WITHOUT_CONTENT = ("folder", "symlink", "hard_link", "device")
EXTENDED_FLAG, NEXT_EXTENDED_FLAG = 482, 504
"""Where a sparse header of GNU tar, and an extension of it, tells that an extension follows."""


def open_tar_gz(file: BinaryIO, budget: ArchiveBudget) -> OpenedArchive:
    """Open the archive. Its entries raise `RepositoryError`."""
    reader = _TarReader(_GzipStream(file, budget), budget)
    return OpenedArchive(entries=reader.entries(), commit=lambda: reader.commit)


class _GzipStream:
    """The decompressed bytes of a file, with all its gzip members."""

    def __init__(self, file: BinaryIO, budget: ArchiveBudget) -> None:
        self._file = file
        self._budget = budget
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._input = b""
        self._output = b""
        self._start = 0
        """Where the bytes of `_output` begin that were not read yet."""

    def read(self, size: int) -> bytes:
        """The next bytes; fewer than `size` only at the end. Raises `RepositoryError` for damaged content."""
        pieces = []
        while size and (self._start < len(self._output) or self._expand()):
            piece = self._output[self._start : self._start + size]
            pieces.append(piece)
            self._start += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def skip(self, size: int) -> None:
        """Pass over bytes. Raises `RepositoryError` if the content ends before."""
        while size:
            read = len(self.read(min(size, CHUNK_BYTES)))
            if not read:
                raise damaged("it is incomplete")
            size -= read

    def finish(self) -> None:
        """Pass over the rest, so that the checksum of the whole is compared."""
        while self.read(CHUNK_BYTES):
            pass

    def _expand(self) -> bool:
        """Decompress more; False at the end."""
        self._output, self._start = b"", 0
        while not self._output:
            self._budget.check()
            self._input = self._input or self._file.read(CHUNK_BYTES)
            if self._inflate.eof and not self._next_member():
                return False
            if not self._input:
                raise damaged("it is incomplete")
            try:
                self._output = self._inflate.decompress(self._input, CHUNK_BYTES)
            except zlib.error as error:
                raise damaged("its compression is damaged") from error
            self._input = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self._budget.expand(len(self._output))
        return True

    def _next_member(self) -> bool:
        """Whether another gzip member follows. Other data after the end is ignored."""
        if len(self._input) < len(GZIP_MAGIC):
            self._input += self._file.read(CHUNK_BYTES)
        if not self._input.startswith(GZIP_MAGIC):
            return False
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return True


class _TarReader:
    """The entries of a tar archive: ustar, with the extensions of pax and GNU for long names and large sizes."""

    def __init__(self, stream: _GzipStream, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._budget = budget
        self._unread = 0
        """Bytes of the current entry, with its padding, that were not read."""
        self.commit: str | None = None

    def entries(self) -> Iterator[ArchiveEntry]:
        extended: dict[bytes, bytes] = {}
        while (header := self._header()) is not None:
            info, block = header
            if info.type in PAX_TYPES:
                extended |= _pax_records(self._payload(info.size))
            elif info.type == tarfile.XGLTYPE:
                self.commit = commit_of(_pax_records(self._payload(info.size)).get(b"comment", b"")) or self.commit
            elif info.type == tarfile.GNUTYPE_LONGNAME:
                extended[b"path"] = self._payload(info.size).split(b"\0")[0]
            elif info.type == tarfile.GNUTYPE_LONGLINK:
                self._payload(info.size)
            else:
                yield self._entry(info, block, extended)
                self._stream.skip(self._unread)
                extended = {}
        self._stream.finish()

    def _header(self) -> tuple[tarfile.TarInfo, bytes] | None:
        block = self._stream.read(BLOCK_BYTES)
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]  # not in typeshed
            return None
        except tarfile.HeaderError as error:
            raise damaged("a header is invalid") from error
        self._budget.count_entry()
        return info, block

    def _payload(self, size: int) -> bytes:
        """The content of a header that precedes a file."""
        if not 0 <= size <= self._budget.limits.header_bytes:
            raise damaged("a header is too large")
        data = self._stream.read(size)
        self._stream.skip(-size % BLOCK_BYTES + size - len(data))
        return data

    def _entry(self, info: tarfile.TarInfo, block: bytes, extended: dict[bytes, bytes]) -> ArchiveEntry:
        is_sparse = info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(b"GNU.sparse.") for key in extended)
        kind = "unsupported" if is_sparse else KINDS.get(info.type, "unsupported")
        if info.type == tarfile.GNUTYPE_SPARSE:
            self._skip_sparse_map(block)
        size = _number(extended[b"size"]) if b"size" in extended else info.size
        if size < 0:
            raise damaged("a size is negative")
        self._unread = 0 if kind in WITHOUT_CONTENT else size + -size % BLOCK_BYTES
        path = extended.get(b"path")
        name = info.name.encode("utf-8", "surrogateescape") if path is None else path
        return ArchiveEntry(name=_decoded(name), kind=kind, size=size, read=lambda: self._read(size))

    def _skip_sparse_map(self, block: bytes) -> None:
        is_extended = bool(block[EXTENDED_FLAG])
        while is_extended:
            block = self._stream.read(BLOCK_BYTES)
            if len(block) < BLOCK_BYTES:
                raise damaged("it is incomplete")
            is_extended = bool(block[NEXT_EXTENDED_FLAG])

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise damaged("it is incomplete")
        self._unread -= size
        return data


def _decoded(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """The records of a pax header: `length key=value`, each with a line break."""
    records, start, end = {}, 0, len(data.rstrip(b"\0"))
    while start < end:
        space = data.find(b" ", start, start + MAX_DIGITS + 1)
        length = _number(data[start:space]) if space > 0 else 0
        key, equals, value = data[space + 1 : start + length].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise damaged("a header is invalid")
        records[key] = value[:-1]
        start += length
    return records


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        raise damaged("a header has an invalid number")
    return int(digits)
