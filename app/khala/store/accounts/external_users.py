"""Users whom an issuer of JWTs or a service identifies: the first request creates their account."""

from uuid import UUID

import msgspec

from khala.domain.access import AdminFacts, Caller
from khala.domain.accounts import Identity
from khala.domain.errors import Forbidden, Unauthorized
from khala.store.accounts import accounts
from khala.store.accounts.account_marks import BLOCKED
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried

KNOWN = """
    SELECT users.id, users.name, users.blocked_at, users.budget_plan, identities.email
    FROM identities JOIN users ON users.id = identities.user_id WHERE issuer = $1 AND subject = $2
"""
ADMIN_FACTS = """
    SELECT admin, ARRAY(
        SELECT email FROM identities WHERE identities.user_id = users.id AND email IS NOT NULL) AS emails
    FROM users WHERE id = $1
"""


class ExternalUser(msgspec.Struct, frozen=True, kw_only=True):
    """The account of an external user."""

    id: UUID
    name: str | None


async def find_or_create(
    db: Database, identity: Identity, caller: Caller, *, plan: str | msgspec.UnsetType | None = msgspec.UNSET
) -> ExternalUser:
    """The account with this identity. Stores the verified address and the budget `plan`, unless that is UNSET.

    Raises `Forbidden` for a blocked account. An address never selects the account.
    """
    async with db.driver() as driver:
        row = await driver.fetchrow(KNOWN, identity.issuer, identity.subject)
    if row is None:
        await accounts.of_identity(db, identity, caller)
        async with db.driver() as driver:
            row = await driver.fetchrow(KNOWN, identity.issuer, identity.subject)
        if row is None:
            raise Unauthorized("This account was deleted just now.")
    if row["blocked_at"] is not None:
        raise Forbidden(BLOCKED)
    if plan is not msgspec.UNSET and plan != row["budget_plan"]:
        await _set_plan(db, row["id"], plan)
    if identity.email is not None and identity.email != row["email"]:
        await _set_email(db, identity)
    return ExternalUser(id=row["id"], name=row["name"])


@retried
async def _set_plan(db: Database, user_id: UUID, plan: str | None) -> None:
    async with db.driver() as driver:
        await driver.execute("UPDATE users SET budget_plan = $2 WHERE id = $1", user_id, plan)


@retried
async def _set_email(db: Database, identity: Identity) -> None:
    async with db.driver() as driver:
        query = "UPDATE identities SET email = $3 WHERE issuer = $1 AND subject = $2"
        await driver.execute(query, identity.issuer, identity.subject, identity.email)


async def admin_facts(driver: Driver, user_id: UUID) -> AdminFacts:
    """The stored facts that decide whether the user is an administrator."""
    row = await driver.fetchrow(ADMIN_FACTS, user_id)
    return (
        AdminFacts(admin=False, emails=())
        if row is None
        else AdminFacts(admin=row["admin"], emails=tuple(row["emails"]))
    )
