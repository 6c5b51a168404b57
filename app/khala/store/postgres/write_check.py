"""Whether the database takes writes: asked by committing one that leaves nothing behind."""

import asyncpg

from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database

PROBE_TIMEOUT_SECONDS = 3.0
READ_ONLY = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
NEW_FILE = "SELECT pg_export_snapshot()"
"""Makes a small file beside the data, which Postgres removes at the end of the transaction."""
NEW_RECORD = "SELECT pg_logical_emit_message(true, 'khala', '')"
"""Writes to the log, which the commit then syncs; nobody reads it."""


async def find_write_problem(db: Database) -> str | None:
    """Why the database takes no writes now, in words; None if it does. Raises `Unavailable` where it is out of reach.

    Neither statement leaves a row, a dead tuple or a change of a catalog, so it may be asked every few seconds.
    """
    try:
        async with db.driver() as driver, driver.transaction():
            if await driver.fetchval(READ_ONLY, timeout=PROBE_TIMEOUT_SECONDS):
                return "it is read-only: a replica, or default_transaction_read_only is on"
            await driver.execute(NEW_FILE, timeout=PROBE_TIMEOUT_SECONDS)
            await driver.execute(NEW_RECORD, timeout=PROBE_TIMEOUT_SECONDS)
    except asyncpg.InsufficientPrivilegeError:
        # Where an operator has revoked these functions, only that it is not read-only can be told.
        return None
    except asyncpg.PostgresError as error:
        return str(error)
    except Unavailable as error:
        if isinstance(error.__cause__, asyncpg.DiskFullError):
            return str(error.__cause__)
        raise
    return None
