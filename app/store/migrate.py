"""Migrations: brought up to date under an advisory lock, so that any number of processes may start at once."""

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.store.db import Database
from app.store.tables import metadata

LOCK = 0x6B68616C61
"""The advisory lock's key: "khala" in ASCII."""


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration; the migrations lie beside the package in a checkout and inside it in a wheel."""
    here = Path(__file__).parents[1]
    inside = here / "migrations"
    made = Config()
    made.set_main_option("script_location", str(inside if inside.is_dir() else here.parent / "migrations"))
    made.attributes["connection"] = connection
    return made


def head() -> str | None:
    """The newest revision that this code knows."""
    return ScriptDirectory.from_config(config()).get_current_head()


async def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to this revision. Waits for whoever is at it already; all or nothing."""
    await _alone(url, lambda sync: command.upgrade(config(sync), revision))


async def downgrade(url: str, revision: str) -> None:
    """Take the database back to an earlier revision."""
    await _alone(url, lambda sync: command.downgrade(config(sync), revision))


async def _alone(url: str, change: Callable[[Connection], None]) -> None:
    # A connection of its own, without the time limit of statements that somebody waits for.
    db = Database(url, pool_size=1, timeout=None)
    try:
        async with db.transaction() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            await connection.run_sync(change)
    finally:
        await db.close()


async def current(db: Database) -> str | None:
    """The revision that the database is at."""
    async with db.engine.connect() as connection:
        return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())


async def differences(db: Database) -> list[object]:
    """What the database's schema and the metadata differ in; empty when they are equal."""
    async with db.engine.connect() as connection:
        return await connection.run_sync(_compare)


def _compare(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))
