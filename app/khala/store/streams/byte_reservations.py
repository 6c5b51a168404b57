"""Reservations: the limit over the bytes of all streams of a space, divided among the streams in portions.

A stream's row says how many bytes are reserved for it, and an append only compares with that. One that needs more takes
a further portion from what the limit leaves. All reservations of a space together are never more than the limit,
because only the holder of the space's lock reserves. The sum is that of the streams' rows, so a reservation ends with
its stream.

Where the limit leaves too little, unused reservations of other streams are taken back. So an append is refused only if
the contents of all streams and its own are more than the limit.
"""

from collections.abc import Sequence

from khala.domain.errors import ReachedLimit, StorageExhausted
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.streams.stream_rows import StreamLimits, StreamSpace

MIN_PORTION_BYTES = 16 << 10
MAX_PORTION_BYTES = 1 << 20
"""A portion has as many bytes as the stream has stored, within these bounds."""
PORTION = f"least({MAX_PORTION_BYTES}, greatest({MIN_PORTION_BYTES}, stored_bytes))"

LOCK_SPACE = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
SUMS = """
    SELECT coalesce(sum(greatest(reserved_bytes, stored_bytes)), 0)::bigint AS reserved,
           coalesce(sum(stored_bytes), 0)::bigint AS stored FROM streams WHERE space_id = $1
"""
TAKE_BACK = """
    WITH locked AS MATERIALIZED (
        SELECT id FROM streams WHERE space_id = $1 AND (reserved_bytes > stored_bytes OR name = ANY ($2::text[]))
        ORDER BY id FOR UPDATE
    )
    UPDATE streams SET reserved_bytes = stored_bytes FROM locked
    WHERE streams.id = locked.id AND reserved_bytes > stored_bytes
"""
RESERVE = f"""
    UPDATE streams SET reserved_bytes = greatest(reserved_bytes, stored_bytes) + CASE
        WHEN $3 + {PORTION} <= $4 THEN $3 + {PORTION} ELSE least($3, $4) END
    WHERE space_id = $1 AND name = $2
"""
"""Where the limit does not leave a portion, a stream gets only what its appends need, so that streams do not take from
each other in turns.
"""
IS_SHORT = "SELECT stored_bytes + $3 > reserved_bytes FROM streams WHERE space_id = $1 AND name = $2"


async def lock_free_bytes(
    driver: Driver, space: StreamSpace, needed: int, limits: StreamLimits, names: Sequence[str]
) -> int:
    """Lock the reservations of the space until the transaction ends, and return the bytes that may still be reserved.

    If these are less than needed, unused reservations are taken back. That locks their streams, and those of these
    names, which the caller locks afterwards.
    """
    await driver.execute(LOCK_SPACE, f"space {space.id}")
    reserved, stored = await driver.fetchrow(SUMS, space.id) or (0, 0)
    if reserved + needed > limits.max_space_bytes and reserved > stored:
        await driver.execute(TAKE_BACK, space.id, names)
        reserved, stored = await driver.fetchrow(SUMS, space.id) or (0, 0)
    return max(0, limits.max_space_bytes - reserved)


async def extend(
    driver: Driver, space: StreamSpace, name: str, needed: int, limits: StreamLimits, *, waiting: int = 0
) -> int | None:
    """Reserve the bytes that the stream needs, and a portion more as far as the limit leaves it.

    `waiting`: the bytes of all appends to the stream that wait, of which the first one needs `needed`. Returns None
    if they are reserved, and otherwise the bytes that the limit leaves. The caller holds no lock of a stream.
    """
    free = await lock_free_bytes(driver, space, needed, limits, [name])
    if free < needed:
        return free
    await driver.execute(RESERVE, space.id, name, max(needed, waiting), free)
    return None


async def extend_if_short(
    driver: Driver, space: StreamSpace, name: str, needed: int, limits: StreamLimits
) -> int | None:
    """As `extend`, if the stream has less left than needed; else None."""
    if await driver.fetchval(IS_SHORT, space.id, name, needed):
        return await extend(driver, space, name, needed, limits)
    return None


@retried
async def reserve(
    db: Database, space: StreamSpace, name: str, needed: int, waiting: int, limits: StreamLimits
) -> int | None:
    """As `extend`, in a transaction of its own."""
    async with db.driver() as driver, driver.transaction():
        return await extend(driver, space, name, needed, limits, waiting=waiting)


def exhausted_error(space: StreamSpace, limits: StreamLimits) -> StorageExhausted:
    """The error of a request that the limit leaves no bytes for."""
    most = limits.max_space_bytes
    whose = "without an account" if space.user_id is None else "of an account"
    message = f"All streams {whose} have at most {most:,} bytes together. Delete some first."
    limit = ReachedLimit("stream_bytes", "deployment" if space.user_id is None else "account", most)
    return StorageExhausted(message, limit=limit)
