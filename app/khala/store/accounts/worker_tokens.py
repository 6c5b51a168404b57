"""Tokens of remote workers, made by the operator for an account."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from khala.domain.access import Caller
from khala.domain.errors import Conflict, NotFound
from khala.store.accounts import api_tokens
from khala.store.agents import agents as agent_store
from khala.store.postgres.database import Database, Driver

BY_ADDRESS = """
    SELECT user_id FROM passwords WHERE email = $1 UNION SELECT user_id FROM identities WHERE email = $1
    ORDER BY user_id LIMIT 2
"""


async def create(db: Database, account: str, name: str, agents: Sequence[str], expires_at: datetime | None) -> str:
    """Make a token for a worker of these agents of the account, and return its secret.

    `account` is an id or an e-mail address. Raises `NotFound` and `Conflict`.
    """
    async with db.driver() as driver:
        user_id = await _find_account(driver, account)
        for agent in agents:
            found = await agent_store.find(driver, user_id, agent)
            if found is None or found.agent.executor != "remote":
                raise NotFound(f"The account has no remote agent {agent}. Create it with the executor `remote` first.")
    _, secret = await api_tokens.create(db, Caller(user_id=user_id), name, ["execute"], expires_at, agents)
    return secret


async def _find_account(driver: Driver, account: str) -> UUID:
    """The account with this id or address. Raises `NotFound`, and `Conflict` if several have the address."""
    try:
        found = [row["id"] for row in await driver.fetch("SELECT id FROM users WHERE id = $1", UUID(account))]
    except ValueError:
        found = [row["user_id"] for row in await driver.fetch(BY_ADDRESS, account)]
    if len(found) > 1:
        raise Conflict("Several accounts have this address. Use the id of one.")
    if not found:
        raise NotFound(f"There is no account {account}.")
    user_id: UUID = found[0]
    return user_id
