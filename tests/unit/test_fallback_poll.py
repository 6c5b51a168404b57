"""The fallback poll: everything is read again when the database's snapshot has changed, and only then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from khala.domain.errors import Unavailable
from khala.live import fallback_poll
from khala.live.fallback_poll import SNAPSHOT, FallbackPoll


class ScriptedDatabase:
    """A database that goes through these snapshots; None means unavailable."""

    def __init__(self, snapshots: Sequence[str | None]) -> None:
        self._left = list(snapshots)
        self.asked = 0
        self.done = asyncio.Event()

    @contextlib.asynccontextmanager
    async def driver(self) -> AsyncIterator["ScriptedDatabase"]:
        yield self

    async def fetchval(self, query: str) -> str:
        assert query == SNAPSHOT
        if not self._left:
            self.done.set()
            await asyncio.Event().wait()
        self.asked += 1
        now = self._left.pop(0)
        if now is None:
            raise Unavailable("Away.") from OSError("away")
        return now


def poll_of(moving: ScriptedDatabase, watching: Callable[[], bool], look_again: Callable[[], None]) -> FallbackPoll:
    return FallbackPoll(moving, watching, look_again)  # type: ignore[arg-type]  # as much of a database as it needs


async def count_reads(snapshots: Sequence[str | None]) -> int:
    """The number of full reads while the database goes through these snapshots."""
    moving, reads = ScriptedDatabase(snapshots), list[None]()
    polling = asyncio.create_task(poll_of(moving, lambda: True, lambda: reads.append(None)).run())
    async with asyncio.timeout(5):
        await moving.done.wait()
    polling.cancel()
    assert moving.asked == len(snapshots)
    return len(reads)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("snapshots", "count"),
    [
        (["1:1:"], 1),
        (["1:1:"] * 100, 1),
        (["1:1:", "1:2:", "1:2:", "2:2:"], 3),
        (["5:9:5,7", "5:9:5,7", "5:9:5"], 2),
        (["1:1:", None, "1:1:"], 1),
        (["1:1:", None, "1:2:"], 2),
        ([None, None], 0),
    ],
)
async def test_everything_is_reread_after_a_commit_and_only_then(snapshots: Sequence[str | None], count: int) -> None:
    assert await count_reads(snapshots) == count


async def test_without_observers_the_database_is_not_queried() -> None:
    moving, turns = ScriptedDatabase(["1:1:"]), 0
    enough = asyncio.Event()

    def watching() -> bool:
        nonlocal turns
        turns += 1
        if turns == 50:
            enough.set()
        return False

    polling = asyncio.create_task(poll_of(moving, watching, lambda: None).run())
    async with asyncio.timeout(5):
        await enough.wait()
    polling.cancel()
    assert moving.asked == 0
