"""Private keys of the deployment. Each is created by the process that needs it first, and read by all others."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from khala.store.postgres.database import Database

KeyTable: TypeAlias = Literal["push_keys", "stream_signing_keys"]


async def read_or_create(db: Database, table: KeyTable, create: Callable[[], bytes]) -> bytes:
    """Return the newest key of the table. If it has none, the key that `create` returns is stored."""
    query = f"SELECT private_key FROM {table} ORDER BY created_at DESC, id LIMIT 1"
    async with db.driver() as driver:
        stored: bytes | None = await driver.fetchval(query)
        if stored is None:
            insert = f"INSERT INTO {table} (id, private_key) VALUES ('first', $1) ON CONFLICT DO NOTHING"
            await driver.execute(insert, create())
            # Another process may have been first.
            stored = await driver.fetchval(query)
    assert stored is not None
    return stored
