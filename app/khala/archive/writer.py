"""Writes a ZIP file as a stream, in the memory of what is being compressed.

Sizes and checksums follow each file's bytes, and are repeated in the directory at the end (streamed ZIP). Files may
exceed 4 GiB (Zip64).
"""

import hashlib
import zipfile
from datetime import datetime

import msgspec

from khala.domain.archive_format import MANIFEST, ArchivedFile, ArchiveManifest

LINES_LEVEL = 6
BLOB_LEVEL = 1
"""zlib levels: lines shrink to a tenth; most blobs are already compressed."""
MODE = 0o600 << 16
"""The files' permissions, as ZIP's external attributes."""


class _Outlet:
    """Receives the output of the ZIP library. It is not seekable, which makes the library write a stream."""

    def __init__(self) -> None:
        self._written = 0
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        """Append these bytes."""
        self._waiting += data
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Do nothing: `take` returns pending bytes."""

    def take(self) -> bytes:
        """The bytes written since the last call."""
        taken, self._waiting = bytes(self._waiting), bytearray()
        return taken


class ArchiveWriter:
    """Writes one archive, file after file. Each call returns the bytes to send."""

    def __init__(self, at: datetime) -> None:
        """`at`: the modification time of all files."""
        self._outlet = _Outlet()
        self._zip = zipfile.ZipFile(self._outlet, "w")  # type: ignore[call-overload]  # all of a file that it uses
        self._at = at.timetuple()[:6]
        self._file: zipfile._ZipWriteFile | None = None  # type: ignore[name-defined]  # has no public name
        self._name = ""
        self._lines = self._bytes = 0
        self._hash = hashlib.sha256()
        self.files: list[ArchivedFile] = []
        """The finished files of lines."""

    def begin(self, name: str, *, level: int = LINES_LEVEL) -> bytes:
        """Start a file."""
        info = zipfile.ZipInfo(name, self._at)
        info.compress_type = zipfile.ZIP_DEFLATED
        info._compresslevel = level  # type: ignore[attr-defined]  # noqa: SLF001  # public from Python 3.13 on
        info.external_attr = MODE
        self._file = self._zip.open(info, "w", force_zip64=True)
        self._name, self._lines, self._bytes, self._hash = name, 0, 0, hashlib.sha256()
        return self._outlet.take()

    def write(self, data: bytes, *, lines: int = 0) -> bytes:
        """Append to the file, with so many lines."""
        assert self._file is not None
        self._file.write(data)
        self._hash.update(data)
        self._lines += lines
        self._bytes += len(data)
        return self._outlet.take()

    def end(self) -> tuple[bytes, str]:
        """Finish the file. Returns the bytes to send, and the SHA-256 of the file."""
        assert self._file is not None
        self._file.close()
        self._file = None
        return self._outlet.take(), self._hash.hexdigest()

    def end_lines(self) -> bytes:
        """Finish a file of lines, and add it to `files` for the manifest."""
        sent, sha256 = self.end()
        self.files.append(ArchivedFile(name=self._name, lines=self._lines, bytes=self._bytes, sha256=sha256))
        return sent

    def close(self, manifest: ArchiveManifest) -> bytes:
        """Write the manifest and finish the archive."""
        sent = self.begin(MANIFEST) + self.write(msgspec.json.format(msgspec.json.encode(manifest))) + self.end()[0]
        self._zip.close()
        return sent + self._outlet.take()
