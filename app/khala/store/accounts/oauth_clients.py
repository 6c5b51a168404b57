"""Programs that have registered as OAuth clients of the MCP server (RFC 7591)."""

from khala.domain.errors import Unavailable
from khala.domain.oauth import OAuthClient
from khala.store.postgres.database import Database, Driver

MAX_CLIENTS = 10_000
"""Clients that are registered at once, in all."""
RETRY_AFTER_SECONDS = 3600.0
IS_UNUSED = """
    created_at < now() - interval '1 day' AND coalesce(used_at < now() - interval '90 days', true) AND NOT EXISTS (
        SELECT FROM oauth_grants WHERE oauth_grants.client_id = oauth_clients.id)
"""
"""The condition of clients that are deleted: a day after nobody has allowed them access, or 90 days after the last one
did, if they have none any more."""

INSERT = """
    INSERT INTO oauth_clients (id, name, redirect_uris)
    SELECT $1, $2, $3 WHERE (SELECT count(*) FROM oauth_clients) < $4 RETURNING true
"""


async def register(db: Database, client: OAuthClient) -> None:
    """Store a new client. Raises `Unavailable` if there are too many."""
    async with db.driver() as driver:
        if not await driver.fetchval(INSERT, client.id, client.name, list(client.redirect_uris), MAX_CLIENTS):
            raise Unavailable("Too many apps have registered here. Try again later.", retry_after=RETRY_AFTER_SECONDS)


async def find(driver: Driver, client_id: str) -> OAuthClient | None:
    """The registered client with this id, if there is one."""
    row = await driver.fetchrow("SELECT id, name, redirect_uris FROM oauth_clients WHERE id = $1", client_id)
    return row and OAuthClient(id=row["id"], name=row["name"], redirect_uris=tuple(row["redirect_uris"]))


async def mark_used(driver: Driver, client_id: str) -> None:
    """Record that somebody allows the client access. Does nothing for a client that is not registered."""
    await driver.execute("UPDATE oauth_clients SET used_at = now() WHERE id = $1", client_id)
