"""Writes a ZIP file as a stream. It holds only the data that is being compressed in memory.

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


class _OutputBuffer:
    """Receives the output of the ZIP library. It is not seekable, which makes the library write a stream."""

    def __init__(self) -> None:
        self._written = 0
        self._pending = bytearray()

    def write(self, data: bytes) -> int:
        """Append these bytes."""
        self._pending += data
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Do nothing. `take` returns the pending bytes."""

    def take(self) -> bytes:
        """The bytes written since the last call."""
        taken, self._pending = bytes(self._pending), bytearray()
        return taken


class ArchiveWriter:
    """Writes one archive, file after file. Each call returns the bytes to send."""

    def __init__(self, modified_at: datetime) -> None:
        """`modified_at` is the modification time of all files."""
        self._output = _OutputBuffer()
        self._zip = zipfile.ZipFile(self._output, "w")  # type: ignore[call-overload]  # the buffer has the methods that it uses
        self._modified_at = modified_at.timetuple()[:6]
        self._file: zipfile._ZipWriteFile | None = None  # type: ignore[name-defined]  # the type has no public name
        self._name = ""
        self._lines = self._bytes = 0
        self._hash = hashlib.sha256()
        self.files: list[ArchivedFile] = []
        """The finished files of lines."""

    def begin(self, name: str, *, level: int = LINES_LEVEL) -> bytes:
        """Start a file."""
        info = zipfile.ZipInfo(name, self._modified_at)
        info.compress_type = zipfile.ZIP_DEFLATED
        info._compresslevel = level  # type: ignore[attr-defined]  # noqa: SLF001  # public from Python 3.13 on
        info.external_attr = MODE
        self._file = self._zip.open(info, "w", force_zip64=True)
        self._name, self._lines, self._bytes, self._hash = name, 0, 0, hashlib.sha256()
        return self._output.take()

    def write(self, data: bytes, *, lines: int = 0) -> bytes:
        """Append data to the file. `lines` is the number of lines in it."""
        assert self._file is not None
        self._file.write(data)
        self._hash.update(data)
        self._lines += lines
        self._bytes += len(data)
        return self._output.take()

    def end(self) -> tuple[bytes, str]:
        """Finish the file. Returns the bytes to send, and the SHA-256 of the file."""
        assert self._file is not None
        self._file.close()
        self._file = None
        return self._output.take(), self._hash.hexdigest()

    def end_lines(self) -> bytes:
        """Finish a file of lines, and add it to `files` for the manifest."""
        output, sha256 = self.end()
        self.files.append(ArchivedFile(name=self._name, lines=self._lines, bytes=self._bytes, sha256=sha256))
        return output

    def close(self, manifest: ArchiveManifest) -> bytes:
        """Write the manifest and finish the archive."""
        output = self.begin(MANIFEST) + self.write(msgspec.json.format(msgspec.json.encode(manifest))) + self.end()[0]
        self._zip.close()
        return output + self._output.take()
