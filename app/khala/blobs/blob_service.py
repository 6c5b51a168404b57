"""The blob service: stores equal bytes once, and gives threads references to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
import structlog

from khala.blobs import content_type
from khala.blobs.port import BlobStore
from khala.blobs.spool import MAX_OUTPUT_BYTES, Spool, open_spool
from khala.domain import ids
from khala.domain.errors import BlobNotFound, KhalaError, Unavailable
from khala.domain.parts import BlobRef
from khala.signals.metrics import BLOB_BYTES
from khala.store.blobs import blobs
from khala.store.blobs.blobs import Blob, StorageQuota, StoredFile
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.threads import folder_files
from khala.store.threads.folder_files import StoredFolderFile

log = structlog.get_logger()

T = TypeVar("T")

DEFAULT_STORAGE_QUOTA = StorageQuota(thread=1 << 30, guest=64 << 20)
"""The default quota of one thread's blobs."""
MAX_TRIES = 3
MAX_NAME_CHARACTERS = 200
MAX_PREVIEW_BYTES = 1024
"""Bytes of the preview as JSON, which has to fit into a part with other fields."""
MAX_PUT_SECONDS = 1800.0
"""Bytes that took longer to store may have been garbage-collected meanwhile, and are stored again."""
PROBE_BYTES = 64 * 1024
"""Bytes that are written to check for free disk space."""
CHECK_VALID_SECONDS = 10.0
"""Seconds for which the result of a check is valid."""


class BlobService:
    """Stores and reads blobs.

    It writes bytes to the store before rows to the database, so that a crash leaves only unreferenced bytes.
    """

    def __init__(
        self, db: Database, store: BlobStore, *, folder: Path, quota: StorageQuota = DEFAULT_STORAGE_QUOTA
    ) -> None:
        """`folder` is for spools. Each process needs a folder of its own."""
        self.store = store
        self.quota = quota
        self._db = db
        self._folder = folder
        self._checking: asyncio.Task[bool] | None = None
        self._checked_at = -CHECK_VALID_SECONDS

    def spool(self, max_bytes: int = MAX_OUTPUT_BYTES) -> AbstractAsyncContextManager[Spool]:
        """A spool for at most `max_bytes`. Its file is removed when the context ends."""
        return open_spool(self._folder, max_bytes)

    async def put(
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
        claim: str | None = None,
    ) -> BlobRef:
        """Store the spool durably as a blob of the thread, until `expires_at` if given.

        A blob that is not `attached` is an upload that waits for a message, for a day by default. With the `claim`
        under which a worker holds the run, the same blob of the run is stored once. Raises `ThreadNotFound`,
        `RunNotFound`, `StaleLease`, `PayloadTooLarge` over the thread's quota, `RateLimited` for too many waiting
        uploads, and `Unavailable`.
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

        async def check(driver: Driver) -> None:
            if claim is not None:
                await blobs.find_or_check(driver, new, self.quota, claim)

        added = await self._store(new, path, check, lambda put: self._add_reference(new, put=put, claim=claim))
        return _ref(msgspec.structs.replace(new, id=added))

    async def put_in_folder(
        self, spool: Spool, *, user_id: UUID, folder: str, media_type: str, name: str
    ) -> StoredFolderFile:
        """Store the spool durably as a file of the account's folder, which is made if there is none.

        Raises `Conflict`, `PayloadTooLarge` and `Unauthorized` as `folder_files.add`, and `Unavailable`.
        """
        path = await spool.file()
        new = StoredFolderFile(
            id=ids.new(),
            user_id=user_id,
            folder=folder,
            sha256=spool.sha256,
            size=spool.size,
            media_type=content_type.valid_media_type(media_type),
            name=name,
            created_at=datetime.now(UTC),
        )

        async def check(driver: Driver) -> None:
            await folder_files.find_or_check(driver, new, self.quota)

        return await self._store(
            new, path, check, lambda put: folder_files.add(self._db, new, put=put, quota=self.quota)
        )

    async def _store(
        self,
        new: blobs.NewBlob | StoredFile,
        path: Path,
        check: Callable[[Driver], Awaitable[None]],
        add: Callable[[bool], Awaitable[T | None]],
    ) -> T:
        """Store the bytes of a reference unless they are stored, then add the reference.

        `check` refuses bytes before they are stored, as far as it is known without a lock. `add` takes whether they
        were put just now, and returns None if they have been deleted since. Raises the errors of both, and
        `Unavailable` if they are deleted again and again.
        """
        for _ in range(MAX_TRIES):
            async with self._db.driver() as driver:
                stored = await blobs.touch(driver, new.sha256, new.size)
            began = time.monotonic()
            if not stored:
                async with self._db.driver() as driver:
                    await check(driver)
                await self.store.put(new.sha256.hex(), path)
            if time.monotonic() - began > MAX_PUT_SECONDS:
                continue
            added = await add(not stored)
            if added is not None:
                BLOB_BYTES.labels("kept").inc(new.size)
                return added
        raise Unavailable("The file was deleted while it was being stored. Try again.", retry_after=1)

    @retried
    async def _add_reference(self, new: blobs.NewBlob, *, put: bool, claim: str | None) -> UUID | None:
        async with self._db.transaction() as connection:
            return await blobs.add(connection, new, put=put, quota=self.quota, claim=claim)

    async def check_run_room(
        self, thread_id: UUID, run_id: UUID, size: int | None, media_type: str, name: str | None
    ) -> None:
        """Raise `PayloadTooLarge` if the run cannot store a blob of `size` bytes, None if unknown.

        One that may repeat a stored blob of the run, because type, name and size are the same, is not refused.
        """
        wanted = content_type.valid_media_type(media_type), plain_name(name)
        async with self._db.driver() as driver:
            await blobs.check_run_room(driver, thread_id, run_id, size, *wanted, quota=self.quota)

    async def find_in_run(self, blob_ids: Collection[UUID], thread_id: UUID, run_id: UUID) -> dict[UUID, BlobRef]:
        """Those of these blobs that the run has stored, by their ids, without expired ones."""
        async with self._db.driver() as driver:
            return await blobs.find_in_run(driver, blob_ids, thread_id, run_id)

    async def find(self, blob_id: UUID, thread_id: UUID | None = None) -> Blob:
        """The blob. Raises `BlobNotFound`, also if it has expired or is not in the given thread."""
        async with self._db.driver() as driver:
            return await blobs.find(driver, blob_id, thread_id)

    async def find_readable(self, file_id: UUID, thread_id: UUID, user_id: UUID | None) -> StoredFile:
        """The blob of the thread, or the file of the folder in which the user keeps the thread.

        Without a user, only a blob of the thread. Raises `BlobNotFound`.
        """
        try:
            return await self.find(file_id, thread_id)
        except BlobNotFound:
            async with self._db.driver() as driver:
                file = user_id and await folder_files.find_in_thread(driver, user_id, thread_id, file_id)
            if not file:
                raise
            return file

    async def files_of_folder(self, user_id: UUID, thread_id: UUID) -> list[StoredFolderFile]:
        """The files of the folder in which the user keeps the thread, by name."""
        async with self._db.driver() as driver:
            return await folder_files.of_thread(driver, user_id, thread_id)

    @asynccontextmanager
    async def read(
        self, blob: StoredFile, start: int = 0, end: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The blob's bytes from `start` up to `end` (exclusive), in chunks. Raises `BlobNotFound`, `Unavailable`."""
        until = blob.size if end is None else min(end, blob.size)
        async with self.store.read(blob.key, start, until) as chunks:
            BLOB_BYTES.labels("read").inc(until - start)
            yield chunks

    async def mark_missing(self, blob: StoredFile) -> None:
        """Record that the blob's bytes are missing, so that the next upload of the same content stores them."""
        log.error("blob_bytes_missing", blob_id=str(blob.id), sha256=blob.key)
        async with self._db.driver() as driver:
            await blobs.mark_missing(driver, blob.sha256)

    async def check(self) -> None:
        """Raise `Unavailable` unless blobs can be stored and read."""
        await self.store.check()

    async def has_disk_space(self) -> bool:
        """Whether the disk of temporary files has free space."""
        try:
            await asyncio.to_thread(self._write_probe)
        except OSError as error:
            log.warning("temporary_files_not_writable", folder=str(self._folder), error=str(error))
            return False
        return True

    def _write_probe(self) -> None:
        path = self._folder / f"probe-{ids.new().hex}"
        try:
            path.write_bytes(bytes(PROBE_BYTES))
        finally:
            path.unlink(missing_ok=True)

    async def is_healthy(self, within: float = 3.0) -> bool:
        """Whether blobs can be stored and read. The result may be ten seconds old.

        False if the check takes longer than `within` seconds.
        """
        if self._checking is None or (
            self._checking.done() and time.monotonic() - self._checked_at > CHECK_VALID_SECONDS
        ):
            self._checking = asyncio.create_task(self._is_healthy())
        # Another caller may start the next check before this result is read.
        checking = self._checking
        done, _ = await asyncio.wait({checking}, timeout=within)
        return bool(done) and checking.result()

    async def _is_healthy(self) -> bool:
        try:
            await self.check()
        except KhalaError as error:
            log.warning("blob_store_unavailable", error=str(error.__cause__ or error))
            return False
        finally:
            self._checked_at = time.monotonic()
        return True

    async def aclose(self) -> None:
        """Cancel a running check."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})


def plain_name(name: str | None) -> str | None:
    """The last component of a file name, without unprintable characters."""
    if name is None:
        return None
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(letter for letter in last if letter.isprintable()).strip()
    return plain[:MAX_NAME_CHARACTERS] or None


def preview(head: bytes) -> str:
    """The beginning of a text; empty for binary data."""
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
