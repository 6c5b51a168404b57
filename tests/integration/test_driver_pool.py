"""The pool of the driver's connections."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from khala.domain.errors import Unavailable
from khala.store.postgres import driver_pool
from khala.store.postgres.database import Database, Driver, driver_url
from khala.store.postgres.driver_pool import DriverPool

MOST = 2
SHORT_SECONDS = 0.05


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[DriverPool]:
    """A pool of two connections."""

    async def connect() -> Driver:
        return await asyncpg.connect(driver_url(database_url))

    pool = DriverPool(connect, MOST)
    yield pool
    await pool.close(SHORT_SECONDS)


async def test_a_connection_is_used_again_and_no_more_than_the_limit_are_handed_out(pool: DriverPool) -> None:
    first, second = await pool.acquire(1), await pool.acquire(1)
    with pytest.raises(TimeoutError):
        await pool.acquire(SHORT_SECONDS)
    waiting = asyncio.create_task(pool.acquire(5))
    await asyncio.sleep(0)
    pool.release(second)
    assert await waiting is second
    pool.release(second)
    pool.release(first)
    assert pool.in_use == 0
    assert await pool.acquire(1) is first, "the one that was returned last"
    pool.release(first)


async def test_a_connection_in_a_transaction_or_without_a_session_is_not_handed_out_again(pool: DriverPool) -> None:
    left_open, ended = await pool.acquire(1), await pool.acquire(1)
    await left_open.execute("BEGIN")
    pool.release(left_open)
    pool.release(ended)
    ended.terminate()
    fresh = [await pool.acquire(1), await pool.acquire(1)]
    assert left_open not in fresh
    assert ended not in fresh
    assert [await connection.fetchval("SELECT 1") for connection in fresh] == [1, 1]
    for connection in fresh:
        pool.release(connection)


async def test_old_connections_are_replaced_and_idle_ones_closed(
    pool: DriverPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await pool.acquire(1)
    monkeypatch.setattr(driver_pool, "MAX_AGE_SECONDS", 0.0)
    pool.release(old)
    assert old.is_closed()
    monkeypatch.undo()
    monkeypatch.setattr(driver_pool, "MAX_IDLE_SECONDS", SHORT_SECONDS)
    idle = await pool.acquire(1)
    pool.release(idle)
    async with asyncio.timeout(5):
        while not idle.is_closed():
            await asyncio.sleep(SHORT_SECONDS)


async def test_a_failed_connection_takes_no_place() -> None:
    async def refuse() -> Driver:
        raise ConnectionRefusedError

    broken = DriverPool(refuse, 1)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await broken.acquire(SHORT_SECONDS)


async def test_closing_waits_for_connections_in_use_and_then_terminates_them(database_url: str) -> None:
    db = Database(database_url)
    async with db.driver() as driver:
        idle_closed = asyncio.create_task(db.close())
        await asyncio.sleep(SHORT_SECONDS)
        assert not driver.is_closed()
        assert await driver.fetchval("SELECT 1") == 1
    await idle_closed
    assert driver.is_closed()
    with pytest.raises(Unavailable):
        async with db.driver():
            raise AssertionError("unreachable")


async def test_closing_terminates_connections_that_are_not_returned_in_time(pool: DriverPool) -> None:
    kept = await pool.acquire(1)
    await pool.close(SHORT_SECONDS)
    assert kept.is_closed()
    pool.release(kept)
    assert pool.in_use == 0
