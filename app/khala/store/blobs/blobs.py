"""Blobs as rows: objects by their hash, and what refers to them and opens them to whoever may read the thread."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.errors import (
    BlobNotFound,
    InvalidInput,
    PayloadTooLarge,
    RateLimited,
    RunNotFound,
    ThreadNotFound,
)
from khala.domain.parts import BlobRef
from khala.store.budgets import counters
from khala.store.postgres.database import Driver, driver_of

MAX_UNATTACHED = 50
"""Uploads of one author, and of all in one thread, that wait for a message."""
UNATTACHED_LIFETIME = "1 day"
QUOTA_LOCK_CLASS = 0x6B6C
"""Class of the advisory locks under which what a thread may keep is counted."""

COLUMNS = "id, thread_id, run_id, sha256, size, media_type, name, preview, author_id, attached, created_at, expires_at"
NOT_EXPIRED = "coalesce(expires_at > clock_timestamp(), true)"
FIND = f"SELECT {COLUMNS} FROM blobs WHERE id = $1 AND {NOT_EXPIRED}"
TOUCH = """
    INSERT INTO objects (sha256, size, touched_at) VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (sha256) DO UPDATE SET touched_at = excluded.touched_at
    RETURNING stored
"""
CONFIRM = """
    UPDATE objects SET touched_at = clock_timestamp(), stored = stored OR $2 WHERE sha256 = $1 RETURNING stored
"""
INSERT = f"""
    INSERT INTO blobs ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, clock_timestamp(),
        coalesce($11, CASE WHEN NOT $10 THEN clock_timestamp() + interval '{UNATTACHED_LIFETIME}' END))
"""
ATTACH = f"""
    UPDATE blobs SET attached = true, expires_at = NULL
    WHERE id = ANY ($2) AND thread_id = $1 AND NOT attached AND {NOT_EXPIRED}
    RETURNING {COLUMNS}
"""


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to an object, in a thread."""

    id: UUID
    thread_id: UUID
    run_id: UUID | None
    sha256: bytes
    size: int
    media_type: str
    name: str | None
    preview: str
    author_id: UUID | None
    attached: bool
    created_at: datetime
    expires_at: datetime | None

    @property
    def key(self) -> str:
        """The object's name in the blob store."""
        return self.sha256.hex()

    @property
    def ref(self) -> BlobRef:
        """What parts and answers say of it."""
        return BlobRef(
            blob_id=self.id,
            size=self.size,
            sha256=self.key,
            media_type=self.media_type,
            preview=self.preview,
            name=self.name,
        )


class NewBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A reference that is to be; an upload is one that no message has yet."""

    id: UUID
    thread_id: UUID
    run_id: UUID | None
    sha256: bytes
    size: int
    media_type: str
    name: str | None
    preview: str
    author_id: UUID | None
    attached: bool
    expires_at: datetime | None


async def find(driver: Driver, blob_id: UUID, thread_id: UUID | None = None) -> Blob:
    """The blob, if it has not expired and, where one is named, is in this thread. Raises `BlobNotFound`."""
    row = await driver.fetchrow(FIND, blob_id)
    if row is None or (thread_id is not None and row["thread_id"] != thread_id):
        raise BlobNotFound("There is no such blob.")
    return _blob(row)


async def touch(driver: Driver, sha256: bytes, size: int) -> bool:
    """Say that somebody is about to refer to the object, which keeps it for an hour. Returns whether it is stored."""
    return bool(await driver.fetchval(TOUCH, sha256, size))


async def forget_stored(driver: Driver, sha256: bytes) -> None:
    """Note that the object's bytes were not where they should be: whoever has them stores them again."""
    await driver.execute("UPDATE objects SET stored = false WHERE sha256 = $1", sha256)


class StorageQuota(msgspec.Struct, frozen=True):
    """Bytes that the blobs of one thread have together: of a user's, and of a guest's."""

    thread: int
    guest: int
    guests_a_day: int = 10 << 30
    """Of all guests together, of what is kept in a day; 0 for no limit."""


async def add(connection: AsyncConnection, new: NewBlob, *, put: bool, room: StorageQuota) -> bool:
    """Refer to the object, which is stored, or was `put` just now; False if it was collected meanwhile.

    Raises `ThreadNotFound` or `RunNotFound` where the place is gone, `PayloadTooLarge` where the thread keeps too much,
    and `RateLimited` where too many uploads wait.
    """
    # One at a time in a thread: those who count together would all find room.
    lock = text("SELECT pg_advisory_xact_lock(:class, hashtext(:thread))")
    await connection.execute(lock, {"class": QUOTA_LOCK_CLASS, "thread": str(new.thread_id)})
    driver = await driver_of(connection)
    await _lock_parents(driver, new)
    await check_quota(driver, new.thread_id, new.size, room, uploader=None if new.attached else new.author_id)
    if not await driver.fetchval(CONFIRM, new.sha256, put):
        return False
    await _count_guest_bytes(driver, new, room)
    await driver.execute(INSERT, *msgspec.structs.astuple(new))
    return True


async def _count_guest_bytes(driver: Driver, new: NewBlob, room: StorageQuota) -> None:
    """Count what a guest keeps; all of them together keep so much in a day, however many threads they begin."""
    owned = await driver.fetchval("SELECT owner_id IS NOT NULL FROM threads WHERE id = $1", new.thread_id)
    if not owned and room.guests_a_day:
        kept, most = Decimal(new.size) / 1024, room.guests_a_day // 1024
        left = await counters.count_amount(driver, "anonymous", b"", "KiB", kept, most=most)
        if left is not None:
            raise RateLimited("Guests have kept too much today. Try again later, or sign in.", retry_after=left)


async def _lock_parents(driver: Driver, new: NewBlob) -> None:
    """Keep what the blob belongs to from being deleted while it is added."""
    query = "SELECT FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"
    if await driver.fetchrow(query, new.thread_id) is None:
        raise ThreadNotFound("There is no such thread.")
    if new.run_id is not None:
        query = "SELECT FROM runs WHERE id = $1 AND thread_id = $2 FOR KEY SHARE"
        if await driver.fetchrow(query, new.run_id, new.thread_id) is None:
            raise RunNotFound("There is no such run.")


async def check_quota(
    driver: Driver, thread_id: UUID, size: int, room: StorageQuota, *, uploader: UUID | None = None
) -> None:
    """Raise unless the thread may keep so many bytes more, and this author may upload into it."""
    kept = await driver.fetchval("SELECT coalesce(sum(size), 0)::bigint FROM blobs WHERE thread_id = $1", thread_id)
    owned = await driver.fetchval("SELECT owner_id IS NOT NULL FROM threads WHERE id = $1", thread_id)
    most_bytes = room.thread if owned else min(room.guest, room.thread)
    if kept + size > most_bytes:
        raise PayloadTooLarge(f"A thread keeps at most {most_bytes:,} bytes; this one has {kept:,} already.")
    if uploader is None:
        return
    waiting = f"SELECT count(*) FROM blobs WHERE NOT attached AND {NOT_EXPIRED} AND "
    if (
        await driver.fetchval(f"{waiting} thread_id = $1", thread_id) >= MAX_UNATTACHED
        or await driver.fetchval(f"{waiting} author_id = $1", uploader) >= MAX_UNATTACHED
    ):
        raise RateLimited(
            f"{MAX_UNATTACHED} uploads wait to be sent with a message. Send or wait; they are gone after a day.",
            retry_after=3600,
        )


async def attach(connection: AsyncConnection, thread_id: UUID, blob_ids: Sequence[UUID]) -> list[BlobRef]:
    """Give these uploads to a message, in a transaction that has begun; in the order in which they were named.

    Raises `InvalidInput` for what is named twice or is no upload of this thread that waits.
    """
    driver = await driver_of(connection)
    found = {row["id"]: _blob(row).ref for row in await driver.fetch(ATTACH, thread_id, list(blob_ids))}
    for place, blob_id in enumerate(blob_ids):
        if blob_id not in found:
            raise InvalidInput("This is no upload that waits in this thread.", path=f"blobs[{place}]")
    if len(found) != len(blob_ids):
        raise InvalidInput("An upload is named twice.", path="blobs")
    return [found[blob_id] for blob_id in blob_ids]


def _blob(row: Any) -> Blob:
    return Blob(**dict(row))
