"""Finds accounts by the address with which they sign in. Attempts are counted, so that nobody tries many addresses."""

from uuid import UUID

from khala.domain.access import Caller
from khala.domain.errors import NotFound, RateLimited, ReachedLimit
from khala.domain.invitations import MAX_SENT_PER_DAY
from khala.store.budgets import counters
from khala.store.postgres.database import Database

SCOPE = "address_lookups"
DAY_SECONDS = 86_400

BY_ADDRESS = """
    SELECT users.id FROM users WHERE id IN (
        SELECT user_id FROM identities WHERE email = $1
        UNION SELECT user_id FROM passwords WHERE email = $1 AND $2
    ) AND blocked_at IS NULL
      AND NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = users.id)
    ORDER BY id LIMIT 2
"""


async def find(db: Database, caller: Caller, email: str, *, trusts_passwords: bool) -> UUID:
    """The one account with this normalized address: by an identity whose provider has verified it, or by a password.

    Raises `NotFound`, also if several accounts have the address, and `RateLimited` after too many attempts of the day.
    """
    wait = await counters.count(db, SCOPE, _seeker_key(caller), "tries", MAX_SENT_PER_DAY, window_seconds=DAY_SECONDS)
    if wait is not None:
        limit = ReachedLimit("invitations_per_day", "account", MAX_SENT_PER_DAY)
        raise RateLimited("You have tried too many addresses today.", limit=limit, retry_after=wait)
    async with db.driver() as driver:
        found = await driver.fetch(BY_ADDRESS, email, trusts_passwords)
    if len(found) != 1:
        raise NotFound("No account can be invited by this address. Share a link instead.")
    user_id: UUID = found[0]["id"]
    return user_id


def _seeker_key(caller: Caller) -> bytes:
    """The account that tries addresses, or the network of a guest, who can create any number of keys."""
    return (caller.network or "").encode() if caller.user_id is None else caller.user_id.bytes
