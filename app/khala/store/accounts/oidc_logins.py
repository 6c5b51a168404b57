"""Pending logins at the OpenID Provider: stores their state until the browser returns, to any process."""

from datetime import timedelta
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, insert

from khala.domain.access import key_hash
from khala.store.postgres.database import Database
from khala.store.postgres.retries import retried
from khala.store.schema.tables import oidc_logins

LIFETIME = timedelta(minutes=10)
"""The time that a user has to sign in at the provider."""


class PendingLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A pending login. `user_id` is the account to link the identity to; None for a sign-in."""

    nonce: str
    verifier: str
    return_to: str
    user_id: UUID | None = None


@retried
async def store(db: Database, state: str, pending: PendingLogin) -> None:
    """Store the login by the state that the browser will return."""
    async with db.transaction() as connection:
        row = msgspec.structs.asdict(pending)
        await connection.execute(
            insert(oidc_logins).values(state_hash=key_hash(state), expires_at=func.now() + LIFETIME, **row)
        )


@retried
async def take(db: Database, state: str) -> PendingLogin | None:
    """Remove and return the login with this state; None if there is none or it has expired."""
    async with db.transaction() as connection:
        where = oidc_logins.c.state_hash == key_hash(state)
        deleted = await connection.execute(
            delete(oidc_logins).where(where).returning(oidc_logins, func.now().label("at"))
        )
        row = deleted.first()
    if row is None or row.expires_at < row.at:
        return None
    return PendingLogin(nonce=row.nonce, verifier=row.verifier, return_to=row.return_to, user_id=row.user_id)
