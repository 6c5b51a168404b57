"""Measurement of the search of past messages."""

from datetime import UTC, datetime

from khala.domain.access import Caller
from khala.domain.search_matches import SearchText
from khala.store.search import messages
from tests.scale.deployment import COLLECTOR_ID, HISTORIAN_ID
from tests.scale.figures import Figure, usage_figures
from tests.scale.stage import ScaleStage

SEARCHED_THREADS = 2
INDEX = """
    INSERT INTO search_segments (thread_id, first_position, piece, last_position, signature)
    SELECT thread_id, min(position), 0, max(position), decode(repeat('ff', 256), 'hex')
    FROM messages JOIN threads ON threads.id = thread_id WHERE deleted_at IS NULL GROUP BY thread_id
"""
"""One segment for each thread, which matches every word: no search reads more of a segment."""
OWNER = """
    SELECT owner_id FROM threads WHERE deleted_at IS NULL AND owner_id <> ALL ($1::uuid[])
    GROUP BY owner_id HAVING count(*) = $2 ORDER BY owner_id LIMIT 1
"""


async def measure_search(stage: ScaleStage) -> list[Figure]:
    """A search of a user with few threads, where all threads have a segment that matches."""
    async with stage.connection() as driver:
        await driver.execute(INDEX)
        await driver.execute("ANALYZE search_segments")
        owner_id = await driver.fetchval(OWNER, [COLLECTOR_ID, HISTORIAN_ID], SEARCHED_THREADS)
    assert owner_id is not None, "no user has so many threads"
    caller, asked, until = Caller(user_id=owner_id), SearchText("thread"), datetime.now(UTC)

    async def search() -> None:
        async with stage.db.driver() as driver:
            candidates, _, scanned = await messages.find(driver, caller, asked, thread_id=None)
            assert (len(candidates), scanned) == (SEARCHED_THREADS, SEARCHED_THREADS)
            assert await messages.read(driver, caller, candidates, until=until)

    usage = await stage.meter.repeated(search)
    async with stage.connection() as driver:
        await driver.execute("TRUNCATE search_segments")
    return usage_figures("search of messages", f"{stage.size.threads:,} threads of all", usage)
