"""A blob store in a folder: durable and atomic, in 256 subfolders by the first two hex digits."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar
from uuid import uuid4

from khala.blobs.thread_pool import ThreadPool
from khala.domain.errors import BlobNotFound, Unavailable

CHUNK_BYTES = 64 * 1024
THREADS = 8
NEW, OWNER = "new", "owner"
"""The folder of files that are being written, in which a crash leaves them, and the file with the owner's name."""


P = ParamSpec("P")
T = TypeVar("T")


class FilesystemBlobStore:
    """Stores objects as files `ab/abcd…` under a folder, which is created when it is first needed."""

    local = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPool(THREADS, "blobs")

    async def put(self, key: str, source: Path) -> None:
        """Copy the file, sync it, and rename it to its key."""
        await self._run(self._put, key, source)

    @asynccontextmanager
    async def read(self, key: str, start: int, end: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The object's bytes. The file closes with this context."""
        opening = self._threads.begin(self._open, key, start)
        try:
            with _storage_errors():
                file = await asyncio.wrap_future(opening)
            yield self._chunks(file, end - start)
        finally:
            opening.add_done_callback(_close)

    async def delete(self, key: str) -> None:
        """Remove the file."""
        await self._run(self._delete, key)

    async def signed_url(self, key: str, *, media_type: str, disposition: str, seconds: int) -> str | None:
        """None: files have no URL."""
        return None

    async def list_older(self, seconds: float) -> AsyncIterator[tuple[str, int]]:
        """Objects that were written at least so many seconds ago, with sizes. Removes abandoned files of that age."""
        before = time.time() - seconds
        await self._run(self._remove_abandoned, before)
        for number in range(256):
            for entry in await self._run(self._list_shard, f"{number:02x}", before):
                yield entry

    async def register_owner(self, name: str) -> str:
        """Make `name` the owner of this folder unless there is an owner. Returns the owner."""
        return await self._run(self._register_owner, name)

    async def check(self) -> None:
        """Write a file and remove it."""
        await self._run(self._check)

    async def aclose(self) -> None:
        """Shut down the threads."""
        await self._threads.close()

    async def _run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        with _storage_errors():
            return await self._threads.run(call, *args, **named)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _put(self, key: str, source: Path) -> None:
        target = self._path(key)
        if target.exists():
            return
        temporary = self._new_file()
        try:
            shutil.copyfile(source, temporary)
            _fsync(temporary)
            _make_folder(target.parent)
            temporary.replace(target)
            _fsync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _new_file(self) -> Path:
        folder = self._folder / NEW
        _make_folder(self._folder)
        _make_folder(folder)
        return folder / uuid4().hex

    def _open(self, key: str, start: int) -> BinaryIO:
        try:
            file = self._path(key).open("rb")
        except FileNotFoundError as error:
            raise BlobNotFound("The bytes of this blob are missing.") from error
        file.seek(start)
        return file

    async def _chunks(self, file: BinaryIO, left: int) -> AsyncIterator[bytes]:
        while left > 0:
            chunk = await self._run(file.read, min(CHUNK_BYTES, left))
            if not chunk:
                raise Unavailable("The bytes of this blob are incomplete.")
            left -= len(chunk)
            yield chunk

    def _delete(self, key: str) -> None:
        path = self._path(key)
        with suppress(FileNotFoundError):
            path.unlink()
            _fsync(path.parent)

    def _list_shard(self, shard: str, before: float) -> list[tuple[str, int]]:
        return [(entry.name, entry.stat().st_size) for entry in _written_before(self._folder / shard, before)]

    def _remove_abandoned(self, before: float) -> None:
        for entry in _written_before(self._folder / NEW, before):
            Path(entry.path).unlink(missing_ok=True)

    def _register_owner(self, name: str) -> str:
        marker, temporary = self._folder / OWNER, self._new_file()
        try:
            temporary.write_text(name)
            _fsync(temporary)
            with suppress(FileExistsError):
                os.link(temporary, marker)
            return marker.read_text()
        finally:
            temporary.unlink(missing_ok=True)

    def _check(self) -> None:
        temporary = self._new_file()
        try:
            temporary.write_bytes(b"khala")
            if temporary.read_bytes() != b"khala":
                raise OSError(f"{temporary} has other bytes than were written")
        finally:
            temporary.unlink(missing_ok=True)


def _close(opened: "Future[BinaryIO]") -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _make_folder(folder: Path) -> None:
    """Create a private folder, durably."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _fsync(folder.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written_before(folder: Path, moment: float) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_file() and entry.stat().st_mtime < moment]
    except FileNotFoundError:
        return []


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable("The blob store is unavailable. Try again in a moment.", retry_after=5) from error
