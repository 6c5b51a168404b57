"""What the doctor finds between Khala and Postgres: a pooler, and of which kind."""

import asyncpg
import msgspec

from khala.doctor.findings import Finding, bad, ok, warn
from khala.store.postgres.database import Database, Driver, driver_url

SECONDS = 10
"""Seconds that a connection, and a question, may take."""


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before Postgres."""

    pooler: bool
    transactions: bool
    """Whether it lends server connections for less than a session."""


async def finding(db: Database) -> Finding:
    """A pooler of transactions has a way past it, for what needs a session."""
    if db.direct_url != db.url:
        return await _past(db)
    found = await between(db.url)
    if found.transactions:
        way = "let DATABASE_DIRECT_URL lead to Postgres itself, for LISTEN and migrations"
        return bad("pooler", f"DATABASE_URL leads to a pooler of transactions: {way}")
    return ok("pooler", "DATABASE_URL leads to a pooler of sessions" if found.pooler else "none between")


async def _past(db: Database) -> Finding:
    if (await between(db.direct_url)).transactions:
        return bad("pooler", "DATABASE_DIRECT_URL leads to a pooler of transactions: it must lead to Postgres itself")
    if not (await between(db.url)).pooler:
        dear = "statements are not kept prepared, which costs processor time: leave DATABASE_DIRECT_URL out"
        return warn("pooler", f"DATABASE_URL leads to Postgres itself, and for a pooler's sake {dear}")
    return ok("pooler", "DATABASE_URL leads to a pooler, DATABASE_DIRECT_URL past it")


async def between(url: str) -> Between:
    """What is there. While others are busy with the pool, one of transactions may pass for one of sessions."""
    one = await _connected(url)
    try:
        first = await _backend(one)
        two = await _connected(url)
        try:
            # A session keeps its server connection: one that serves two clients who are both there is lent.
            lent = await _backend(two) == first
        finally:
            await two.close(timeout=SECONDS)
        # A pooler can't tell a client the process id of the one server connection that it will have.
        return Between(pooler=lent or one.get_server_pid() != first, transactions=lent)
    finally:
        await one.close(timeout=SECONDS)


async def _connected(url: str) -> Driver:
    return await asyncpg.connect(driver_url(url), timeout=SECONDS, command_timeout=SECONDS, statement_cache_size=0)


async def _backend(connection: Driver) -> int:
    return int(await connection.fetchval("SELECT pg_backend_pid()"))
