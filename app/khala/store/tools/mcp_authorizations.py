"""Connections of accounts that have begun, until the browser returns, and Khala's registrations as an OAuth client."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, func, insert

from khala.domain.access import Caller, key_hash
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.schema.tables import mcp_authorizations
from khala.store.tools.mcp_accounts import lock_user

LIFETIME = timedelta(minutes=10)
"""The time that a person has to allow the access."""
IS_UNUSED_CLIENT = """created_at < now() - interval '1 day' AND (expires_at < now() OR NOT EXISTS (
    SELECT FROM mcp_accounts
    WHERE mcp_accounts.issuer = mcp_clients.issuer AND mcp_accounts.user_id IS NOT NULL))"""
"""Registrations that have expired, or at whose issuer no account is connected. Accounts have a copy of their client."""
FIND_CLIENT = """
    SELECT client FROM mcp_clients
    WHERE issuer = $1 AND redirect_uri = $2 AND coalesce(expires_at > clock_timestamp() + interval '1 day', true)
"""
STORE_CLIENT = """
    INSERT INTO mcp_clients (issuer, redirect_uri, client, expires_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (issuer, redirect_uri)
    DO UPDATE SET client = excluded.client, created_at = now(), expires_at = excluded.expires_at
"""


@retried
async def begin(db: Database, caller: Caller, server: str, state: str, sealed: bytes) -> None:
    """Store what has begun, in place of an earlier attempt of the caller at this server."""
    async with db.transaction() as connection:
        await lock_user(connection, caller.user_id)
        table = mcp_authorizations
        await connection.execute(delete(table).where(table.c.user_id == caller.user_id, table.c.server == server))
        row = {"state_hash": key_hash(state), "user_id": caller.user_id, "server": server, "sealed": sealed}
        await connection.execute(insert(table).values(**row, expires_at=func.now() + LIFETIME))


@retried
async def take(db: Database, user_id: UUID, state: str) -> tuple[str, bytes] | None:
    """Remove what this user has begun with this state, and return its server and contents.

    None if there is nothing, it has expired, or another user has begun it; that stays.
    """
    async with db.transaction() as connection:
        table = mcp_authorizations
        where = (table.c.state_hash == key_hash(state)) & (table.c.user_id == user_id)
        deleted = await connection.execute(delete(table).where(where).returning(table, func.now().label("at")))
        row = deleted.first()
    return None if row is None or row.expires_at < row.at else (row.server, row.sealed)


async def find_client(driver: Driver, issuer: str, redirect_uri: str) -> bytes | None:
    """The sealed registration at this issuer for this redirect URI, if there is one that has not expired."""
    found: bytes | None = await driver.fetchval(FIND_CLIENT, issuer, redirect_uri)
    return found


async def store_client(
    driver: Driver, issuer: str, redirect_uri: str, sealed: bytes, expires_at: datetime | None
) -> None:
    """Store a registration, in place of an earlier one."""
    await driver.execute(STORE_CLIENT, issuer, redirect_uri, sealed, expires_at)


async def forget_client(driver: Driver, issuer: str, redirect_uri: str) -> None:
    """Delete a registration that the issuer does not know any more."""
    await driver.execute("DELETE FROM mcp_clients WHERE issuer = $1 AND redirect_uri = $2", issuer, redirect_uri)
