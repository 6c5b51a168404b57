"""Tokens of remote workers, made by the operator for an account."""

from collections.abc import Sequence
from datetime import datetime

from khala.domain.access import Caller
from khala.domain.errors import NotFound
from khala.store.accounts import api_tokens
from khala.store.accounts.account_names import find_account
from khala.store.agents import agents as agent_store
from khala.store.postgres.database import Database


async def create(db: Database, account: str, name: str, agents: Sequence[str], expires_at: datetime | None) -> str:
    """Make a token for a worker of these agents of the account, and return its secret.

    `account` is an id or an e-mail address. Raises `NotFound` and `Conflict`.
    """
    async with db.driver() as driver:
        user_id = await find_account(driver, account)
        for agent in agents:
            found = await agent_store.find(driver, user_id, agent)
            if found is None or found.agent.executor != "remote":
                raise NotFound(f"The account has no remote agent {agent}. Create it with the executor `remote` first.")
    _, secret = await api_tokens.create(db, Caller(user_id=user_id), name, ["execute"], expires_at, agents)
    return secret
