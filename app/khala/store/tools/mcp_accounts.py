"""Accounts of users at MCP servers: one row for each user and server, with sealed tokens.

A row whose `user_id` is null belongs to nobody: its tokens are revoked at their issuer, and then it is deleted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller
from khala.domain.errors import NotFound
from khala.store.accounts import audit
from khala.store.postgres.database import Database, Driver, affected, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import users

REFRESH_LEASE_SECONDS = 15
"""Time that one process has to refresh the tokens of a row. Less than the time that others wait for it."""
REVOCATION_LEASE_SECONDS = 60
MAX_REVOKE_ATTEMPTS = 5
"""Attempts to revoke the tokens of a row, before it is deleted without."""

COLUMNS = """
    id, user_id, server, resource, issuer, client_id, tokens, scope, missing_scope, access_expires_at, refused_at,
    version, tools_hash, tool_count, listed_at, created_at, used_at
"""
OF_ACTIVE_USER = "EXISTS (SELECT FROM users WHERE users.id = mcp_accounts.user_id AND users.blocked_at IS NULL)"
OF_USER = f"SELECT {COLUMNS} FROM mcp_accounts WHERE user_id = $1 AND {OF_ACTIVE_USER} ORDER BY server"
FIND = f"SELECT {COLUMNS} FROM mcp_accounts WHERE user_id = $1 AND server = $2 AND {OF_ACTIVE_USER}"
TOUCH = f"""
    UPDATE mcp_accounts SET used_at = clock_timestamp()
    WHERE id = $1 AND {OF_ACTIVE_USER} AND coalesce(used_at < clock_timestamp() - interval '10 minutes', true)
    RETURNING {COLUMNS}
"""
READ = f"SELECT {COLUMNS} FROM mcp_accounts WHERE id = $1 AND {OF_ACTIVE_USER}"
INSERT = """
    INSERT INTO mcp_accounts (id, user_id, server, resource, issuer, client_id, tokens, scope, access_expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
LEASE = f"""
    UPDATE mcp_accounts SET refresh_until = clock_timestamp() + interval '{REFRESH_LEASE_SECONDS} s'
    WHERE id = $1 AND version = $2 AND {OF_ACTIVE_USER} AND refused_at IS NULL
      AND coalesce(refresh_until < clock_timestamp(), true)
    RETURNING refresh_until
"""
REPLACE = """
    UPDATE mcp_accounts
    SET tokens = $3, scope = $4, access_expires_at = $5, version = version + 1, refresh_until = NULL
    WHERE id = $1 AND version = $2
"""
RELEASE = "UPDATE mcp_accounts SET refresh_until = NULL WHERE id = $1 AND refresh_until = $2"
EXPIRE = """
    UPDATE mcp_accounts SET refused_at = clock_timestamp(), refresh_until = NULL
    WHERE id = $1 AND version = $2 AND refused_at IS NULL
"""
SET_MISSING_SCOPE = "UPDATE mcp_accounts SET missing_scope = $2 WHERE id = $1 AND missing_scope IS DISTINCT FROM $2"
SET_TOOLS = """
    UPDATE mcp_accounts
    SET tools = $2, tools_hash = $3, tool_count = $4, listed_at = clock_timestamp()
    WHERE id = $1 AND (tools_hash IS DISTINCT FROM $3 OR listed_at < clock_timestamp() - interval '5 minutes')
"""
DETACH = "UPDATE mcp_accounts SET user_id = NULL, revoke_at = clock_timestamp() WHERE user_id = $1"
DETACH_ONE = f"{DETACH} AND server = $2 RETURNING id, issuer"
CLAIM_REVOCATION = f"""
    UPDATE mcp_accounts
    SET revoke_at = clock_timestamp() + make_interval(secs => {REVOCATION_LEASE_SECONDS} * power(4, revoke_attempts)),
        revoke_attempts = revoke_attempts + 1
    WHERE id = (
        SELECT id FROM mcp_accounts WHERE user_id IS NULL AND coalesce(revoke_at <= clock_timestamp(), true)
          AND coalesce(refresh_until < clock_timestamp(), true)
        ORDER BY revoke_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING {COLUMNS}, revoke_attempts
"""


class McpAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account at an MCP server. `tokens` are sealed. `resource` is the server's address when it was connected.

    `access_expires_at`: the end of the access token. `refused_at`: since when the server accepts no token, so that the
    account has to be connected again. `version` counts refreshes. `missing_scope`: scopes that a call required in vain.
    """

    id: UUID
    user_id: UUID | None
    server: str
    resource: str
    issuer: str
    client_id: str
    tokens: bytes
    scope: str | None
    missing_scope: str | None
    access_expires_at: datetime | None
    refused_at: datetime | None
    version: int
    tools_hash: str | None
    tool_count: int
    listed_at: datetime | None
    created_at: datetime
    used_at: datetime | None


class NewMcpAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account that has just been connected."""

    id: UUID
    server: str
    resource: str
    issuer: str
    client_id: str
    tokens: bytes
    scope: str | None
    access_expires_at: datetime | None


async def lock_user(connection: AsyncConnection, user_id: UUID | None) -> Driver:
    """Lock the user, so that one transaction at a time changes which accounts it has. Returns the driver.

    Raises `NotFound` if the user was deleted.
    """
    locked = await connection.execute(select(users.c.id).where(users.c.id == user_id).with_for_update(key_share=True))
    if locked.first() is None:
        raise NotFound("This account does not exist any more.")
    return await driver_of(connection)


async def of_user(driver: Driver, user_id: UUID) -> list[McpAccount]:
    """The user's accounts, by server; none if the user is blocked."""
    return [_account(row) for row in await driver.fetch(OF_USER, user_id)]


async def find(driver: Driver, user_id: UUID, server: str) -> McpAccount | None:
    """The user's account at a server, if it is connected and the user is not blocked."""
    row = await driver.fetchrow(FIND, user_id, server)
    return None if row is None else _account(row)


async def read(driver: Driver, account_id: UUID) -> McpAccount | None:
    """Read an account in order to use it; None if it was disconnected, or its user is blocked."""
    row = await driver.fetchrow(TOUCH, account_id) or await driver.fetchrow(READ, account_id)
    return None if row is None else _account(row)


async def tools(driver: Driver, account_id: UUID) -> str | None:
    """The tools that the server lists for this account, as they were stored."""
    stored: str | None = await driver.fetchval("SELECT tools FROM mcp_accounts WHERE id = $1", account_id)
    return stored


@retried
async def connect(db: Database, caller: Caller, account: NewMcpAccount) -> None:
    """Store a connected account, in place of an earlier one at the same server.

    The earlier tokens are not revoked: some issuers end the new ones with them. Raises `NotFound` if the
    user was deleted.
    """
    async with db.transaction() as connection:
        driver = await lock_user(connection, caller.user_id)
        await driver.execute(
            "DELETE FROM mcp_accounts WHERE user_id = $1 AND server = $2", caller.user_id, account.server
        )
        await driver.execute(
            INSERT,
            account.id,
            caller.user_id,
            account.server,
            account.resource,
            account.issuer,
            account.client_id,
            account.tokens,
            account.scope,
            account.access_expires_at,
        )
        await audit.record(
            connection,
            "service_connected",
            caller,
            server=account.server,
            issuer=account.issuer,
            scopes=(account.scope or "").split(),
        )


@retried
async def disconnect(db: Database, caller: Caller, server: str) -> UUID:
    """End the use of the caller's account at a server at once, and have its tokens revoked. Returns its id.

    Raises `NotFound` if it is not connected.
    """
    async with db.transaction() as connection:
        driver = await lock_user(connection, caller.user_id)
        row = await driver.fetchrow(DETACH_ONE, caller.user_id, server)
        if row is None:
            raise NotFound("This service is not connected.")
        await audit.record(connection, "service_disconnected", caller, server=server, issuer=row["issuer"])
    account_id: UUID = row["id"]
    return account_id


async def disconnect_all(driver: Driver, user_id: UUID) -> None:
    """End the use of all accounts of this user, and have their tokens revoked. The caller holds the user's lock."""
    await driver.execute(DETACH, user_id)


async def lease_refresh(driver: Driver, account_id: UUID, version: int) -> datetime | None:
    """Begin a refresh of the tokens of this version; None if another process does, or they have changed.

    Returns the end of the lease.
    """
    until: datetime | None = await driver.fetchval(LEASE, account_id, version)
    return until


async def release_refresh(driver: Driver, account_id: UUID, lease: datetime) -> None:
    """End a lease without new tokens."""
    await driver.execute(RELEASE, account_id, lease)


async def replace_tokens(
    driver: Driver, account: McpAccount, tokens: bytes, scope: str | None, access_expires_at: datetime | None
) -> bool:
    """Store refreshed tokens, and end the lease. Returns whether the row still had the version of `account`."""
    done = await driver.execute(REPLACE, account.id, account.version, tokens, scope, access_expires_at)
    return affected(done) == 1


async def expire(driver: Driver, account: McpAccount) -> None:
    """Record that the server accepts no token any more, unless there are newer ones."""
    await driver.execute(EXPIRE, account.id, account.version)


async def set_missing_scope(driver: Driver, account_id: UUID, scope: str) -> None:
    """Record the scopes that a call required in vain. They are requested when the account is connected again."""
    await driver.execute(SET_MISSING_SCOPE, account_id, scope)


async def set_tools(driver: Driver, account_id: UUID, listed: str, digest: str, count: int) -> None:
    """Store what the server lists for this account."""
    await driver.execute(SET_TOOLS, account_id, listed, digest, count)


async def claim_revocation(driver: Driver) -> tuple[McpAccount, bool] | None:
    """Claim a row whose tokens are to be revoked, and whether this is the last attempt; None if there is none."""
    row = await driver.fetchrow(CLAIM_REVOCATION)
    return None if row is None else (_account(row), row["revoke_attempts"] >= MAX_REVOKE_ATTEMPTS)


async def remove(driver: Driver, account_id: UUID) -> None:
    """Delete a row that belongs to nobody."""
    await driver.execute("DELETE FROM mcp_accounts WHERE id = $1 AND user_id IS NULL", account_id)


def _account(row: Mapping[Any, Any]) -> McpAccount:
    return McpAccount(**{name: row[name] for name in McpAccount.__struct_fields__})
