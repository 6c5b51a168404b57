"""Finds the account that an operator names, by its id or by an e-mail address."""

from uuid import UUID

from khala.domain.errors import Conflict, NotFound
from khala.store.postgres.database import Driver

BY_ADDRESS = """
    SELECT user_id FROM passwords WHERE email = $1 UNION SELECT user_id FROM identities WHERE email = $1
    ORDER BY user_id LIMIT 10
"""


async def find_account(driver: Driver, account: str) -> UUID:
    """The account with this id or address. Raises `NotFound`, and `Conflict` if several have the address."""
    named = as_id(account)
    if named is None:
        rows = await driver.fetch(BY_ADDRESS, account.strip().lower())
        found: list[UUID] = [row["user_id"] for row in rows]
    else:
        found = [named]
    if len(found) > 1:
        raise Conflict(f"Several accounts have this address. Name one by its id: {', '.join(map(str, found))}.")
    if not found or not await driver.fetchval("SELECT true FROM users WHERE id = $1", found[0]):
        raise NotFound(f"There is no account {account}.")
    return found[0]


def as_id(account: str) -> UUID | None:
    """The name as an id; None if it is none."""
    try:
        return UUID(account.strip())
    except ValueError:
        return None
