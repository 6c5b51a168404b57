"""Check of the pooler between Khala and Postgres."""

import asyncpg
import msgspec

from khala.doctor.findings import Finding, bad, ok, warn
from khala.store.postgres.database import Database, Driver, driver_url

TIMEOUT_SECONDS = 10
"""Time that a connection, and a query, may take."""


class PoolerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The pooler in front of Postgres, if there is one."""

    pooler: bool
    transactions: bool
    """Whether it lends server connections for less than a session."""


async def finding(db: Database) -> Finding:
    """A transaction pooler needs a direct URL beside it, for LISTEN and migrations."""
    if db.direct_url != db.url:
        return await _check_direct_url(db)
    info = await detect(db.url)
    if info.transactions:
        advice = "let DATABASE_DIRECT_URL lead to Postgres itself, for LISTEN and migrations"
        return bad("pooler", f"DATABASE_URL leads to a transaction pooler: {advice}")
    return ok("pooler", "DATABASE_URL leads to a session pooler" if info.pooler else "none")


async def _check_direct_url(db: Database) -> Finding:
    if (await detect(db.direct_url)).transactions:
        return bad("pooler", "DATABASE_DIRECT_URL leads to a transaction pooler: it must lead to Postgres itself")
    if not (await detect(db.url)).pooler:
        advice = "statements are not prepared, which costs CPU without need: unset DATABASE_DIRECT_URL"
        return warn("pooler", f"DATABASE_URL leads to Postgres itself, and {advice}")
    return ok("pooler", "DATABASE_URL leads to a pooler, DATABASE_DIRECT_URL to Postgres")


async def detect(url: str) -> PoolerInfo:
    """Detect a pooler. While other clients use its pool, a transaction pooler may look like a session pooler."""
    first_client = await _connect(url)
    try:
        first = await _backend_pid(first_client)
        second_client = await _connect(url)
        try:
            # A session has its own server connection: one that serves two connected clients is shared.
            shared = await _backend_pid(second_client) == first
        finally:
            await second_client.close(timeout=TIMEOUT_SECONDS)
        # A pooler cannot report the process id of one server connection to a client.
        return PoolerInfo(pooler=shared or first_client.get_server_pid() != first, transactions=shared)
    finally:
        await first_client.close(timeout=TIMEOUT_SECONDS)


async def _connect(url: str) -> Driver:
    return await asyncpg.connect(
        driver_url(url), timeout=TIMEOUT_SECONDS, command_timeout=TIMEOUT_SECONDS, statement_cache_size=0
    )


async def _backend_pid(connection: Driver) -> int:
    return int(await connection.fetchval("SELECT pg_backend_pid()"))
