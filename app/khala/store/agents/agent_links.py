"""Links that share agents: one for each shared agent. Only the hash of a link is stored."""

from uuid import UUID

from khala.domain import ids
from khala.domain.access import key_hash
from khala.domain.agents import LINK_MARK
from khala.store.agents import agents
from khala.store.agents.agents import StoredAgent
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.threads import thread_lists

REPLACE = """
    INSERT INTO agent_links (user_id, name, key_hash) VALUES ($1, $2, $3)
    ON CONFLICT (user_id, name) DO UPDATE SET key_hash = excluded.key_hash, created_at = excluded.created_at
"""
FIND = "SELECT user_id, name FROM agent_links WHERE key_hash = $1"


@retried
async def replace(db: Database, user_id: UUID, name: str) -> str:
    """Make a link to the user's agent, and return it. The link from before stops working. Raises `NotFound`."""
    link = f"{LINK_MARK}{ids.new_secret()}"
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        await agents.current(driver, user_id, name)
        await driver.execute(REPLACE, user_id, name, key_hash(link))
    return link


@retried
async def remove(db: Database, user_id: UUID, name: str) -> None:
    """Revoke the agent's link, if it has one. Raises `NotFound` if there is no such agent."""
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        await agents.current(driver, user_id, name)
        await driver.execute(agents.DELETE_LINK, user_id, name)


async def find(driver: Driver, link: str) -> StoredAgent | None:
    """The current version of the agent that has this link."""
    row = await driver.fetchrow(FIND, key_hash(link))
    return None if row is None else await agents.find(driver, row["user_id"], row["name"])
