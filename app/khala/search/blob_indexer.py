"""Prepares the texts in blobs for searches in the background, in one process at a time."""

import asyncio
import random

import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.blob_signatures import NOTHING, blob_signature
from khala.domain.errors import BlobNotFound, Unavailable
from khala.search import blob_texts
from khala.signals import metrics
from khala.store.blobs.blobs import Blob
from khala.store.postgres.database import Database
from khala.store.search import blob_index

IDLE_SECONDS = 2.0
"""Time between two looks for blobs, on average."""
FAILURE_SECONDS = 30.0
"""Time until the next look after the blob store or the database has failed."""
BINARY_TYPES = ("image/", "audio/", "video/", "application/pdf")
"""The beginnings of media types that are not read, because no text has them."""

log = structlog.get_logger()


class BlobIndexer:
    """Signs the texts in blobs; or deletes their signatures, where the search is switched off."""

    def __init__(self, db: Database, blob_service: BlobService, *, enabled: bool) -> None:
        self._db = db
        self._blob_service = blob_service
        self._enabled = enabled

    async def run(self) -> None:
        """Work for ever; or until no signature is left."""
        while True:
            try:
                more = await (self.work_some() if self._enabled else blob_index.clear_next(self._db))
            except (Unavailable, TimeoutError) as error:
                metrics.SEARCH_INDEXING_FAILED.inc()
                log.warning("blobs_not_indexed", error=str(error.__cause__ or error), retry_seconds=FAILURE_SECONDS)
                await asyncio.sleep(FAILURE_SECONDS * random.uniform(0.5, 1.5))
                continue
            if not more and not self._enabled:
                return
            await asyncio.sleep(0 if more else IDLE_SECONDS * random.uniform(0.5, 1.5))

    async def work_some(self) -> bool:
        """Sign the blobs of one batch. Returns whether there may be more. Raises `Unavailable` and `TimeoutError`."""
        async with blob_index.batch(self._db) as (driver, blobs), asyncio.timeout(blob_index.MAX_BATCH_SECONDS):
            # All bytes first: the first update locks its row until the end of the transaction.
            signatures = [await self._signature(blob) for blob in blobs]
            for blob, signature in zip(blobs, signatures, strict=True):
                await blob_index.sign(driver, blob, signature)
            return len(blobs) == blob_index.MAX_BLOBS

    async def _signature(self, blob: Blob) -> bytes:
        if blob.media_type.startswith(BINARY_TYPES):
            return NOTHING
        try:
            data = await blob_texts.beginning(self._blob_service, blob)
        except BlobNotFound:
            log.warning("blob_bytes_missing", blob_id=str(blob.id), sha256=blob.key)
            return NOTHING
        return await asyncio.to_thread(blob_signature, data)
