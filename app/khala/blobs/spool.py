"""A spool for bytes on their way to a blob: hashed as they arrive, in memory at first, then in a temporary file."""

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
"""Bytes of one tool call's output."""
HEAD_BYTES = 4096
"""Bytes of the beginning, which are also kept in memory."""
MAX_MEMORY_BYTES = 64 * 1024
"""A spool of up to so many bytes has no file. Larger spools are written to a file in batches of this size."""


def size_limit_error(max_bytes: int) -> PayloadTooLarge:
    """The error for a file of more than `max_bytes`. Its message states the limit in MB of 2**20 bytes."""
    return PayloadTooLarge(f"Files can be up to {max_bytes / (1 << 20):.4g} MB.")


class Spool:
    """A temporary file that is hashed as it is written, in constant memory. Created by `open_spool`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.size = 0
        self.head = b""
        self._path = folder / uuid4().hex
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._unwritten = bytearray()
        self._file: BinaryIO | None = None
        self._closed = False
        self._write_task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises `PayloadTooLarge` over the limit, and `Unavailable`."""
        if self.size + len(data) > self._max_bytes:
            raise size_limit_error(self._max_bytes)
        if len(self.head) < HEAD_BYTES:
            self.head += bytes(data[: HEAD_BYTES - len(self.head)])
        self.size += len(data)
        self._unwritten += data
        if len(self._unwritten) > MAX_MEMORY_BYTES:
            await self._flush()

    async def whole(self) -> bytes:
        """All bytes, if there are at most 64 KiB. Raises `ValueError` otherwise."""
        if self._file is not None or self.size > MAX_MEMORY_BYTES:
            raise ValueError(f"The {self.size:,} bytes are in a file: call file() instead.")
        return bytes(self._unwritten)

    async def file(self) -> Path:
        """The file, with all bytes written so far."""
        await self._flush()
        return self._path

    @property
    def sha256(self) -> bytes:
        """The hash of the bytes in the file. Call `file` first."""
        if self._unwritten:
            raise ValueError("Some bytes are not in the file yet: call file() first.")
        return self._hash.digest()

    async def close(self) -> None:
        """Remove the file, after pending writes have ended."""
        if self._write_task is not None:
            await asyncio.gather(self._write_task, return_exceptions=True)
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
            self._path.unlink(missing_ok=True)

    async def _flush(self) -> None:
        try:
            # If a task is cancelled, its thread continues to write. The next flush waits for it, and raises its error.
            while self._write_task is not None and not self._write_task.done():
                await asyncio.wait({self._write_task})
            if self._write_task is not None:
                self._write_task.result()
            data, self._unwritten = self._unwritten, bytearray()
            self._write_task = asyncio.create_task(asyncio.to_thread(self._append, data))
            await asyncio.shield(self._write_task)
        except OSError as error:
            raise Unavailable("The disk for temporary files is full. Try again later.", retry_after=30) from error

    def _append(self, data: bytearray) -> None:
        # The task may have been cancelled, and the file closed: a thread can't be cancelled.
        with self._lock:
            if self._closed:
                return
            if self._file is None:
                self._file = self._path.open("xb", buffering=0)
            self._hash.update(data)
            unwritten = memoryview(data)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]


@asynccontextmanager
async def open_spool(folder: Path, max_bytes: int) -> AsyncIterator[Spool]:
    """A spool for at most `max_bytes`. Its file is removed when the context ends."""
    spool = Spool(folder, max_bytes)
    try:
        yield spool
    finally:
        await spool.close()
