"""Searches of one process are bounded."""

import asyncio
from typing import Any

import pytest

from khala.domain.access import Caller
from khala.domain.errors import InvalidInput, Unavailable
from khala.domain.search_results import Cursor
from khala.memory.memory_service import MemoryService
from khala.search import search_service
from khala.search.search_service import MAX_SEARCHES, SearchService
from khala.store.postgres.database import Database
from tests.support.blobs import new_blob_service


async def test_a_few_searches_run_some_wait_and_further_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_service, "MAX_WAITING", 2)
    db = Database("postgresql://nobody@127.0.0.1:9/none")
    service = SearchService(db, MemoryService(db, None), new_blob_service(db), enabled=True)
    active: list[int] = []
    finish = asyncio.Event()

    async def find(*_: Any) -> tuple[list[Any], dict[str, float]]:
        active.append(1)
        await finish.wait()
        return [], {}

    monkeypatch.setattr(service, "_find", find)

    async def search() -> Any:
        return await service.search(Caller(), "word", thread_id=None, kind=None, cursor=None, limit=1)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(search()) for _ in range(MAX_SEARCHES + 2)]
        await asyncio.sleep(0)
        assert len(active) == MAX_SEARCHES
        with pytest.raises(Unavailable):
            await search()
        finish.set()
    assert [task.result() for task in tasks] == [([], None)] * (MAX_SEARCHES + 2)
    assert await search() == ([], None)
    await db.close()


@pytest.mark.parametrize(
    "forged",
    [
        '["0001-01-01T00:00:00+14:00", 0, "", ""]',
        '["9999-12-31T23:59:59-14:00", 0, "", ""]',
        f'["2026-01-01T00:00:00Z", 0, "", "", {"[" * 1_900}',
    ],
    ids=["before all times", "after all times", "nested"],
)
def test_a_forged_cursor_is_refused(forged: str) -> None:
    with pytest.raises(InvalidInput):
        Cursor.read(forged.encode().hex())
