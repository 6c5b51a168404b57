"""Messages are prepared for searches in bounded batches that can be interrupted, and their deletion takes all of it."""

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from khala.domain.search_matches import SearchText
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from khala.store.search import index_lock, indexing, messages, search_queue
from khala.store.threads import threads
from tests.support.store import CALLER, ending, lease_of, new_thread, write

KEEP = RetentionPolicy(idle=timedelta(0))

ADD = """
    INSERT INTO messages (id, thread_id, position, role, status, content, revision)
    SELECT gen_random_uuid(), $1, n, 'user', 'final', jsonb_build_array(
        jsonb_build_object('type', 'text', 'text', format($4, n))), 1
    FROM generate_series($2::int, $3::int) AS n
"""


async def add_messages(db: Database, thread_id: UUID, first: int, last: int, text: str = "word%s") -> None:
    async with db.driver() as driver:
        await driver.execute(ADD, thread_id, first, last, text)


async def queue(db: Database, thread_id: UUID, first: int, last: int) -> None:
    async with db.driver() as driver:
        await search_queue.add(driver, thread_id, first, last)


async def index(db: Database) -> int:
    """Do all that is to do. Returns the number of batches."""
    batches = 1
    while (await indexing.index_next(db)).more:
        batches += 1
    return batches


async def segments(db: Database, thread_id: UUID) -> list[tuple[int, int, int]]:
    async with db.driver() as driver:
        rows = await driver.fetch("SELECT * FROM search_segments WHERE thread_id = $1 ORDER BY 1, 2, 3", thread_id)
    return [(row["first_position"], row["piece"], row["last_position"]) for row in rows]


async def finds(db: Database, word: str) -> set[tuple[UUID, int, int]]:
    async with db.driver() as driver:
        found, _, _ = await messages.find(driver, CALLER, SearchText(word), thread_id=None)
    return {(one.thread_id, one.first_position, one.last_position) for one in found}


async def fetch(db: Database, query: str, *arguments: Any) -> Any:
    async with db.driver() as driver:
        return await driver.fetchval(query, *arguments)


async def test_a_long_thread_is_prepared_in_batches_and_continued_where_it_was(db: Database) -> None:
    thread_id = await new_thread(db)
    await add_messages(db, thread_id, 1, 200)
    await queue(db, thread_id, 1, 200)
    first = await indexing.index_next(db)
    assert (first.messages, first.more) == (indexing.MAX_MESSAGES, True)
    assert await fetch(db, "SELECT first_position FROM search_queue") == 65
    assert await index(db) >= 4
    ranges = await segments(db, thread_id)
    covered = [position for start, _, end in ranges for position in range(start, end + 1)]
    assert sorted(covered) == list(range(1, 201)), "each message is in one segment"
    assert all(end - start < 16 for start, _, end in ranges)
    assert any(start <= 150 <= end for _, start, end in await finds(db, "word150"))


async def test_small_segments_at_the_end_are_made_again_as_larger_ones(db: Database) -> None:
    thread_id = await new_thread(db)
    for first in range(1, 41, 2):
        await add_messages(db, thread_id, first, first + 1)
        await queue(db, thread_id, first, first + 1)
        await index(db)
    ranges = await segments(db, thread_id)
    assert len(ranges) < 20 / 2
    assert sorted(position for start, _, end in ranges for position in range(start, end + 1)) == list(range(1, 41))


async def test_an_answer_that_ends_after_later_messages_is_found(db: Database) -> None:
    thread_id = await new_thread(db)
    await add_messages(db, thread_id, 1, 1)
    await add_messages(db, thread_id, 3, 10)
    await queue(db, thread_id, 1, 10)
    await index(db)
    await add_messages(db, thread_id, 2, 2, "late%s")
    await queue(db, thread_id, 1, 2)
    await index(db)
    assert await finds(db, "late2") == {(thread_id, 1, 10)}
    assert await segments(db, thread_id) == [(1, 0, 10)]


async def test_a_message_of_any_length_is_prepared_in_pieces(db: Database) -> None:
    thread_id = await new_thread(db)
    await add_messages(db, thread_id, 1, 1, "%s" + " filler" * 4_000 + " hindmost" + " beyond" * 2_000)
    await queue(db, thread_id, 1, 1)
    await index(db)
    assert [piece for _, piece, _ in await segments(db, thread_id)] == [0, 1, 2, 3]
    assert await finds(db, "hindmost") == {(thread_id, 1, 1)}


async def test_the_walk_finds_messages_that_nobody_queued(db: Database) -> None:
    for _ in range(3):
        await add_messages(db, await new_thread(db), 1, 3, "archive%s")
    await index(db)
    assert len(await finds(db, "archive2")) == 3
    assert await index(db) == 1
    assert await fetch(db, "SELECT ended_at IS NOT NULL FROM search_walk")
    await add_messages(db, await new_thread(db), 1, 1, "archive%s")
    assert await index(db) == 1, "the next walk is due in a day"
    await fetch(db, "UPDATE search_walk SET ended_at = now() - interval '25 hours' RETURNING 1")
    await index(db)
    assert len(await finds(db, "archive1")) == 4


async def test_only_one_process_prepares_messages_and_none_waits_for_it(db: Database) -> None:
    thread_id = await new_thread(db)
    await add_messages(db, thread_id, 1, 1)
    await queue(db, thread_id, 1, 1)
    async with db.driver() as driver, driver.transaction():
        await index_lock.lock(driver)
        async with asyncio.timeout(5):
            assert await indexing.index_next(db) == indexing.BatchResult()
    assert (await indexing.index_next(db)).messages == 1


async def test_deletions_and_resets_take_the_segments(db: Database) -> None:
    deleted, reset, other = [await new_thread(db) for _ in range(3)]
    for thread_id in (deleted, reset, other):
        await add_messages(db, thread_id, 1, 20)
        await queue(db, thread_id, 1, 20)
    await index(db)
    await threads.remove(db, deleted, CALLER)
    await threads.reset(db, reset, CALLER, welcome="")
    await purge(db, KEEP)
    assert (await segments(db, deleted), await segments(db, reset)) == ([], [])
    assert len(await segments(db, other)) == 2
    await queue(db, deleted, 1, 20)
    await queue(db, reset, 1, 20)
    await index(db)
    assert (await segments(db, deleted), await segments(db, reset)) == ([], []), "what is gone is not prepared again"


async def test_a_search_reads_a_bounded_number_of_pages_whatever_there_is(db: Database) -> None:
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO threads (id, anon_key_hash, created_at) SELECT gen_random_uuid(), $1,"
            " now() - n * interval '1 second' FROM generate_series(1, 8000) AS n",
            CALLER.anon_key_hash,
        )
        await driver.execute(
            "INSERT INTO search_segments (thread_id, first_position, piece, last_position, signature)"
            " SELECT id, n, 0, n, decode(repeat('00', 256), 'hex') FROM threads, generate_series(1, 2) AS n"
        )
        await driver.execute("ANALYZE threads, search_segments")
        asked = SearchText("one two three")
        plans: list[int] = []

        async def explain(query: str, *arguments: Any) -> Any:
            plan = await driver.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *arguments)
            (top,) = json.loads(plan)
            plans.append(top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"])
            return []

        recorder: Any = type("Recorder", (), {"fetch": staticmethod(explain)})()
        await messages.find(recorder, CALLER, asked, thread_id=None)
        thread_id = await new_thread(db)
        await messages.find(recorder, CALLER, asked, thread_id=thread_id)
    everywhere, in_thread = plans
    assert everywhere <= 6 * messages.MAX_THREADS, "a few pages for each thread, of the newest threads"
    assert in_thread < 50


async def test_a_new_message_of_a_run_is_queued_with_its_answer(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    assert not await fetch(db, "SELECT EXISTS (SELECT FROM search_queue)")
    await write(db, ending(lease, 0, ()))
    assert await fetch(db, "SELECT id FROM search_queue") == lease.run_id
    assert (await indexing.index_next(db)).messages == 2


async def test_the_task_of_a_step_is_not_found_and_its_answer_is(db: Database) -> None:
    thread_id = await new_thread(db)
    await add_messages(db, thread_id, 1, 1, "tasked%s")
    await add_messages(db, thread_id, 2, 2, "answered%s")
    query = "UPDATE messages SET step = '{}', role = $2 WHERE thread_id = $1 AND position = $3 RETURNING 1"
    await fetch(db, query, thread_id, "user", 1)
    await fetch(db, query, thread_id, "assistant", 2)
    await queue(db, thread_id, 1, 2)
    await index(db)
    assert await finds(db, "tasked1") == set()
    assert {first for _, first, _ in await finds(db, "answered2")} == {2}
