"""The console's blobs: the largest, and the usage of each owner as the usage rollup has counted it."""

from datetime import datetime
from uuid import UUID

from khala.store.console.pages import AccountRef, ConsoleStruct, Statement, account_columns, account_ref, joined
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

MAX_OWNER_THREADS = 1_000
"""The newest threads of an account whose blobs a list has."""
MAX_OWNERS = 200
LARGEST = 2**63 - 1
OWNER = "(SELECT owner_id FROM threads WHERE threads.id = page.thread_id)"
OWNED = f"""
    SELECT blobs.* FROM (
        SELECT id FROM threads WHERE owner_id = {{0}} AND deleted_at IS NULL
        ORDER BY created_at DESC, id DESC LIMIT {MAX_OWNER_THREADS}
    ) AS thread CROSS JOIN LATERAL (SELECT * FROM blobs WHERE blobs.thread_id = thread.id OFFSET 0) AS blobs
"""
USAGE = f"""
    SELECT blobs, bytes, {account_columns("page.owner_id", "owner")} FROM (
        SELECT * FROM blob_owners ORDER BY bytes DESC LIMIT {MAX_OWNERS}
    ) AS page ORDER BY bytes DESC, owner_id
"""
TOTALS = "SELECT objects, bytes, orphans, orphan_bytes, blobs_counted_at AS counted_at FROM usage_rollup"


class ConsoleBlob(ConsoleStruct, frozen=True, kw_only=True):
    """A blob of any thread, without its name and preview. `size` is bytes."""

    id: UUID
    thread_id: UUID
    run_id: UUID | None
    size: int
    media_type: str
    created_at: datetime
    owner: AccountRef | None


class BlobOwner(ConsoleStruct, frozen=True, kw_only=True):
    """The blobs in the threads of one account, or of all guests."""

    owner: AccountRef | None
    blobs: int
    bytes: int


class BlobUsage(ConsoleStruct, frozen=True, kw_only=True):
    """The owners with the most bytes, all stored objects, and those to which no thread refers."""

    items: list[BlobOwner]
    objects: int
    bytes: int
    orphans: int
    orphan_bytes: int
    counted_at: datetime | None


async def read_page(
    driver: Driver, account: UUID | None, before: tuple[int, UUID] | None, limit: int
) -> list[ConsoleBlob]:
    """Return blobs after this size and id, the largest first."""
    statement = Statement()
    size, blob_id = before or (LARGEST, UUID(int=2**128 - 1))
    source = "blobs" if account is None else f"({OWNED.format(statement.add(account, 'uuid'))}) AS blobs"
    smaller = f"(size, id) < ({statement.add(size, 'bigint')}, {statement.add(blob_id, 'uuid')})"
    query = f"""
        SELECT page.*, {account_columns(OWNER, "owner")} FROM (
            SELECT id, thread_id, run_id, size, media_type, created_at FROM {source} WHERE {joined([smaller])}
            ORDER BY size DESC, id DESC LIMIT {statement.add(limit, "int")}
        ) AS page ORDER BY size DESC, id DESC
    """
    return [_blob(row) for row in await driver.fetch(query, *statement.arguments)]


def _blob(row: Record) -> ConsoleBlob:
    same = ("id", "thread_id", "run_id", "size", "media_type", "created_at")
    return ConsoleBlob(owner=account_ref(row, "owner"), **{name: row[name] for name in same})


async def read_usage(driver: Driver) -> BlobUsage:
    """Return the usage as it was counted last."""
    totals = await driver.fetchrow(TOTALS)
    owners = [
        BlobOwner(owner=account_ref(row, "owner"), blobs=row["blobs"], bytes=row["bytes"])
        for row in await driver.fetch(USAGE)
    ]
    if totals is None:
        return BlobUsage(items=owners, objects=0, bytes=0, orphans=0, orphan_bytes=0, counted_at=None)
    return BlobUsage(items=owners, **totals)
