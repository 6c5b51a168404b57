"""Reads the rows of an account's archive in pages, so that a large account needs little memory."""

from collections.abc import AsyncIterator
from uuid import UUID

from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record


async def read_pages(
    driver: Driver, name: str, query: str, user_id: UUID, page: int = 500
) -> AsyncIterator[list[Record]]:
    """The rows of a query, `page` at a time. The caller has an open transaction, and reads one query after another."""
    await driver.execute(f"DECLARE archive_{name} NO SCROLL CURSOR FOR {query}", user_id)
    # A name for each kind: the driver caches the columns of a FETCH by its statement.
    while found := await driver.fetch(f"FETCH {page} FROM archive_{name}"):
        yield found
    await driver.execute(f"CLOSE archive_{name}")
