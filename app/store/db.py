"""The database: transactions for commands, snapshots for reads, and the driver's own connection for the hot path."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import msgspec
from sqlalchemy import Row, TextClause, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.domain.errors import Unauthorized, Unavailable

Driver: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

SESSION = {
    "application_name": "khala",
    "timezone": "UTC",
    "jit": "off",
    # The fence of `app.store.parts` rests on each statement seeing what was committed before it.
    "default_transaction_isolation": "read committed",
    # A process that freezes or drops off the network in a transaction holds row locks that others wait for. Less than
    # a lease, so that its runs can be taken over.
    "idle_in_transaction_session_timeout": "5s",
}
"""What every connection sets."""
LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    InterfaceError,
    OperationalError,
    PoolTimeout,
)
"""What says that the database is out of reach or busy: the same command may succeed later."""

FOREIGN = ("channel_binding", "pgbouncer")
"""Parameters of other drivers in URLs of managed databases; asyncpg would take them for settings of the server."""
THREADS_CHANNEL = "khala_threads"
"""NOTIFY channel: these threads have changed, look again."""
RUNS_CHANNEL = "khala_runs"
"""NOTIFY channel: a run was queued, or its cancel requested, look again."""
ACCOUNTS_CHANNEL = "khala_accounts"
"""NOTIFY channel: these users' lists of threads have changed, look again."""
CREDENTIALS_CHANNEL = "khala_credentials"
"""NOTIFY channel: sessions or tokens of these users have ended, check who follows by them."""
PRESENCE_CHANNEL = "khala_presence"
"""NOTIFY channel: who is present in these threads has changed, look again."""
EVERYTHING = "*"
"""A payload that names no thread: look at all you watch."""
MOST_NAMED = 200
"""Threads that one payload names; Postgres takes 7,999 bytes and an id has 36."""


def asyncpg_url(url: str) -> URL:
    """The same database for SQLAlchemy's asyncpg dialect; takes `postgres://` and `postgresql://` too."""
    return make_url(url.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+asyncpg")


def driver_url(url: str) -> str:
    """The same database for asyncpg itself, without what managed databases add that asyncpg doesn't know."""
    known = asyncpg_url(url).set(drivername="postgresql").difference_update_query(FOREIGN)
    return known.render_as_string(hide_password=False)


class Database:
    """One pool of connections to Postgres. Whatever fails because the database is away raises `Unavailable`."""

    def __init__(self, url: str, *, pool_size: int = 16, timeout: float | None = 30) -> None:
        """`timeout`: seconds that one statement may take."""
        self.url = url
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            # Both we and the listener connect by the URL as asyncpg reads it, with `sslmode` and all.
            async_creator=lambda: asyncpg.connect(
                driver_url(url),
                timeout=10,
                command_timeout=timeout,
                server_settings=SESSION,
            ),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=15,
            pool_pre_ping=True,
            json_serializer=_dumps,
            json_deserializer=str,
            # What people say does not belong into the log of an error.
            hide_parameters=True,
        )

    @property
    def engine(self) -> AsyncEngine:
        """SQLAlchemy's engine, for migrations."""
        return self._engine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One command, one transaction: committed when the block ends, rolled back when it raises."""
        async with _translated(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Driver]:
        """A read-only transaction in which every query sees the same state."""
        async with self.driver() as driver, driver.transaction(isolation="repeatable_read", readonly=True):
            yield driver

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        """The driver's own connection out of the same pool, for the hot path; the caller opens the transaction."""
        async with _translated(), self._engine.connect() as connection:
            raw = await connection.get_raw_connection()
            try:
                yield raw.driver_connection
            except (*LOST, asyncpg.InternalClientError, asyncio.CancelledError):
                # Lost, or left in the midst of something: not to be used again.
                await connection.invalidate()
                raise

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except LOST as error:
        raise Unavailable("The database is out of reach. Try again in a moment.", retry_after=1) from error
    except asyncpg.ForeignKeyViolationError as error:
        raise _unknown_user(error) or error from error
    except DBAPIError as error:
        gone = _unknown_user(error.orig and error.orig.__cause__)
        if gone is not None:
            raise gone from error
        if isinstance(error.orig, LOST) or isinstance(error.orig and error.orig.__cause__, LOST):
            raise Unavailable("The database is busy. Try again in a moment.", retry_after=1) from error
        raise


def _unknown_user(error: object) -> Unauthorized | None:
    """What it means that a row refers to a user who is gone: whoever asked was deleted meanwhile."""
    named = isinstance(error, asyncpg.ForeignKeyViolationError) and str(error.constraint_name).endswith("user_id_fkey")
    return Unauthorized("This account is gone.") if named else None


def _dumps(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def one(connection: AsyncConnection, sql: TextClause, **values: Any) -> Row[Any] | None:
    """The first row, or None."""
    return (await connection.execute(sql, values)).first()


async def driver_of(connection: AsyncConnection) -> Driver:
    """The driver's own connection beneath, within the same transaction, which must have begun with a statement."""
    driver: Driver = (await connection.get_raw_connection()).driver_connection
    return driver


async def notify(connection: AsyncConnection, channel: str, payload: str) -> None:
    """Tell the listeners, when the transaction commits."""
    await connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload})
