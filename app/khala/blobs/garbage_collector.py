"""The garbage collector of blobs: deletes unreferenced bytes, while new references to them wait."""

import asyncio
import random
import re
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from khala.blobs.port import BlobStore
from khala.domain.errors import Unavailable
from khala.store.blobs import objects
from khala.store.postgres.database import Database

log = structlog.get_logger()

COLLECT_INTERVAL_SECONDS = 60.0
"""Average seconds between two collections."""
SWEEP_INTERVAL_SECONDS = 24 * 3600.0
BATCH_OBJECTS = 100
MAX_OBJECTS_PER_RUN = 10_000
"""Objects deleted in one collection. The rest waits for the next."""
MAX_KEPT_PER_RUN = 1000
"""Referenced objects that one collection examines, so that its cost does not grow with the store. The next one
continues after them."""
HASH_BYTES = 32
KEY = re.compile(r"[0-9a-f]{64}")


class BlobGarbageCollector:
    """Collects garbage. Any number of processes may run it: no two delete the same object."""

    def __init__(self, db: Database, store: BlobStore) -> None:
        self._db = db
        self._store = store
        # The first sweep is not at the start: a process that restarts often would list the whole store each time.
        self._swept_at = time.monotonic() - SWEEP_INTERVAL_SECONDS * random.uniform(0.5, 0.98)
        # Any position is as good as another. Processes that begin at different ones share the work.
        self._position = random.randbytes(HASH_BYTES)

    async def run(self) -> None:
        """Collect periodically, until cancelled."""
        while True:
            await asyncio.sleep(COLLECT_INTERVAL_SECONDS * random.uniform(0.5, 1.5))
            try:
                if time.monotonic() - self._swept_at > SWEEP_INTERVAL_SECONDS:
                    self._swept_at = time.monotonic()
                    await self.sweep()
                deleted = await self.collect()
            except Unavailable as error:
                log.warning("blob_collection_failed", error=str(error.__cause__ or error))
                continue
            if deleted:
                log.info("blobs_collected", objects=deleted)

    async def due(self) -> int:
        """The number of objects to delete."""
        async with self._db.driver() as driver:
            return await objects.count_unreferenced(driver)

    async def collect(self, *, max_kept: float = MAX_KEPT_PER_RUN) -> int:
        """Delete objects that have been unreferenced and untouched for an hour. Returns their number.

        It examines the objects in order of their hashes, from where the last call stopped, until it has gone round
        once, has found `max_kept` objects that stay, or has deleted `MAX_OBJECTS_PER_RUN`.
        """
        begin, went_round = self._position, False
        kept = total = 0
        while kept < max_kept and total < MAX_OBJECTS_PER_RUN:
            page = await objects.release_unreferenced(self._db, self._position, BATCH_OBJECTS)
            deleted = sum([await self._delete(sha256) for sha256 in page.released])
            total += deleted
            kept += page.examined - deleted
            if went_round and (page.last is None or page.last >= begin):
                break
            self._position = b"" if page.last is None else page.last
            went_round = went_round or page.last is None
        return total

    async def _delete(self, sha256: bytes) -> bool:
        async with objects.deleting(self._db, sha256) as is_unreferenced:
            if is_unreferenced:
                await _complete_despite_cancel(self._store.delete(sha256.hex()))
            return is_unreferenced

    async def sweep(self, min_age_seconds: float = SWEEP_INTERVAL_SECONDS) -> int:
        """Find objects without a row, which crashes have left, and schedule their deletion. Returns their number.

        It considers objects that were written at least `min_age_seconds` ago. It does nothing if the store belongs to
        another database.
        """
        async with self._db.driver() as driver:
            name = await objects.database_name(driver)
        owner = await self._store.register_owner(name)
        if owner != name:
            log.warning("blob_store_owned_by_another_database", owner=owner, database=name)
            return 0
        adopted, batch = 0, []
        async for key, size in self._store.list_older(min_age_seconds):
            if KEY.fullmatch(key):
                batch.append((bytes.fromhex(key), size))
            if len(batch) >= 10 * BATCH_OBJECTS:
                adopted += await objects.add_untracked(self._db, batch)
                batch = []
        adopted += await objects.add_untracked(self._db, batch)
        if adopted:
            log.info("untracked_blobs_found", objects=adopted)
        return adopted


async def _complete_despite_cancel(deleting: Coroutine[Any, Any, None]) -> None:
    """Complete the deletion even if cancelled: once the lock is released, the bytes may be referenced again."""
    task = asyncio.create_task(deleting)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
