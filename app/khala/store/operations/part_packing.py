"""Packs the parts of runs that ended long ago, a batch at a time, oldest runs first."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.signals import metrics
from khala.store.postgres.database import Driver, driver_of
from khala.store.runs import packed_parts
from khala.store.runs.packed_parts import PackCandidate

MAX_BATCH_PARTS = 1000
"""Parts that one transaction packs. A run with more is packed by a transaction of its own."""
PACKED_RUNS = "packed runs"


class PartPacker:
    """One pass over the runs that have parts as rows. Runs that ended longer than `age` ago are packed.

    A pass needs no state of an earlier one: runs that are packed have no rows, so each pass begins at the oldest run
    that is left. A run that is skipped, because its thread is locked, is left for the next pass.
    """

    def __init__(self, age: timedelta) -> None:
        self._age = age
        self._after = UUID(int=0)
        # A run ends after it begins, so a due run is older than this.
        self._before = ids.before(datetime.now(UTC) - age)

    async def pack_next(self, connection: AsyncConnection) -> Mapping[str, int]:
        """Pack some due runs, in the transaction of the caller. Returns nothing at the end of the pass."""
        driver = await driver_of(connection)
        while page := await packed_parts.candidates(driver, self._after, self._before, self._age):
            batch = _first_batch(candidate for candidate in page if candidate.due)
            self._after = batch[-1].id if batch else page[-1].id
            if packed := await _pack(driver, batch):
                return {PACKED_RUNS: packed}
        return {}


def _first_batch(due: Iterable[PackCandidate]) -> list[PackCandidate]:
    batch: list[PackCandidate] = []
    parts = 0
    for candidate in due:
        parts += candidate.seq or 0
        if batch and parts > MAX_BATCH_PARTS:
            break
        batch.append(candidate)
    return batch


async def _pack(driver: Driver, batch: list[PackCandidate]) -> int:
    if not batch:
        return 0
    runs, parts = await packed_parts.pack_runs(driver, batch)
    metrics.PACKED_PARTS.inc(parts)
    return runs
