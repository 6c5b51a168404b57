"""Transactions that delete much write their page images without the slow compression, where they may choose it."""

from datetime import timedelta

import pytest

from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres import page_images
from khala.store.postgres.database import Database, Driver
from tests.support.store import new_thread

COMPRESSION = "SELECT current_setting('wal_compression')"
AGE = "UPDATE threads SET created_at = now() - interval '8 days', updated_at = now() - interval '8 days' WHERE id = $1"
LOG_COMPRESSION = """
    CREATE TABLE seen (compression text);
    CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO seen VALUES (current_setting('wal_compression')); RETURN NULL; END $$;
    CREATE TRIGGER see AFTER DELETE ON messages FOR EACH STATEMENT EXECUTE FUNCTION see();
"""


async def methods(driver: Driver) -> list[str]:
    query = "SELECT enumvals FROM pg_settings WHERE name = 'wal_compression'"
    return [method for method in await driver.fetchval(query) if method not in ("on", "off")]


async def test_a_purge_deletes_without_pglz(db: Database) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    async with db.driver() as driver:
        before = await driver.fetchval(COMPRESSION)
        await driver.execute(LOG_COMPRESSION)
        await driver.execute(AGE, thread_id)
    assert (await purge(db, RetentionPolicy(idle=timedelta(days=7))))["messages"] == 1
    async with db.driver() as driver:
        seen = {row["compression"] for row in await driver.fetch("SELECT compression FROM seen")}
        assert seen == {"off" if before == "pglz" else before}
        assert await driver.fetchval(COMPRESSION) == before


async def test_only_pglz_is_switched_off_and_only_until_the_transaction_ends(db: Database) -> None:
    async with db.driver() as driver:
        for method in await methods(driver):
            await driver.execute(f"SET wal_compression = '{method}'")
            async with driver.transaction():
                await page_images.leave_uncompressed(driver)
                assert await driver.fetchval(COMPRESSION) == ("off" if method == "pglz" else method)
            assert await driver.fetchval(COMPRESSION) == method
        await driver.execute("RESET wal_compression")


@pytest.mark.parametrize("granted", [False, True])
async def test_a_role_needs_the_privilege_to_set_it(db: Database, granted: bool) -> None:
    async with db.driver() as driver:
        transaction = driver.transaction()
        await transaction.start()
        try:
            await driver.execute("SET LOCAL wal_compression = 'pglz'")
            await driver.execute("CREATE ROLE plain")
            if granted:
                await driver.execute("GRANT SET ON PARAMETER wal_compression TO plain")
            await driver.execute("SET LOCAL ROLE plain")
            await page_images.leave_uncompressed(driver)
            assert await driver.fetchval(COMPRESSION) == ("off" if granted else "pglz")
        finally:
            await transaction.rollback()
