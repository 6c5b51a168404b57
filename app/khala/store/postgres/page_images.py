"""Page images: the whole pages that Postgres writes to the WAL when they first change after a checkpoint."""

from khala.store.postgres.database import Driver

LEAVE_UNCOMPRESSED = """
    SELECT set_config('wal_compression', 'off', true)
    WHERE current_setting('wal_compression') = 'pglz' AND has_parameter_privilege('wal_compression', 'SET')
"""


async def leave_uncompressed(driver: Driver) -> None:
    """Have the transaction write its page images without `pglz`, which takes more CPU than their WAL is worth.

    Nothing changes if the server compresses by another method, or if the role may not set it.
    """
    await driver.execute(LEAVE_UNCOMPRESSED)
