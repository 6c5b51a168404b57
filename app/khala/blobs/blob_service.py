"""The blob service: stores bytes once however often they come, and refers to them by blobs that threads have."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from uuid import UUID

import msgspec
import structlog

from khala.blobs import content_type
from khala.blobs.port import BlobStore
from khala.blobs.spool import MAX_OUTPUT_BYTES, Spool, open_spool
from khala.domain import ids
from khala.domain.errors import KhalaError, Unavailable
from khala.domain.parts import BlobRef
from khala.signals.metrics import BLOB_BYTES
from khala.store.blobs import blobs
from khala.store.blobs.blobs import Blob, StorageQuota
from khala.store.postgres.database import Database
from khala.store.postgres.retries import retried

log = structlog.get_logger()

DEFAULT_STORAGE_QUOTA = StorageQuota(thread=1 << 30, guest=64 << 20)
"""Bytes that the blobs of one thread have together, unless the operator says otherwise."""
MAX_TRIES = 3
MAX_NAME_CHARACTERS = 200
MAX_PREVIEW_BYTES = 1024
"""Bytes of the preview as JSON: it has to fit into a part with other things."""
MAX_PUT_SECONDS = 1800.0
"""Seconds after which what was put may have been collected before it was referred to, which takes an hour: again."""
PROBE_BYTES = 64 * 1024
"""What is written to see whether there is room for files."""
CHECK_VALID_SECONDS = 10.0
"""Seconds that what a check found is believed."""


class BlobService:
    """Puts bytes into the store and rows into the database, in an order in which a crash leaves only bytes too many."""

    def __init__(
        self, db: Database, store: BlobStore, *, folder: Path, room: StorageQuota = DEFAULT_STORAGE_QUOTA
    ) -> None:
        """`folder` is where spools live, of this process alone."""
        self.store = store
        self.room = room
        self._db = db
        self._folder = folder
        self._checking: asyncio.Task[bool] | None = None
        self._checked_at = -CHECK_VALID_SECONDS

    def spool(self, most: int = MAX_OUTPUT_BYTES) -> AbstractAsyncContextManager[Spool]:
        """A spool that takes so many bytes; its file is gone when this is closed."""
        return open_spool(self._folder, most)

    async def keep(
        self,
        spool: Spool,
        *,
        thread_id: UUID,
        media_type: str,
        run_id: UUID | None = None,
        name: str | None = None,
        author_id: UUID | None = None,
        attached: bool = True,
        expires_at: datetime | None = None,
    ) -> BlobRef:
        """Keep what was spooled, durably; the thread has a blob of it from here on, until `expires_at` if given.

        What is not `attached` is an upload that waits for a message, for a day unless said otherwise. Raises
        `ThreadNotFound` or `RunNotFound` where these are gone, `PayloadTooLarge` where the thread would keep too much,
        `RateLimited` where too many uploads wait, and `Unavailable`.
        """
        path = await spool.file()
        new = blobs.NewBlob(
            id=ids.new(),
            thread_id=thread_id,
            run_id=run_id,
            sha256=spool.sha256,
            size=spool.size,
            media_type=content_type.valid_media_type(media_type),
            name=plain_name(name),
            preview=preview(spool.head),
            author_id=author_id,
            attached=attached,
            expires_at=expires_at,
        )
        for _ in range(MAX_TRIES):
            if await self._keep(new, path):
                BLOB_BYTES.labels("kept").inc(spool.size)
                return _ref(new)
        raise Unavailable("What was to be kept was deleted meanwhile. Try again.", retry_after=1)

    async def _keep(self, new: blobs.NewBlob, path: Path) -> bool:
        async with self._db.driver() as driver:
            stored = await blobs.touch(driver, new.sha256, new.size)
        began = time.monotonic()
        if not stored:
            await self.store.put(new.sha256.hex(), path)
        if time.monotonic() - began > MAX_PUT_SECONDS:
            return False
        return await self._refer(new, put=not stored)

    @retried
    async def _refer(self, new: blobs.NewBlob, *, put: bool) -> bool:
        async with self._db.transaction() as connection:
            return await blobs.add(connection, new, put=put, room=self.room)

    async def find(self, blob_id: UUID, thread_id: UUID | None = None) -> Blob:
        """The blob. Raises `BlobNotFound`; also for one that has expired, or is another thread's than the one named."""
        async with self._db.driver() as driver:
            return await blobs.find(driver, blob_id, thread_id)

    @asynccontextmanager
    async def read(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """The blob's bytes from `start` up to `end` (exclusive), in chunks. Raises `BlobNotFound`, `Unavailable`."""
        until = blob.size if end is None else min(end, blob.size)
        async with self.store.read(blob.key, start, until) as chunks:
            BLOB_BYTES.labels("read").inc(until - start)
            yield chunks

    async def lost(self, blob: Blob) -> None:
        """Note that the store doesn't have the blob's bytes, so that the same content is stored when it comes again."""
        log.error("blob_bytes_missing", blob_id=str(blob.id), sha256=blob.key)
        async with self._db.driver() as driver:
            await blobs.forget_stored(driver, blob.sha256)

    async def check(self) -> None:
        """Raise `Unavailable` unless blobs can be kept and read."""
        await self.store.check()

    async def has_room(self) -> bool:
        """Whether the folder of temporary files takes a little more."""
        try:
            await asyncio.to_thread(self._write_a_little)
        except OSError as error:
            log.warning("no_room_for_files", folder=str(self._folder), error=str(error))
            return False
        return True

    def _write_a_little(self) -> None:
        path = self._folder / f"probe-{ids.new().hex}"
        try:
            path.write_bytes(bytes(PROBE_BYTES))
        finally:
            path.unlink(missing_ok=True)

    async def well(self, within: float = 3.0) -> bool:
        """Whether blobs can be kept and read, as of some seconds ago; False if that can't be told within so many."""
        if self._checking is None or (
            self._checking.done() and time.monotonic() - self._checked_at > CHECK_VALID_SECONDS
        ):
            self._checking = asyncio.create_task(self._well())
        # Somebody else may begin the next check before this one is read.
        checking = self._checking
        done, _ = await asyncio.wait({checking}, timeout=within)
        return bool(done) and checking.result()

    async def _well(self) -> bool:
        try:
            await self.check()
        except KhalaError as error:
            log.warning("blobs_out_of_reach", error=str(error.__cause__ or error))
            return False
        finally:
            self._checked_at = time.monotonic()
        return True

    async def aclose(self) -> None:
        """End a check that is under way."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})


def plain_name(name: str | None) -> str | None:
    """The last part of a file's name, without what no name should have."""
    if name is None:
        return None
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(letter for letter in last if letter.isprintable()).strip()
    return plain[:MAX_NAME_CHARACTERS] or None


def preview(head: bytes) -> str:
    """The beginning of what is text."""
    if not content_type.is_text(head):
        return ""
    text = head[:MAX_PREVIEW_BYTES].decode(errors="ignore")
    while len(msgspec.json.encode(text)) > MAX_PREVIEW_BYTES:
        text = text[: len(text) * 3 // 4]
    return text


def _ref(new: blobs.NewBlob) -> BlobRef:
    return BlobRef(
        blob_id=new.id,
        size=new.size,
        sha256=new.sha256.hex(),
        media_type=new.media_type,
        preview=new.preview,
        name=new.name,
    )
