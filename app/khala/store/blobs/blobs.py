"""Blobs in the database: references of threads to objects, which are identified by their hash."""

from collections.abc import Collection, Mapping, Sequence
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
    LimitScope,
    PayloadTooLarge,
    RateLimited,
    ReachedLimit,
    RunNotFound,
    StaleLease,
    ThreadNotFound,
)
from khala.domain.parts import BlobRef
from khala.store.budgets import counters
from khala.store.postgres.database import Driver, driver_of
from khala.store.threads.reset_marks import IS_BLOB, IS_RUN

MAX_UNATTACHED = 50
"""Unattached uploads of one author, and in one thread."""
UNATTACHED_LIFETIME = "1 day"
MAX_RUN_BLOBS = 1_000
"""Blobs that workers may store in one run."""
MAX_LISTED_THREADS = 1_000
"""The threads of a user's list whose blobs are listed: those that changed last."""
LAST_ID = UUID(int=2**128 - 1)
QUOTA_LOCK_CLASS = 0x6B6C
"""The class of the advisory locks under which a thread's storage is counted."""
UPLOADER_LOCK_CLASS = 0x6B75
"""The class of the advisory locks under which the unattached uploads of an author are counted, in all threads."""

COLUMNS = "id, thread_id, run_id, sha256, size, media_type, name, preview, author_id, attached, created_at, expires_at"
NOT_EXPIRED = "coalesce(expires_at > clock_timestamp(), true)"
FIND = f"SELECT {COLUMNS} FROM blobs WHERE id = $1 AND {NOT_EXPIRED} AND {IS_BLOB}"
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
    WHERE id = ANY ($2) AND thread_id = $1 AND NOT attached AND {NOT_EXPIRED} AND {IS_BLOB}
    RETURNING {COLUMNS}
"""
STORED_IN_RUN = f"""
    SELECT id FROM blobs
    WHERE sha256 = $1 AND run_id = $2 AND thread_id = $3 AND media_type = $4 AND name IS NOT DISTINCT FROM $5
      AND {NOT_EXPIRED} AND {IS_BLOB}
    ORDER BY id LIMIT 1
"""
MAY_REPEAT = f"""
    SELECT EXISTS (
        SELECT FROM blobs
        WHERE run_id = $1 AND thread_id = $2 AND media_type = $3 AND name IS NOT DISTINCT FROM $4
          AND size = coalesce($5, size) AND {NOT_EXPIRED} AND {IS_BLOB}
    )
"""
FIND_IN_RUN = f"""
    SELECT {COLUMNS} FROM blobs
    WHERE id = ANY ($1) AND thread_id = $2 AND run_id = $3 AND {NOT_EXPIRED} AND {IS_BLOB}
"""
OF_LISTED_THREADS = f"""
    SELECT newest.* FROM (
        SELECT thread_id FROM listings WHERE user_id = $1 AND NOT gone
        ORDER BY revision DESC LIMIT {MAX_LISTED_THREADS}
    ) AS listed CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM blobs
        WHERE blobs.thread_id = listed.thread_id AND blobs.id < $2 AND attached AND {NOT_EXPIRED} AND {IS_BLOB}
        ORDER BY id DESC LIMIT $3
    ) AS newest
    ORDER BY id DESC LIMIT $3
"""
"""Reads the blobs of each thread by the index: a walk through all newest blobs would grow with the deployment."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to an object: a blob of a thread, or a file of a folder."""

    id: UUID
    sha256: bytes
    size: int
    media_type: str
    name: str | None

    @property
    def key(self) -> str:
        """The object's name in the blob store."""
        return self.sha256.hex()


class Blob(StoredFile, frozen=True, kw_only=True):
    """A thread's reference to an object."""

    thread_id: UUID
    run_id: UUID | None
    preview: str
    author_id: UUID | None
    attached: bool
    created_at: datetime
    expires_at: datetime | None

    @property
    def ref(self) -> BlobRef:
        """The reference on the wire."""
        return BlobRef(
            blob_id=self.id,
            size=self.size,
            sha256=self.key,
            media_type=self.media_type,
            preview=self.preview,
            name=self.name,
        )


class NewBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A new reference. An upload is unattached until a message includes it."""

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
    """The blob. Raises `BlobNotFound`, also if it has expired or is not in the given thread."""
    row = await driver.fetchrow(FIND, blob_id)
    if row is None or (thread_id is not None and row["thread_id"] != thread_id):
        raise BlobNotFound("There is no such blob.")
    return _blob(row)


async def of_listed_threads(driver: Driver, user_id: UUID, *, before: UUID | None, limit: int) -> list[Blob]:
    """The blobs of the threads in the user's list, the newest first. Does not check access."""
    return [_blob(row) for row in await driver.fetch(OF_LISTED_THREADS, user_id, before or LAST_ID, limit)]


async def touch(driver: Driver, sha256: bytes, size: int) -> bool:
    """Protect the object from garbage collection for an hour, before referring to it. Returns whether it is stored."""
    return bool(await driver.fetchval(TOUCH, sha256, size))


async def mark_missing(driver: Driver, sha256: bytes) -> None:
    """Record that the object's bytes are missing, so that the next upload of the same bytes stores them again."""
    await driver.execute("UPDATE objects SET stored = false WHERE sha256 = $1", sha256)


OWNER_PLAN = "SELECT budget_plan FROM threads JOIN users ON users.id = threads.owner_id WHERE threads.id = $1"


class StorageQuota(msgspec.Struct, frozen=True):
    """Bytes of all blobs of one thread: of a user's thread, and of a guest's."""

    thread: int
    guest: int
    guests_a_day: int = 10 << 30
    """Bytes that all guests together may store in a day; 0 for no limit."""
    plans: Mapping[str, int] = {}
    """Bytes of one thread whose owner has this budget plan."""
    default_plan: str | None = None
    """The plan of owners without one."""

    def of_plan(self, name: str | None) -> int:
        """Bytes of one thread of an owner with this plan."""
        return self.plans.get(name or "", self.plans.get(self.default_plan or "", self.thread))


async def add(
    connection: AsyncConnection, new: NewBlob, *, put: bool, quota: StorageQuota, claim: str | None = None
) -> UUID | None:
    """Add a reference to the object, which is stored or was just `put`. Returns its id.

    None if the object was garbage-collected meanwhile. With `claim`, a worker must hold the run under this claim, and
    what it stores again, under the same type and name, is the same blob.

    Raises `ThreadNotFound` or `RunNotFound`, `StaleLease`, `PayloadTooLarge` over the thread's quota or the number of
    a run's blobs, and `RateLimited` for too many unattached uploads.
    """
    # Locked, because concurrent checks of an author or in a thread would each see the same free quota.
    if new.author_id is not None and not new.attached:
        await _lock_quota(connection, UPLOADER_LOCK_CLASS, new.author_id)
    await _lock_quota(connection, QUOTA_LOCK_CLASS, new.thread_id)
    driver = await driver_of(connection)
    await _lock_parents(driver, new, claim)
    stored = await find_or_check(driver, new, quota, claim)
    if not await driver.fetchval(CONFIRM, new.sha256, put):
        return None
    if stored is None:
        await _count_guest_bytes(driver, new, quota)
        await driver.execute(INSERT, *msgspec.structs.astuple(new))
    return stored or new.id


async def _lock_quota(connection: AsyncConnection, lock_class: int, counted_id: UUID) -> None:
    lock = text("SELECT pg_advisory_xact_lock(:class, hashtext(:counted))")
    await connection.execute(lock, {"class": lock_class, "counted": str(counted_id)})


async def find_or_check(driver: Driver, new: NewBlob, quota: StorageQuota, claim: str | None) -> UUID | None:
    """The id of the same blob of a worker's run, None if a new one may be stored.

    Raises `PayloadTooLarge` and `RateLimited` as `add`.
    """
    if claim is not None:
        stored = await driver.fetchval(STORED_IN_RUN, new.sha256, new.run_id, new.thread_id, new.media_type, new.name)
        if stored is not None:
            return UUID(str(stored))
        await _check_run_blobs(driver, new.thread_id, new.run_id)
    await check_quota(driver, new.thread_id, new.size, quota, uploader=None if new.attached else new.author_id)
    return None


async def check_run_room(
    driver: Driver,
    thread_id: UUID,
    run_id: UUID,
    size: int | None,
    media_type: str,
    name: str | None,
    *,
    quota: StorageQuota,
) -> None:
    """Raise `PayloadTooLarge` if a worker's run cannot store a blob of `size` bytes, None if unknown.

    One that may repeat a stored blob of the run, because type, name and size are the same, is not refused.
    """
    if not await driver.fetchval(MAY_REPEAT, run_id, thread_id, media_type, name, size):
        await _check_run_blobs(driver, thread_id, run_id)
        await check_quota(driver, thread_id, size or 0, quota)


async def find_in_run(driver: Driver, blob_ids: Collection[UUID], thread_id: UUID, run_id: UUID) -> dict[UUID, BlobRef]:
    """The references to those of these blobs that the run has stored, by their ids, without expired ones."""
    rows = await driver.fetch(FIND_IN_RUN, list(blob_ids), thread_id, run_id)
    return {row["id"]: _blob(row).ref for row in rows}


async def _check_run_blobs(driver: Driver, thread_id: UUID, run_id: UUID | None) -> None:
    query = f"SELECT count(*) FROM blobs WHERE thread_id = $1 AND run_id = $2 AND {IS_BLOB}"
    if await driver.fetchval(query, thread_id, run_id) >= MAX_RUN_BLOBS:
        raise PayloadTooLarge(f"A run has at most {MAX_RUN_BLOBS:,} blobs.")


async def _count_guest_bytes(driver: Driver, new: NewBlob, quota: StorageQuota) -> None:
    """Count the bytes of a guest against the daily quota of all guests."""
    owned = await driver.fetchval("SELECT owner_id IS NOT NULL FROM threads WHERE id = $1", new.thread_id)
    if not owned and quota.guests_a_day:
        kept, most = Decimal(new.size) / 1024, quota.guests_a_day // 1024
        left = await counters.count_amount(driver, "anonymous", b"", "KiB", kept, most=most)
        if left is not None:
            limit = ReachedLimit("guest_bytes_per_day", "deployment", quota.guests_a_day)
            message = "The daily storage quota of guests is used up. Try again later, or sign in."
            raise RateLimited(message, limit=limit, retry_after=left)


async def _lock_parents(driver: Driver, new: NewBlob, claim: str | None) -> None:
    """Lock the blob's thread and run against deletion while the blob is added, and a claimed run against a take-over.

    Raises `ThreadNotFound`, `RunNotFound`, and `StaleLease` if no worker holds the run under the claim.
    """
    query = "SELECT FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"
    if await driver.fetchrow(query, new.thread_id) is None:
        raise ThreadNotFound("There is no such thread.")
    if new.run_id is not None:
        strength = "KEY SHARE" if claim is None else "SHARE"
        query = f"SELECT remote_claim, status FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN} FOR {strength}"
        run = await driver.fetchrow(query, new.run_id, new.thread_id)
        if run is None:
            raise RunNotFound("There is no such run.")
        if claim is not None and (run["remote_claim"], run["status"]) != (claim, "running"):
            raise StaleLease("This worker does not hold the run any more.")


async def check_quota(
    driver: Driver, thread_id: UUID, size: int, quota: StorageQuota, *, uploader: UUID | None = None
) -> None:
    """Raise `PayloadTooLarge` unless the thread may store `size` more bytes, and `RateLimited` unless the uploader may
    have one more unattached upload."""  # noqa: D205, D209
    query = f"SELECT coalesce(sum(size), 0)::bigint FROM blobs WHERE thread_id = $1 AND {IS_BLOB}"
    stored = await driver.fetchval(query, thread_id)
    owner = await driver.fetchrow(OWNER_PLAN, thread_id)
    most_bytes = quota.of_plan(owner["budget_plan"]) if owner else min(quota.guest, quota.thread)
    if stored + size > most_bytes:
        raise PayloadTooLarge(f"A thread stores at most {most_bytes:,} bytes; this one has {stored:,} already.")
    if uploader is None:
        return
    waiting = f"SELECT count(*) FROM blobs WHERE NOT attached AND {NOT_EXPIRED} AND {IS_BLOB} AND "
    counted: dict[LimitScope, tuple[str, UUID]] = {
        "thread": ("thread_id", thread_id),
        "account": ("author_id", uploader),
    }
    for scope, (column, value) in counted.items():
        if await driver.fetchval(f"{waiting} {column} = $1", value) >= MAX_UNATTACHED:
            raise RateLimited(
                f"{MAX_UNATTACHED} uploads wait to be sent with a message. Send one, or wait: they expire after a day.",
                limit=ReachedLimit("waiting_uploads", scope, MAX_UNATTACHED),
                retry_after=3600,
            )


async def attach(driver: Driver, thread_id: UUID, blob_ids: Sequence[UUID]) -> list[BlobRef]:
    """Attach these uploads to a message, in the caller's transaction. Returns them in the given order.

    Raises `InvalidInput` for duplicates, and for ids that are not waiting uploads of this thread.
    """
    found = {row["id"]: _blob(row).ref for row in await driver.fetch(ATTACH, thread_id, list(blob_ids))}
    for place, blob_id in enumerate(blob_ids):
        if blob_id not in found:
            raise InvalidInput("This is no upload that waits in this thread.", path=f"blobs[{place}]")
    if len(found) != len(blob_ids):
        raise InvalidInput("An upload is named twice.", path="blobs")
    return [found[blob_id] for blob_id in blob_ids]


def _blob(row: Any) -> Blob:
    return Blob(**dict(row))
