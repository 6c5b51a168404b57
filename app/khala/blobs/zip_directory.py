"""Bounds the directory of a zip archive, all of which Python's `zipfile` reads into memory as objects."""

import os
from collections.abc import Callable
from typing import BinaryIO

MAX_COMMENT_BYTES = 1 << 17
"""Longer reads are of the directory, as long as nothing reads the contents of entries in longer pieces."""
DIRECTORY_SIGNATURE = b"PK\x01\x02"


class BoundedDirectory:
    """A file for `zipfile`, in which the directory of the archive has a bounded size and number of entries.

    `refusal` returns the error that `read` raises for another directory. The caller closes the file.
    """

    def __init__(self, file: BinaryIO, *, max_bytes: int, max_entries: int, refusal: Callable[[], Exception]) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._refusal = refusal
        self._checks = True
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable
        self.close = file.close

    def read(self, size: int = -1) -> bytes:
        """Read as a file does. Raises the refusal."""
        remaining = os.fstat(self._file.fileno()).st_size - self._file.tell()
        size = remaining if size < 0 else min(size, remaining)
        if not self._checks or size <= MAX_COMMENT_BYTES:
            return self._file.read(max(size, 0))
        if size > self._max_bytes:
            raise self._refusal()
        data = self._file.read(size)
        if data.count(DIRECTORY_SIGNATURE) > self._max_entries:
            raise self._refusal()
        return data

    def end_checks(self) -> None:
        """Check no more reads, because the directory has been read and contents are read in pieces of any length."""
        self._checks = False
