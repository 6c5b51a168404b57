"""Checks that the database accepts writes, by committing one that leaves nothing behind."""

import asyncpg

from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database

PROBE_TIMEOUT_SECONDS = 3.0
READ_ONLY = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
NEW_FILE = "SELECT pg_export_snapshot()"
"""Creates a small file beside the data, which Postgres removes at the end of the transaction."""
NEW_RECORD = "SELECT pg_logical_emit_message(true, 'khala', '')"
"""Writes to the WAL, which the commit then syncs; no replication slot reads the message."""


async def find_write_problem(db: Database) -> str | None:
    """The reason why the database accepts no writes now, as a sentence; None if it does.

    Raises `Unavailable` where the database is out of reach. Neither statement leaves a row, a dead tuple or a catalog
    change, so this may be called every few seconds.
    """
    try:
        async with db.driver() as driver, driver.transaction():
            if await driver.fetchval(READ_ONLY, timeout=PROBE_TIMEOUT_SECONDS):
                return "it is read-only: a replica, or default_transaction_read_only is on"
            await driver.execute(NEW_FILE, timeout=PROBE_TIMEOUT_SECONDS)
            await driver.execute(NEW_RECORD, timeout=PROBE_TIMEOUT_SECONDS)
    except asyncpg.InsufficientPrivilegeError:
        # Where an operator has revoked these functions, the check only knows that the database is not read-only.
        return None
    except asyncpg.PostgresError as error:
        return str(error)
    except Unavailable as error:
        if isinstance(error.__cause__, asyncpg.DiskFullError):
            return str(error.__cause__)
        raise
    return None
