"""API tokens: secrets that act for a user within scopes, stored as hashes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Caller, Scope, key_hash
from khala.domain.accounts import ApiToken
from khala.domain.errors import Conflict, NotFound, Unauthorized
from khala.store.accounts import audit, service_tokens
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Database,
    Driver,
)
from khala.store.postgres.notifications import (
    CREDENTIALS_CHANNEL,
    notify,
)
from khala.store.postgres.retries import retried
from khala.store.schema.tables import api_tokens, sessions, users

PREFIX = "khala_"
"""The prefix of all tokens, so that people and secret scanners recognise them."""
MAX_TOKENS = 100
"""Tokens that one user may have."""

FIND = """
    SELECT api_tokens.id, api_tokens.user_id, api_tokens.expires_at, api_tokens.scopes, api_tokens.agents, users.name,
           api_tokens.service, api_tokens.user_issuer,
           coalesce(api_tokens.used_at < clock_timestamp() - interval '10 minutes', true) AS stale
    FROM api_tokens JOIN users ON users.id = api_tokens.user_id
    WHERE secret_hash = $1 AND coalesce(expires_at > clock_timestamp(), true) AND users.blocked_at IS NULL
"""


@retried
async def create(
    db: Database,
    caller: Caller,
    name: str,
    scopes: Sequence[Scope],
    expires_at: datetime | None,
    agents: Sequence[str] = (),
) -> tuple[ApiToken, str]:
    """A new token of the caller, and its secret, which can't be read again. `agents` are those of a worker's token.

    Raises `Unauthorized` if the session or token of the caller was revoked.
    """
    secret = PREFIX + ids.new_secret()
    row = {
        "id": ids.new(),
        "user_id": caller.user_id,
        "name": name,
        "scopes": list(scopes),
        "agents": list(agents) or None,
        "expires_at": expires_at,
    }
    async with db.transaction() as connection:
        await connection.execute(select(users.c.id).where(users.c.id == caller.user_id).with_for_update(key_share=True))
        if caller.credential is not None:
            await _hold_credential(connection, caller.credential)
        mine = select(func.count()).where(api_tokens.c.user_id == caller.user_id)
        if (await connection.execute(mine)).scalar_one() >= MAX_TOKENS:
            raise Conflict(f"An account has at most {MAX_TOKENS} tokens. Delete one first.")
        made = insert(api_tokens).values(**row, secret_hash=key_hash(secret)).returning(api_tokens)
        token = _token((await connection.execute(made)).one()._mapping)
        facts: dict[str, Any] = {"agents": list(agents)} if agents else {}
        await audit.record(
            connection, "token_made", caller, token=str(token.id), name=name, scopes=list(scopes), **facts
        )
    return token, secret


async def find(driver: Driver, secret: str) -> Caller | None:
    """The caller that this token acts for; None if it is invalid."""
    row = await driver.fetchrow(FIND, key_hash(secret))
    if row is None:
        return None
    if row["stale"]:
        await driver.execute("UPDATE api_tokens SET used_at = now() WHERE id = $1", row["id"])
    if row["service"] is not None:
        return service_tokens.caller_of(row)
    return Caller(
        user_id=row["user_id"],
        name=row["name"],
        credential=row["id"],
        scopes=frozenset(row["scopes"]),
        agents=frozenset(row["agents"] or ()),
        expires_at=row["expires_at"],
    )


async def of_user(driver: Driver, user_id: UUID) -> list[ApiToken]:
    """All tokens of the user, the newest first."""
    query = "SELECT * FROM api_tokens WHERE user_id = $1 ORDER BY created_at DESC, id DESC"
    return [_token(row) for row in await driver.fetch(query, user_id)]


@retried
async def revoke(db: Database, token_id: UUID, caller: Caller) -> None:
    """Revoke one of the caller's tokens."""
    async with db.transaction() as connection:
        where = (api_tokens.c.id == token_id) & (api_tokens.c.user_id == caller.user_id)
        gone = await connection.execute(delete(api_tokens).where(where).returning(api_tokens.c.id))
        if gone.first() is None:
            raise NotFound("There is no such token.")
        await notify(connection, CREDENTIALS_CHANNEL, str(caller.user_id))
        await audit.record(connection, "token_revoked", caller, token=str(token_id))


async def _hold_credential(connection: AsyncConnection, credential: UUID) -> None:
    """Have revocations of this session or token wait for the end of the transaction: a revoked one makes no tokens."""
    for table in (api_tokens, sessions):
        held = select(table.c.id).where(table.c.id == credential).with_for_update(read=True, key_share=True)
        if (await connection.execute(held)).first() is not None:
            return
    raise Unauthorized("This session or token was revoked. Sign in again.")


def _token(row: rows.Record) -> ApiToken:
    return ApiToken(
        id=row["id"],
        name=row["name"],
        scopes=tuple(row["scopes"]),
        agents=tuple(row["agents"] or ()),
        created_at=row["created_at"],
        used_at=row["used_at"],
        expires_at=row["expires_at"],
    )
