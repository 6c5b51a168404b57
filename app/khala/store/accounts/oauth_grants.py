"""Grants: the access of OAuth clients to accounts, over MCP only. Secrets are stored as hashes.

A client exchanges the code of a grant for an access token and a refresh token, and each refresh token for the next
pair. A code or refresh token that is used a second time was stolen, or its successor was: the grant ends.
"""

from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids, oauth
from khala.domain.access import Caller, hashes_match
from khala.domain.errors import NotFound, Unauthorized
from khala.domain.oauth import ClientGrant, GrantSecret, OAuthClient, OAuthError, OAuthScope
from khala.store.accounts import audit
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.schema.tables import oauth_grants, sessions, users

CODE_LIFETIME = timedelta(seconds=60)
ACCESS_LIFETIME = timedelta(hours=1)
LIFETIME = timedelta(days=30)
"""The time for which a client may leave a grant unused. Each refresh extends it."""
MAX_GRANTS = 100
"""Grants of one user. The oldest end when there are more."""

DELETE_OLDEST = f"""
    DELETE FROM oauth_grants WHERE id IN (
        SELECT id FROM oauth_grants WHERE user_id = $1
        ORDER BY coalesce(used_at, created_at) DESC, id DESC OFFSET {MAX_GRANTS})
"""
FIND = """
    SELECT grants.*, users.name, clock_timestamp() AS at,
           coalesce(grants.used_at < clock_timestamp() - interval '10 minutes', true) AS stale
    FROM oauth_grants AS grants JOIN users ON users.id = grants.user_id
    WHERE family_hash = $1 AND users.blocked_at IS NULL
"""
OF_USER = """
    SELECT * FROM oauth_grants WHERE user_id = $1 AND refresh_hash IS NOT NULL AND expires_at > clock_timestamp()
    ORDER BY created_at DESC, id DESC
"""


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """The access that an account allows a client."""

    client: OAuthClient
    redirect_uri: str
    resource: str
    scopes: tuple[OAuthScope, ...]
    challenge: str


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request to exchange a code for tokens."""

    code: str
    client_id: str
    redirect_uri: str
    verifier: str
    resource: str | None = None


class RefreshRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request to exchange a refresh token for new tokens."""

    token: str
    client_id: str
    resource: str | None = None


class GrantedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of a client."""

    access_token: str
    refresh_token: str
    scopes: tuple[OAuthScope, ...]


@retried
async def create(db: Database, caller: Caller, consent: Consent) -> str:
    """Record the consent of a signed-in browser, and return the code for the client.

    Raises `Unauthorized` if the browser's session has ended.
    """
    code = oauth.new_secret(oauth.CODE_PREFIX, ids.new_secret())
    row = {
        "id": ids.new(),
        "user_id": caller.user_id,
        "client_id": consent.client.id,
        "client_name": consent.client.name,
        "redirect_uri": consent.redirect_uri,
        "resource": consent.resource,
        "scopes": list(consent.scopes),
        "family_hash": code.family_hash,
        "challenge": consent.challenge,
        "code_hash": code.proof_hash,
    }
    async with db.transaction() as connection:
        await connection.execute(select(users.c.id).where(users.c.id == caller.user_id).with_for_update(key_share=True))
        session = select(sessions.c.id).where(sessions.c.id == caller.credential, sessions.c.user_id == caller.user_id)
        if (await connection.execute(session)).first() is None:
            raise Unauthorized("This session has ended. Sign in again.")
        await connection.execute(insert(oauth_grants).values(**row, expires_at=func.now() + CODE_LIFETIME))
        await connection.exec_driver_sql(DELETE_OLDEST, (caller.user_id,))
        await _record(connection, "app_allowed", caller, row)
    return code.text


@retried
async def exchange_code(db: Database, request: CodeRequest, network: str | None) -> GrantedTokens:
    """The tokens for a code. Raises `OAuthError` if it is invalid."""
    return await _exchange(db, oauth.parse_secret(oauth.CODE_PREFIX, request.code), request, network)


@retried
async def refresh(db: Database, request: RefreshRequest, network: str | None) -> GrantedTokens:
    """New tokens for a refresh token, which is invalid from then on. Raises `OAuthError` if it is invalid."""
    return await _exchange(db, oauth.parse_secret(oauth.REFRESH_PREFIX, request.token), request, network)


@retried
async def _exchange(
    db: Database, secret: GrantSecret | None, request: CodeRequest | RefreshRequest, network: str | None
) -> GrantedTokens:
    if secret is None:
        raise _invalid_grant()
    async with db.transaction() as connection:
        row = await _lock(connection, secret)
        decision = "refused" if row is None else _decide(row, secret, request)
        if row is not None and decision == "reused":
            # Committed although the request fails.
            await _end(connection, "app_access_reused", Caller(user_id=row["user_id"], network=network), row)
        tokens = await _renew(connection, row, secret.family) if row is not None and decision == "accepted" else None
    if tokens is None:
        raise _invalid_grant()
    return tokens


def _decide(
    row: rows.Record, secret: GrantSecret, request: CodeRequest | RefreshRequest
) -> Literal["accepted", "refused", "reused"]:
    """Whether the client gets tokens; `reused` if the secret was used before."""
    if isinstance(request, CodeRequest):
        is_current = hashes_match(row["code_hash"], secret.proof_hash)
        if is_current and row["refresh_hash"] is not None:
            return "reused"
        is_current &= request.redirect_uri == row["redirect_uri"] and oauth.verifies(request.verifier, row["challenge"])
    else:
        is_current = hashes_match(row["refresh_hash"], secret.proof_hash)
        if not is_current and row["refresh_hash"] is not None:
            return "reused"
    is_valid = is_current and request.client_id == row["client_id"] and row["expires_at"] > row["at"]
    same_resource = request.resource is None or request.resource == row["resource"]
    return "accepted" if is_valid and same_resource else "refused"


async def _lock(connection: AsyncConnection, secret: GrantSecret) -> rows.Record | None:
    query = (
        select(oauth_grants, func.clock_timestamp().label("at"))
        .join(users, users.c.id == oauth_grants.c.user_id)
        .where(oauth_grants.c.family_hash == secret.family_hash, users.c.blocked_at.is_(None))
    )
    row = (await connection.execute(query.with_for_update(of=oauth_grants))).first()
    return None if row is None else row._mapping


async def _renew(connection: AsyncConnection, row: rows.Record, family: str) -> GrantedTokens:
    """Replace the tokens of the grant. The access token before stays valid until it expires, for calls under way."""
    access = oauth.new_secret(oauth.ACCESS_PREFIX, family)
    renewed = oauth.new_secret(oauth.REFRESH_PREFIX, family)
    await connection.execute(
        update(oauth_grants)
        .where(oauth_grants.c.id == row["id"])
        .values(
            access_hash=access.proof_hash,
            access_expires_at=func.clock_timestamp() + ACCESS_LIFETIME,
            previous_access_hash=row["access_hash"],
            previous_access_expires_at=row["access_expires_at"],
            refresh_hash=renewed.proof_hash,
            used_at=func.clock_timestamp(),
            expires_at=func.clock_timestamp() + LIFETIME,
        )
    )
    return GrantedTokens(access_token=access.text, refresh_token=renewed.text, scopes=tuple(row["scopes"]))


async def find(driver: Driver, token: str, resource: str) -> Caller | None:
    """The caller that this access token acts for at this MCP server; None if it is not valid there."""
    secret = oauth.parse_secret(oauth.ACCESS_PREFIX, token)
    row = await driver.fetchrow(FIND, secret.family_hash) if secret else None
    if secret is None or row is None or not oauth.is_within(resource, row["resource"]):
        return None
    expires_at = _expiry(row, secret)
    if expires_at is None or expires_at <= row["at"]:
        return None
    if row["stale"]:
        await driver.execute("UPDATE oauth_grants SET used_at = clock_timestamp() WHERE id = $1", row["id"])
    return Caller(
        user_id=row["user_id"], name=row["name"], scopes=oauth.caller_scopes(row["scopes"]), expires_at=expires_at
    )


def _expiry(row: rows.Record, secret: GrantSecret) -> datetime | None:
    """The expiry of this access token; None if the grant has no such token."""
    for kind in ("access", "previous_access"):
        if hashes_match(row[f"{kind}_hash"], secret.proof_hash):
            expiry: datetime | None = row[f"{kind}_expires_at"]
            return expiry
    return None


@retried
async def revoke_token(db: Database, token: str, client_id: str, network: str | None) -> None:
    """End the grant of this access token or refresh token. An invalid token changes nothing (RFC 7009)."""
    prefixes = {oauth.ACCESS_PREFIX: "access_hash", oauth.REFRESH_PREFIX: "refresh_hash"}
    for prefix, column in prefixes.items():
        secret = oauth.parse_secret(prefix, token)
        if secret is None:
            continue
        async with db.transaction() as connection:
            row = await _lock(connection, secret)
            if row is not None and row["client_id"] == client_id and hashes_match(row[column], secret.proof_hash):
                await _end(connection, "app_revoked", Caller(user_id=row["user_id"], network=network), row)


async def of_user(driver: Driver, user_id: UUID) -> list[ClientGrant]:
    """The user's grants, the newest first. Those whose code was not exchanged are left out."""
    return [_grant(row) for row in await driver.fetch(OF_USER, user_id)]


@retried
async def revoke(db: Database, grant_id: UUID, caller: Caller) -> None:
    """End one of the caller's grants, and with it all its tokens."""
    async with db.transaction() as connection:
        where = (oauth_grants.c.id == grant_id) & (oauth_grants.c.user_id == caller.user_id)
        row = (await connection.execute(select(oauth_grants).where(where).with_for_update())).first()
        if row is None:
            raise NotFound("There is no such app.")
        await _end(connection, "app_revoked", caller, row._mapping)


async def _end(connection: AsyncConnection, action: str, caller: Caller, row: rows.Record) -> None:
    await connection.execute(delete(oauth_grants).where(oauth_grants.c.id == row["id"]))
    await _record(connection, action, caller, row)


async def _record(connection: AsyncConnection, action: str, caller: Caller, row: Any) -> None:
    await audit.record(
        connection,
        action,
        caller,
        grant=str(row["id"]),
        client=row["client_id"],
        name=row["client_name"],
        resource=row["resource"],
        scopes=list(row["scopes"]),
    )


def _grant(row: rows.Record) -> ClientGrant:
    return ClientGrant(
        id=row["id"],
        client_id=row["client_id"],
        client_name=row["client_name"],
        redirect_host=oauth.redirect_host(row["redirect_uri"]),
        resource=row["resource"],
        scopes=tuple(row["scopes"]),
        created_at=row["created_at"],
        used_at=row["used_at"],
        expires_at=row["expires_at"],
    )


def _invalid_grant() -> OAuthError:
    """The error for every reason, so that an attacker learns nothing."""
    return OAuthError("invalid_grant", "The code or refresh token is invalid, has expired, or was used before.")
