"""Prepares blobs for searches: the signature of each text, and the message that the blob belongs to.

A blob is prepared once, in the background, whatever process has stored it: a blob without a signature is in the index
`blobs_unsigned_idx` until then. One process at a time does it, newest blobs first.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from khala.domain.blob_signatures import NOTHING
from khala.store.blobs.blobs import COLUMNS, Blob
from khala.store.postgres.database import Database, Driver, affected

MAX_BLOBS = 8
"""Blobs of one batch."""
MAX_BATCH_SECONDS = 60
"""Time for reading the blobs of one batch, after which another process may do it."""
MAX_CLEARED_BLOBS = 500
"""Blobs that one batch clears after the search was switched off."""
LOCK_KEY = 0x6B68616C65
"""The key of the advisory lock of the process that prepares blobs."""

UNSIGNED = f"SELECT {COLUMNS} FROM blobs WHERE attached AND signature IS NULL ORDER BY id DESC LIMIT $1"
HAS_UNSIGNED = "SELECT EXISTS (SELECT FROM blobs WHERE attached AND signature IS NULL)"
SIGN = """
    UPDATE blobs SET signature = CASE WHEN found.message_id IS NULL THEN ''::bytea ELSE $2 END,
           message_id = found.message_id
    FROM (
        SELECT coalesce(
            (SELECT message_id FROM runs WHERE runs.id = $3::uuid AND runs.thread_id = $4),
            (SELECT id FROM messages
             WHERE $3::uuid IS NULL AND messages.thread_id = $4 AND role = 'user' AND messages.created_at >= $5
               AND content @> jsonb_build_array(
                   jsonb_build_object('type', 'file', 'blob', jsonb_build_object('blobId', $1::uuid::text)))
             ORDER BY position LIMIT 1)
        ) AS message_id
    ) AS found
    WHERE blobs.id = $1 AND blobs.thread_id = $4 AND attached AND signature IS NULL
"""
SIGN_EMPTY = "UPDATE blobs SET signature = '' WHERE id = $1 AND thread_id = $2 AND attached AND signature IS NULL"
CLEAR = """
    UPDATE blobs SET signature = NULL, message_id = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM blobs WHERE message_id IS NOT NULL ORDER BY thread_id, id LIMIT $1))
"""


@asynccontextmanager
async def batch(db: Database) -> AsyncIterator[tuple[Driver, Sequence[Blob]]]:
    """Yield blobs to `sign` in a transaction that ends with the block: none while another process does it."""
    async with db.driver() as driver:
        if not await driver.fetchval(HAS_UNSIGNED):
            yield driver, ()
            return
        async with driver.transaction():
            if not await driver.fetchval("SELECT pg_try_advisory_xact_lock($1)", LOCK_KEY):
                yield driver, ()
                return
            # The usual timeout is for contended rows. No row is locked while the block reads bytes.
            await driver.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_BATCH_SECONDS}s'")
            yield driver, [Blob(**dict(row)) for row in await driver.fetch(UNSIGNED, MAX_BLOBS)]


async def sign(driver: Driver, blob: Blob, signature: bytes) -> None:
    """Store the signature of the blob's text, and the message that it belongs to. Without one, nobody finds it."""
    if signature == NOTHING:
        await driver.execute(SIGN_EMPTY, blob.id, blob.thread_id)
        return
    await driver.execute(SIGN, blob.id, signature, blob.run_id, blob.thread_id, blob.created_at)


async def clear_next(db: Database) -> bool:
    """Delete some signatures, after the search was switched off. Returns whether there may be more."""
    async with db.driver() as driver:
        return affected(await driver.execute(CLEAR, MAX_CLEARED_BLOBS)) == MAX_CLEARED_BLOBS
