"""Copies blobs between where Khala keeps them and a folder of backups. What is copied is checked by its own name.

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
AT_ONCE = 8
"""Blobs that are copied at once."""
CHUNK = 1 << 20
ANY_AGE = -24 * 3600.0
"""Seconds: also what a bucket with another clock than ours takes for written in the future."""


class DamagedBlob(RuntimeError):
    """Bytes that are not what their name says."""


async def save(store: BlobStore, kept: Path | None, folder: Path) -> str:
    """Copy what is not in the folder yet. What is deleted meanwhile was deleted from the database before.

    `kept`: the folder of the store, where it is no bucket.
    """
    copied = 0
    batch: list[tuple[str, int]] = []

    async def flush() -> int:
        done = sum(await asyncio.gather(*(_save(store, key, size, folder) for key, size in batch)))
        batch.clear()
        return done

    async for key, size in _listed(store, kept):
        if KEY.fullmatch(key) and not _path(folder, key).exists():
            batch.append((key, size))
        if len(batch) == AT_ONCE:
            copied += await flush()
    return f"{copied + await flush()} blobs copied"


async def load(store: BlobStore, folder: Path, wanted: Iterator[str]) -> tuple[int, list[str]]:
    """Put these blobs back. Returns how many, and those that are to be found nowhere."""
    count, missing = 0, []
    while batch := list(islice(wanted, AT_ONCE)):
        there = await asyncio.gather(*(_load(store, key, folder) for key in batch))
        missing += [key for key, found in zip(batch, there, strict=True) if not found]
        count += sum(there)
    return count, missing


def check(folder: Path, names: Iterator[str]) -> str:
    """Say how many there are. Raises `DamagedBlob` where some are missing."""
    count, missing = 0, []
    for key in names:
        count += 1
        if not _path(folder, key).exists():
            missing.append(key)
    if missing:
        raise DamagedBlob(f"{len(missing)} of {count} blobs are missing in {folder}, among them {missing[0]}")
    return f"all {count} blobs are there"


async def _listed(store: BlobStore, kept: Path | None) -> AsyncIterator[tuple[str, int]]:
    """The names and sizes of what is kept now. A folder is read as it is: asked for its objects, it tidies up."""
    if kept is None:
        async for found in store.list_older(ANY_AGE):
            yield found
        return
    for shard in range(256):
        folder = kept / f"{shard:02x}"
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
    made = target.with_name(f"{uuid4().hex}.part")
    hashed = hashlib.sha256()
    try:
        with made.open("wb") as file:
            async with store.read(key, 0, size) as chunks:
                async for chunk in chunks:
                    hashed.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if hashed.hexdigest() != key:
            raise DamagedBlob(f"blob {key} is damaged where Khala keeps it")
        made.replace(target)
    except BlobNotFound:
        return False
    finally:
        made.unlink(missing_ok=True)
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
    """The names in a list, one a line. Raises `DamagedBlob` for a line that names none."""
    with path.open() as lines:
        for line in lines:
            if not KEY.fullmatch(line.strip()):
                raise DamagedBlob(f"{path} names no blob by {line.strip()[:80]!r}")
            yield line.strip()
