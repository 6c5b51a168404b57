"""Migrations: brought up to date under an advisory lock, so that any number of processes may start at once.

Alembic is imported only where there is something to do: it takes a quarter of the time in which a process starts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, text

from khala.store.postgres.database import Database
from khala.store.schema.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

log = structlog.get_logger()

MIGRATION_LOCK_KEY = 0x6B68616C61
"""The advisory lock's key: "khala" in ASCII."""
LOCK_TIMEOUT_SECONDS = 10.0
"""Seconds that a migration waits for a table: behind it waits everybody else who wants that table."""
SET_IDLE_TIMEOUT = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""How long Alembic may take between two statements: what it runs there has to be imported first, and on a busy machine
that takes longer than a request may hold its locks."""


def migrations_folder() -> Path:
    """Where the migrations are: beside the package in a checkout, and inside it in a wheel."""
    here = Path(__file__).parents[2]
    inside = here / "migrations"
    return inside if inside.is_dir() else here.parents[1] / "migrations"


def alembic_config(connection: Connection | None = None) -> "Config":
    """Alembic's configuration."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(migrations_folder()))
    made.attributes["connection"] = connection
    return made


def revisions() -> list[str]:
    """All that this code knows, in order: the numbers with which their files' names begin."""
    return sorted(path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*.py"))


def head() -> str:
    """The newest revision that this code knows."""
    return revisions()[-1]


def is_known(revision: str) -> bool:
    """Whether this code has that revision; a newer program's it has not."""
    return revision in revisions()


async def upgrade(url: str, revision: str = "head", *, patience: float = LOCK_TIMEOUT_SECONDS) -> None:
    """Bring the database to this revision. Waits for whoever is at it already; all or nothing.

    Raises `Unavailable` where a table can't be had within `patience` seconds; nothing has changed then.

    A database that a newer program has migrated stays as it is: while an upgrade goes on, or is being taken back,
    processes of the version before have to start, too, and each migration leaves them what they need.
    """
    await _alone(url, lambda sync: _upgrade(sync, revision), patience)


def _upgrade(connection: Connection, revision: str) -> None:
    at = _current(connection)
    if at is not None and not is_known(at):
        log.warning("schema_newer", at=at, knows=head())
    elif at != (head() if revision == "head" else revision):
        from alembic import command

        command.upgrade(alembic_config(connection), revision)


async def downgrade(url: str, revision: str) -> None:
    """Take the database back to an earlier revision."""
    from alembic import command

    await _alone(url, lambda sync: command.downgrade(alembic_config(sync), revision))


async def _alone(url: str, change: Callable[[Connection], None], patience: float = LOCK_TIMEOUT_SECONDS) -> None:
    # A connection of its own, without the time limit of statements that somebody waits for.
    db = Database(url, pool_size=1, timeout=None)
    try:
        async with db.transaction() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK_KEY})
            await connection.execute(text(f"SET LOCAL lock_timeout = '{int(patience * 1000)}ms'"))
            await connection.execute(text(SET_IDLE_TIMEOUT))
            await connection.run_sync(change)
    finally:
        await db.close()


async def current(db: Database) -> str | None:
    """The revision that the database is at."""
    async with db.engine.connect() as connection:
        return await connection.run_sync(_current)


def _current(connection: Connection) -> str | None:
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    at: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return at


async def differences(db: Database) -> list[object]:
    """What the database's schema and the metadata differ in; empty when they are equal."""
    async with db.engine.connect() as connection:
        await connection.execute(text(SET_IDLE_TIMEOUT))
        return await connection.run_sync(_compare)


def _compare(connection: Connection) -> list[object]:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    # Tables may have been split: docs/scaling.md.
    partitions = set(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")))
    opts = {
        "compare_type": True,
        "compare_server_default": True,
        "include_name": lambda name, kind, _: kind != "table" or name not in partitions,
    }
    context = MigrationContext.configure(connection, opts=opts)
    return list(compare_metadata(context, metadata))
