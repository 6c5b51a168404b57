"""Migrations of the schema, under an advisory lock, so that any number of processes may start at once.

Alembic is imported only if there is something to migrate, because its import takes a quarter of the start-up time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import structlog
from sqlalchemy import Connection, text

from khala.domain.errors import Unavailable
from khala.store.postgres import index_builder
from khala.store.postgres.database import Database
from khala.store.postgres.retries import retried
from khala.store.schema.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

log = structlog.get_logger()

MIGRATION_LOCK_KEY = 0x6B68616C61
"""The advisory lock's key: "khala" in ASCII."""
LOCK_TIMEOUT_SECONDS = 10.0
"""Seconds that a migration waits for the locks of tables, in all of its tries together."""
FIRST_LOCK_WAIT_SECONDS = 0.2
"""Seconds that the first try waits for a lock. Each further try waits twice as long.

All transactions that need the table wait behind a migration that waits. If one of them has a lock for which the
migration waits, both wait until one gives up. Early tries therefore give up before anybody notices; late ones wait
longer than Postgres's `deadlock_timeout` (1 s), after which it ends an autovacuum that holds the lock."""
PAUSE_SECONDS = 0.1
"""Seconds between two tries, in which the transactions that have waited continue."""
SET_IDLE_TIMEOUT = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""The time that Alembic may take between two statements: it imports modules there, which takes longer on a busy machine
than a request may hold its locks."""


def migrations_folder() -> Path:
    """The folder of the migrations: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).parents[2]
    inside = here / "migrations"
    return inside if inside.is_dir() else here.parents[1] / "migrations"


def alembic_config(connection: Connection | None = None) -> "Config":
    """Alembic's configuration."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """All revisions that this code knows, in order: the numbers with which the files' names begin."""
    return sorted(path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*.py"))


def head() -> str:
    """The newest revision that this code knows."""
    return revisions()[-1]


def is_known(revision: str) -> bool:
    """Whether this code knows the revision. Otherwise a newer version of Khala does."""
    return revision in revisions()


async def upgrade(url: str, revision: str = "head", *, lock_timeout: float = LOCK_TIMEOUT_SECONDS) -> None:
    """Bring the database to this revision, all or nothing. Waits for another process that is migrating it.

    At the newest revision, the indexes that are missing are created after that, without blocking writes.

    A table that is in use is tried again for `lock_timeout` seconds of waiting. Raises `Unavailable`, and changes
    nothing, if it can't be locked.

    A database that a newer version has migrated is not changed: during an upgrade or its rollback, processes of the
    previous version have to start, too, and each migration keeps the tables and columns that they need.
    """
    # A connection of its own, without the time limit of a request's statements.
    db = Database(url, pool_size=1, timeout=None)
    try:
        await _run_locked(db, lambda sync: _upgrade(sync, revision), lock_timeout)
        if revision == "head" and await current(db) == head():
            await index_builder.build_missing(db)
    finally:
        await db.close()


def _upgrade(connection: Connection, revision: str) -> None:
    at = _current(connection)
    if at is not None and not is_known(at):
        log.warning("schema_newer_than_program", schema=at, program=head())
    elif at != (head() if revision == "head" else revision):
        from alembic import command

        command.upgrade(alembic_config(connection), revision)


async def drop_retired_indexes(url: str) -> list[str]:
    """Drop the indexes that only the previous version reads. Returns their names."""
    db = Database(url, pool_size=1, timeout=None)
    try:
        return await index_builder.drop_retired(db)
    finally:
        await db.close()


async def downgrade(url: str, revision: str) -> None:
    """Take the database back to an earlier revision."""
    from alembic import command

    db = Database(url, pool_size=1, timeout=None)
    try:
        await _run_locked(db, lambda sync: command.downgrade(alembic_config(sync), revision))
    finally:
        await db.close()


async def _run_locked(
    db: Database, change: Callable[[Connection], None], lock_timeout: float = LOCK_TIMEOUT_SECONDS
) -> None:
    *early, last = _lock_waits(lock_timeout)
    for wait in early:
        try:
            await _try_locked(db, change, wait)
        except Unavailable as error:
            if not _is_lock_timeout(error):
                raise
            log.info("migration_waits_for_a_lock", waited_seconds=wait)
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return
    await _try_locked(db, change, last)


def _lock_waits(total: float) -> list[float]:
    """The seconds that each try waits for a lock, `total` together."""
    waits: list[float] = []
    while (left := round(total - sum(waits), 3)) > 0:
        waits.append(min(left, FIRST_LOCK_WAIT_SECONDS * 2 ** len(waits)))
    return waits


def _is_lock_timeout(error: BaseException | None) -> bool:
    """Whether Postgres ended the statement because it had waited too long for a lock."""
    while error is not None and not isinstance(error, asyncpg.LockNotAvailableError):
        error = error.__cause__ or getattr(error, "orig", None)
    return error is not None


@retried
async def _try_locked(db: Database, change: Callable[[Connection], None], lock_wait: float) -> None:
    async with db.transaction() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK_KEY})
        await connection.execute(text(f"SET LOCAL lock_timeout = '{round(lock_wait * 1000)}ms'"))
        await connection.execute(text(SET_IDLE_TIMEOUT))
        await connection.run_sync(change)


async def current(db: Database) -> str | None:
    """The revision of the database; None before the first migration."""
    async with db.engine.connect() as connection:
        return await connection.run_sync(_current)


def _current(connection: Connection) -> str | None:
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    at: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return at


async def differences(db: Database) -> list[object]:
    """The differences between the database's schema and the metadata. Empty if they are equal."""
    async with db.engine.connect() as connection:
        await connection.execute(text(SET_IDLE_TIMEOUT))
        return await connection.run_sync(_compare)


def _compare(connection: Connection) -> list[object]:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    # Tables may have been split: docs/scaling.md.
    ignored = {"index": set(index_builder.RETIRED)}
    ignored["table"] = set(
        connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
    )
    opts = {
        "compare_type": True,
        "compare_server_default": True,
        "include_name": lambda name, kind, _: name not in ignored.get(kind, ()),
    }
    context = MigrationContext.configure(connection, opts=opts)
    return list(compare_metadata(context, metadata))
