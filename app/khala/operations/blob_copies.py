"""Copies blobs between Khala's blob store and a folder of backups, and checks their hashes.

A blob is named by the SHA-256 of its bytes and never changes, so one folder serves any number of backups.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from uuid import uuid4

from khala.blobs.port import BlobStore
from khala.domain.errors import BlobNotFound

KEY = re.compile(r"[0-9a-f]{64}")
MAX_PARALLEL_COPIES = 8
CHUNK = 1 << 20
ANY_AGE = -24 * 3600.0
"""Seconds. Negative, so that objects whose time is in the future by a bucket's clock are listed too."""


class DamagedBlob(RuntimeError):
    """A blob is missing, or its bytes do not match its hash."""


async def save(store: BlobStore, source: Path | None, folder: Path) -> str:
    """Copy the blobs that the folder does not have. Returns a message with their number.

    A blob that is deleted during the copy is skipped, because its rows were deleted before. `source`: the folder of the
    store; None for a bucket.
    """
    copied = 0
    batch: list[tuple[str, int]] = []

    async def flush() -> int:
        count = sum(await asyncio.gather(*(_save(store, key, size, folder) for key, size in batch)))
        batch.clear()
        return count

    async for key, size in _list_blobs(store, source):
        if KEY.fullmatch(key) and not _path(folder, key).exists():
            batch.append((key, size))
        if len(batch) == MAX_PARALLEL_COPIES:
            copied += await flush()
    return f"{copied + await flush()} blobs copied"


async def load(store: BlobStore, folder: Path, wanted: Iterator[str]) -> tuple[int, list[str]]:
    """Restore these blobs into the store. Returns their number, and the names that are in neither place."""
    count, missing = 0, []
    while batch := list(islice(wanted, MAX_PARALLEL_COPIES)):
        results = await asyncio.gather(*(_load(store, key, folder) for key in batch))
        missing += [key for key, is_present in zip(batch, results, strict=True) if not is_present]
        count += sum(results)
    return count, missing


def check(folder: Path, names: Iterator[str]) -> str:
    """Check that the folder has these blobs. Returns a message. Raises `DamagedBlob` if some are missing."""
    count, missing = 0, []
    for key in names:
        count += 1
        if not _path(folder, key).exists():
            missing.append(key)
    if missing:
        raise DamagedBlob(f"{len(missing)} of {count} blobs are missing in {folder}, among them {missing[0]}")
    return f"all {count} blobs are present"


async def _list_blobs(store: BlobStore, source: Path | None) -> AsyncIterator[tuple[str, int]]:
    """The names and sizes of all blobs in the store. A folder is read directly, because `list_older` cleans it up."""
    if source is None:
        async for blob in store.list_older(ANY_AGE):
            yield blob
        return
    for shard in range(256):
        folder = source / f"{shard:02x}"
        for path in list(folder.iterdir()) if folder.is_dir() else ():
            size = _size(path)
            if size is not None:
                yield path.name, size


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


async def _save(store: BlobStore, key: str, size: int, folder: Path) -> bool:
    target = _path(folder, key)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f"{uuid4().hex}.part")
    digest = hashlib.sha256()
    try:
        with part.open("wb") as file:
            async with store.read(key, 0, size) as chunks:
                async for chunk in chunks:
                    digest.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if digest.hexdigest() != key:
            raise DamagedBlob(f"blob {key} is damaged in Khala's store")
        part.replace(target)
    except BlobNotFound:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


async def _load(store: BlobStore, key: str, folder: Path) -> bool:
    path = _path(folder, key)
    if not path.exists():
        return await _has(store, key)
    if await asyncio.to_thread(_hash, path) != key:
        raise DamagedBlob(f"blob {key} is damaged in {folder}")
    await store.put(key, path)
    return True


async def _has(store: BlobStore, key: str) -> bool:
    try:
        async with store.read(key, 0, 1):
            return True
    except BlobNotFound:
        return False


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / key


def names(path: Path) -> Iterator[str]:
    """The blob names in a file, one per line. Raises `DamagedBlob` for an invalid line."""
    with path.open() as lines:
        for line in lines:
            if not KEY.fullmatch(line.strip()):
                raise DamagedBlob(f"{path} has an invalid blob name: {line.strip()[:80]!r}")
            yield line.strip()
