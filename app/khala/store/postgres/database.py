"""The database: transactions for commands, snapshots for reads, and the driver's own connections for the hot path."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import msgspec
from sqlalchemy import AsyncAdaptedQueuePool
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from khala.domain.errors import Unauthorized, Unavailable
from khala.signals import metrics
from khala.store.postgres import session_settings
from khala.store.postgres.driver_pool import DriverPool

Driver: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

CONFLICT_MESSAGE = "Too many requests change the same at once; nothing was done. Try again in a moment."

UNAVAILABLE_ERRORS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The server is in another state than the driver expects: it has ended the session but not closed the socket yet.
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    # A migration has changed a table of a prepared statement: the retry prepares it anew.
    asyncpg.InvalidCachedStatementError,
    InterfaceError,
    OperationalError,
    PoolTimeout,
)
"""Errors of a database that is unavailable or busy: the same command may succeed later."""

TOO_SLOW_ERRORS = (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError, PoolTimeout)
"""Of these, the errors of statements that took too long, as behind the lock of another transaction."""
NOT_WRITABLE_ERRORS = (asyncpg.DiskFullError, asyncpg.ReadOnlySQLTransactionError)
"""Of these, the errors of a database that reads, but takes no writes."""

CONFLICT_ERRORS = {asyncpg.DeadlockDetectedError: "deadlock", asyncpg.SerializationError: "serialization"}
"""Errors by which Postgres ends a transaction over the locks of others, and their names in the metric."""

CONNECT_TIMEOUT_SECONDS = 10
"""Seconds to open a connection."""
CLOSE_TIMEOUT_SECONDS = 5
"""Seconds that tasks have to return their connections at shutdown."""
POOL_TIMEOUT_SECONDS = 15
"""Seconds to wait for a connection of a pool."""
UNKNOWN_URL_PARAMETERS = ("channel_binding", "pgbouncer")
"""Parameters for other drivers in URLs of managed databases. asyncpg would send them as server settings."""


def asyncpg_url(url: str) -> URL:
    """The URL for SQLAlchemy's asyncpg dialect; accepts `postgres://` and `postgresql://`, too."""
    return make_url(url.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+asyncpg")


def driver_url(url: str) -> str:
    """The URL for asyncpg itself, without parameters of managed databases that asyncpg doesn't know."""
    known = asyncpg_url(url).set(drivername="postgresql").difference_update_query(UNKNOWN_URL_PARAMETERS)
    return known.render_as_string(hide_password=False)


class TransactionConflict(Unavailable):
    """Postgres has ended the transaction because of the locks of others. The same command may succeed when repeated."""


class Database:
    """Connections to Postgres, up to a limit. Every operation raises `Unavailable` if the database is unavailable.

    A transaction that Postgres ends by a deadlock or a serialization failure raises `TransactionConflict`. The
    decorator `retries.retried` runs the command again.

    There are two pools, each with half of the connections: SQLAlchemy's for commands, and the driver's own for the hot
    path, because SQLAlchemy's asyncio layer takes ten times as long to acquire a connection as a small query takes.

    With a `direct_url`, `url` may lead to a pooler that lends a server connection for one transaction at a time, as
    PgBouncer does: no prepared statement and no setting outlasts a transaction there.
    """

    def __init__(
        self, url: str, *, direct_url: str | None = None, pool_size: int = 16, timeout: float | None = 30
    ) -> None:
        """`timeout`: seconds that one statement may take."""
        self.url = url
        self.direct_url = direct_url or url
        """The URL of Postgres itself, for what needs a session: LISTEN, and migrations."""
        self.pooled = self.direct_url != url
        """Whether a pooler owns the sessions, so that Khala's settings are sent with each transaction."""
        # This and the listener connect by the URL as asyncpg reads it, including `sslmode`.
        known = {
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "command_timeout": timeout,
            **session_settings.connect_options(pooled=self.pooled),
        }
        self.most = pool_size
        """The maximum number of connections."""
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda **_: self._connect_driver(),
            connect_args=session_settings.dialect_options(pooled=self.pooled),
            pool_size=pool_size - pool_size // 2,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_pre_ping=True,
            json_serializer=_to_json,
            json_deserializer=str,
            # Messages of users must not appear in the log of an error.
            hide_parameters=True,
        )
        self._drivers: DriverPool | None = None
        self._most_drivers = max(1, pool_size // 2)
        self._known = known

    @property
    def engine(self) -> AsyncEngine:
        """SQLAlchemy's engine, for migrations."""
        return self._engine

    @property
    def in_use(self) -> int:
        """Connections that are in use now."""
        engine = self._engine.pool
        checked_out = engine.checkedout() if isinstance(engine, AsyncAdaptedQueuePool) else 0
        return checked_out + (0 if self._drivers is None else self._drivers.in_use)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One command, one transaction: committed when the block ends, rolled back when it raises."""
        began = time.monotonic()
        async with _translated(), self._engine.begin() as connection:
            metrics.DATABASE_WAIT.observe(time.monotonic() - began)
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Driver]:
        """A read-only transaction in which every query sees the same state."""
        async with self.driver() as driver, driver.transaction(isolation="repeatable_read", readonly=True):
            yield driver

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        """A connection of the driver itself, for the hot path. The caller begins the transaction."""
        async with _translated():
            # The pool belongs to the event loop that uses it first.
            drivers = self._drivers = self._drivers or DriverPool(self._connect_driver, self._most_drivers)
            began = time.monotonic()
            connection = await drivers.acquire(POOL_TIMEOUT_SECONDS)
            metrics.DATABASE_WAIT.observe(time.monotonic() - began)
            try:
                yield connection
            except (*UNAVAILABLE_ERRORS, asyncio.CancelledError):
                # The connection is lost, or was interrupted in the middle of a query: it must not be used again.
                connection.terminate()
                raise
            finally:
                drivers.release(connection)

    async def close(self) -> None:
        """Close all connections."""
        if self._drivers is not None:
            await self._drivers.close(CLOSE_TIMEOUT_SECONDS)
        await self._engine.dispose()

    async def _connect_driver(self) -> Driver:
        return await asyncpg.connect(driver_url(self.url), **self._known)


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except UNAVAILABLE_ERRORS as error:
        raise _unavailable(error) from error
    except tuple(CONFLICT_ERRORS) as error:
        raise _conflict(error) from error
    except asyncpg.ForeignKeyViolationError as error:
        raise _unknown_user(error) or error from error
    except DBAPIError as error:
        gone = _unknown_user(error.orig and error.orig.__cause__)
        if gone is not None:
            raise gone from error
        cause = error.orig and error.orig.__cause__
        if isinstance(cause, tuple(CONFLICT_ERRORS)):
            raise _conflict(cause) from error
        if isinstance(error.orig, UNAVAILABLE_ERRORS) or isinstance(
            error.orig and error.orig.__cause__, UNAVAILABLE_ERRORS
        ):
            raise _unavailable(cause if isinstance(cause, UNAVAILABLE_ERRORS) else error) from error
        raise


def _unavailable(error: BaseException) -> Unavailable:
    """The error for a database that cannot do this now. Counts it in the metric."""
    metrics.DATABASE_UNAVAILABLE.inc()
    if isinstance(error, TOO_SLOW_ERRORS):
        message = "The database did not answer in time"
    elif isinstance(error, NOT_WRITABLE_ERRORS):
        message = "The database takes no writes now"
    else:
        message = "The database is out of reach"
    return Unavailable(f"{message}. Try again in a moment.", retry_after=1)


def _conflict(error: BaseException | None) -> TransactionConflict:
    """The error for a transaction that Postgres has ended. Counts it in the metric."""
    cause = next(name for kind, name in CONFLICT_ERRORS.items() if isinstance(error, kind))
    metrics.DATABASE_DEADLOCKS.labels(cause).inc()
    return TransactionConflict(CONFLICT_MESSAGE, retry_after=1)


def _unknown_user(error: object) -> Unauthorized | None:
    """The error for a row that refers to a user who was deleted meanwhile. None for other errors."""
    named = isinstance(error, asyncpg.ForeignKeyViolationError) and str(error.constraint_name).endswith("user_id_fkey")
    return Unauthorized("This account was deleted.") if named else None


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def driver_of(connection: AsyncConnection) -> Driver:
    """The underlying connection of the driver, in the same transaction. A statement must have begun the transaction."""
    driver: Driver = (await connection.get_raw_connection()).driver_connection
    return driver


def affected(status: str) -> int:
    """The number of rows that a statement has changed, from its command tag."""
    return int(status.rpartition(" ")[2])
