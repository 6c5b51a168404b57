"""Service tokens: secrets with which an application's own backend calls, for itself or for its users.

They are rows of `api_tokens` that name a service. Each service has an account of its own.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import delete, func, insert, select

from khala.domain import ids
from khala.domain.access import SCOPES_OF_SERVICES, SERVICE_SCOPES, Caller, Scope, Service, ServiceScope, key_hash
from khala.domain.accounts import ServiceToken
from khala.domain.errors import Conflict, NotFound
from khala.store.accounts import audit
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import CREDENTIALS_CHANNEL, EVERYTHING, notify
from khala.store.postgres.retries import retried
from khala.store.schema.tables import api_tokens, users

PREFIX = "khala_svc_"
"""The prefix of all service tokens, so that people and secret scanners recognise them."""
ISSUER = "khala:service"
"""The issuer of the identities of services' own accounts. It is no URL, so no provider has it."""
MAX_TOKENS = 100
"""Tokens of one service."""


def user_issuer_of(service: str) -> str:
    """The issuer of the users whom only this service knows."""
    return f"{ISSUER}:{service}"


@retried
async def create(
    db: Database,
    account_id: UUID,
    service: str,
    scopes: Sequence[ServiceScope],
    *,
    user_issuer: str,
    expires_at: datetime | None,
) -> tuple[ServiceToken, str]:
    """A new token of the service with this account, and its secret, which can't be read again."""
    secret = PREFIX + ids.new_secret()
    ordered = [scope for scope in SERVICE_SCOPES if scope in scopes]
    row = {"id": ids.new(), "user_id": account_id, "name": service, "scopes": ordered, "expires_at": expires_at}
    async with db.transaction() as connection:
        await connection.execute(select(users.c.id).where(users.c.id == account_id).with_for_update(key_share=True))
        mine = select(func.count()).where(api_tokens.c.user_id == account_id)
        if (await connection.execute(mine)).scalar_one() >= MAX_TOKENS:
            raise Conflict(f"A service has at most {MAX_TOKENS} tokens. Revoke one first.")
        made = insert(api_tokens).values(**row, secret_hash=key_hash(secret), service=service, user_issuer=user_issuer)
        token = _token((await connection.execute(made.returning(api_tokens))).one()._mapping)
        caller = Caller(user_id=account_id)
        await audit.record(connection, "service_token_made", caller, token=str(token.id), scopes=ordered)
    return token, secret


def caller_of(row: rows.Record) -> Caller:
    """The service's own account, by a row of `api_tokens`."""
    known = frozenset[ServiceScope](scope for scope in SERVICE_SCOPES if scope in row["scopes"])
    service = Service(name=row["service"], token_id=row["id"], scopes=known, user_issuer=row["user_issuer"])
    empty: frozenset[Scope] = frozenset()
    return Caller(
        user_id=row["user_id"],
        name=row["name"],
        credential=row["id"],
        scopes=empty.union(*(SCOPES_OF_SERVICES.get(scope, empty) for scope in known)),
        expires_at=row["expires_at"],
        service=service,
    )


async def all_tokens(driver: Driver) -> list[ServiceToken]:
    """All service tokens, by service, the newest first."""
    query = "SELECT * FROM api_tokens WHERE service IS NOT NULL ORDER BY service, created_at DESC, id DESC"
    return [_token(row) for row in await driver.fetch(query)]


@retried
async def revoke(db: Database, token_id: UUID) -> None:
    """Revoke a service token. Its sockets lose their access, whomever they act for."""
    async with db.transaction() as connection:
        where = (api_tokens.c.id == token_id) & api_tokens.c.service.is_not(None)
        gone = (await connection.execute(delete(api_tokens).where(where).returning(api_tokens.c.user_id))).first()
        if gone is None:
            raise NotFound("There is no such service token.")
        await notify(connection, CREDENTIALS_CHANNEL, EVERYTHING)
        await audit.record(connection, "service_token_revoked", Caller(user_id=gone.user_id), token=str(token_id))


def _token(row: rows.Record) -> ServiceToken:
    return ServiceToken(
        id=row["id"],
        service=row["service"],
        scopes=tuple(row["scopes"]),
        user_issuer=row["user_issuer"],
        created_at=row["created_at"],
        used_at=row["used_at"],
        expires_at=row["expires_at"],
    )
