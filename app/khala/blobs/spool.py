"""Bytes on their way to a blob: hashed as they come, in memory while they are few, then in a temporary file."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from khala.domain.errors import PayloadTooLarge, Unavailable

MAX_OUTPUT_BYTES = 128 << 20
"""Bytes that one call of a tool may put out."""
HEAD_BYTES = 4096
"""Bytes of the beginning that stay in memory."""
MAX_MEMORY_BYTES = 64 * 1024
"""Bytes up to which there is no file, and that are written at once after that."""


class Spool:
    """A temporary file that hashes as it is written; memory use is constant. Made by `spooled`."""

    def __init__(self, folder: Path, most: int) -> None:
        self.size = 0
        self.head = b""
        self._path = folder / uuid4().hex
        self._most = most
        self._hash = hashlib.sha256()
        self._waiting = bytearray()
        self._file: BinaryIO | None = None
        self._closed = False
        self._writing: asyncio.Task[None] | None = None
        self._guard = threading.Lock()

    async def write(self, data: bytes) -> None:
        """More bytes, in order. Raises `PayloadTooLarge` past the most that it takes, and `Unavailable`."""
        if self.size + len(data) > self._most:
            raise PayloadTooLarge(f"This has more than {self._most:,} bytes.")
        if len(self.head) < HEAD_BYTES:
            self.head += bytes(data[: HEAD_BYTES - len(self.head)])
        self.size += len(data)
        self._waiting += data
        if len(self._waiting) > MAX_MEMORY_BYTES:
            await self._flush()

    async def whole(self) -> bytes:
        """All of it, if it has at most 64 KiB. Raises `ValueError` else."""
        if self._file is not None or self.size > MAX_MEMORY_BYTES:
            raise ValueError(f"This has {self.size:,} bytes.")
        return bytes(self._waiting)

    async def file(self) -> Path:
        """The file, with all that was written so far."""
        await self._flush()
        return self._path

    @property
    def sha256(self) -> bytes:
        """The hash of what was written to the file; ask for the `file` first."""
        if self._waiting:
            raise ValueError("Not all of this is in the file.")
        return self._hash.digest()

    async def close(self) -> None:
        """Remove the file, when nobody writes to it any more."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        with self._guard:
            self._closed = True
            if self._file is not None:
                self._file.close()
            self._path.unlink(missing_ok=True)

    async def _flush(self) -> None:
        try:
            # A task that gave up while it wrote leaves a thread at it: what comes next goes behind, if that went well.
            while self._writing is not None and not self._writing.done():
                await asyncio.wait({self._writing})
            if self._writing is not None:
                self._writing.result()
            data, self._waiting = self._waiting, bytearray()
            self._writing = asyncio.create_task(asyncio.to_thread(self._append, data))
            await asyncio.shield(self._writing)
        except OSError as error:
            raise Unavailable("There is no room for temporary files.", retry_after=30) from error

    def _append(self, data: bytearray) -> None:
        # The task that asked may be gone by now, and the file closed: a thread can't be called off.
        with self._guard:
            if self._closed:
                return
            if self._file is None:
                self._file = self._path.open("xb", buffering=0)
            self._hash.update(data)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]


@asynccontextmanager
async def open_spool(folder: Path, most: int) -> AsyncIterator[Spool]:
    """A spool that takes so many bytes; its file is gone when this is closed."""
    spool = Spool(folder, most)
    try:
        yield spool
    finally:
        await spool.close()
