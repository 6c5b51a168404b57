"""Each migration of a filled database lets writers and readers continue: none waits for a lock for a second."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from khala.store.postgres import migrations
from khala.store.postgres.database import driver_url
from tests.scale.deployment import DeploymentSize
from tests.scale.stage import filled

OLDEST = "0007"
"""The revision from which the upgrades begin."""
SIZE = DeploymentSize.of(500)
MAX_LOCK_WAIT = "1s"
"""The time after which Postgres ends a statement of the traffic that waits for a lock."""
PAUSE_SECONDS = 0.005
"""The time between two statements, so that the migration itself is not delayed by a lack of CPU."""
THREAD = "(SELECT id FROM threads WHERE deleted_at IS NULL AND owner_id IS NOT NULL ORDER BY id LIMIT 1)"
TRAFFIC = {
    "text": f"""
        WITH thread AS (UPDATE threads SET revision = revision + 1 WHERE id = {THREAD} RETURNING id, revision)
        INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
        SELECT gen_random_uuid(), 0, gen_random_uuid(), id, 'text-delta', '{{}}', revision FROM thread
    """,
    "send": f"""
        WITH thread AS (UPDATE threads SET revision = revision + 1 WHERE id = {THREAD} RETURNING id, revision),
        message AS (
            INSERT INTO messages (id, thread_id, position, role, status, revision)
            SELECT gen_random_uuid(), id, 1000000 + revision, 'user', 'final', revision FROM thread RETURNING *
        )
        INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options)
        SELECT gen_random_uuid(), thread_id, id, id, position, revision, thread_id, 'final', '{{}}' FROM message
    """,
    "list": """
        UPDATE listings SET changed_at = now() WHERE (user_id, thread_id) =
            (SELECT user_id, thread_id FROM listings ORDER BY user_id, thread_id LIMIT 1)
    """,
    "usage": """
        UPDATE usage_ledger SET reserved = reserved
        WHERE (run_id, scope, measure) =
            (SELECT run_id, scope, measure FROM usage_ledger ORDER BY run_id, scope, measure LIMIT 1)
    """,
    "read": f"""
        SELECT messages.id, runs.id FROM messages JOIN threads ON threads.id = messages.thread_id
        LEFT JOIN runs ON runs.id = messages.run_id
        WHERE messages.thread_id = {THREAD} ORDER BY messages.position DESC LIMIT 20
    """,
}
"""Statements of the previous and the new version, by what they stand for."""


class Traffic:
    """Repeats each statement of `TRAFFIC` on a connection of its own, and counts the ones that have succeeded."""

    def __init__(self) -> None:
        self.done = dict.fromkeys(TRAFFIC, 0)

    async def repeat(self, url: str, name: str) -> None:
        """Repeat one statement, until cancelled. Raises `LockNotAvailableError` if one waits too long."""
        settings = {"lock_timeout": MAX_LOCK_WAIT, "statement_timeout": "60s"}
        connection = await asyncpg.connect(driver_url(url), server_settings=settings, statement_cache_size=0)
        try:
            while True:
                await connection.execute(TRAFFIC[name])
                self.done[name] += 1
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await connection.close()

    async def pass_by(self) -> None:
        """Wait until each statement has been executed once more."""
        before = dict(self.done)
        async with asyncio.timeout(60):
            while any(self.done[name] == count for name, count in before.items()):
                await asyncio.sleep(0.01)


async def under_traffic(url: str, change: Callable[[], Awaitable[object]]) -> None:
    """Make the change while traffic goes on, before and after it. Raises the error of the traffic, if it has one."""
    traffic = Traffic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(traffic.repeat(url, name)) for name in TRAFFIC]
        await traffic.pass_by()
        await change()
        await traffic.pass_by()
        for task in tasks:
            task.cancel()


@pytest.fixture
async def filled_url(postgres_url: str, template: str) -> AsyncIterator[str]:
    async with filled(postgres_url, SIZE, template=template, progress=lambda _: None) as stage:
        yield stage.url


async def test_no_migration_of_a_filled_database_holds_writers_or_readers_for_a_second(filled_url: str) -> None:
    await migrations.downgrade(filled_url, OLDEST)
    revisions = [revision for revision in migrations.revisions() if revision > OLDEST]
    for revision in [*revisions[:-1], "head"]:
        await under_traffic(filled_url, lambda revision=revision: migrations.upgrade(filled_url, revision))  # type: ignore[misc]


@asynccontextmanager
async def locked(url: str, table: str) -> AsyncIterator[None]:
    """Hold the lock that a rewrite of the table takes."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


async def test_a_lock_of_a_table_for_longer_is_detected(filled_url: str) -> None:
    for table in ("threads", "message_parts", "runs", "messages", "listings", "usage_ledger"):

        async def hold(table: str = table) -> None:
            async with locked(filled_url, table):
                await asyncio.sleep(30)

        with pytest.raises(ExceptionGroup) as found:
            await under_traffic(filled_url, hold)
        assert found.value.subgroup(asyncpg.LockNotAvailableError) is not None, table
