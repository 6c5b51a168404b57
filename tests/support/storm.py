"""A run with hundreds of calls at once, whose parts a test writes itself, as fast as it likes."""

import asyncio
import time
from uuid import UUID

from khala.domain.fold import fold
from khala.domain.parts import PartData, Step, ToolCall, ToolResult, ToolStatus
from khala.store.postgres.database import Database
from khala.store.runs.leases import Lease
from tests.support.store import batch, claim, ending, write

CALLS_PER_STEP = 250
MAX_PARTS_PER_TRANSACTION = 250
"""For all transactions but those of `rage`."""
BUSY_MACHINE_SECONDS = 60.0
"""Added to the time that the updates of `rage` take on a free machine."""


class Storm:
    """The calls of one run, which waits in the database for an executor: this is it."""

    def __init__(self, db: Database, lease: Lease, tasks: int) -> None:
        self.tasks = tasks
        self.updates = 0
        self._db = db
        self._lease = lease
        self._parts: list[PartData] = []

    @classmethod
    async def of(cls, db: Database, run_id: UUID, *, tasks: int) -> "Storm":
        """Claim this run, so that nobody else writes it."""
        lease = next(one.lease for one in await claim(db, lease=600) if one.lease.run_id == run_id)
        return cls(db, lease, tasks)

    async def begin(self, *, each: int = CALLS_PER_STEP) -> None:
        """Tell all calls, in rounds of `each`."""
        for first in range(0, self.tasks, each):
            step = first // each + 1
            ids = range(first, min(first + each, self.tasks))
            await self._tell(Step(step=step, max_steps=20, tool_count=len(ids)))
            calls = [ToolCall(tool_call_id=f"call-{i}", step=step, tool="grep", args={"pattern": f"n{i}"}) for i in ids]
            await self._tell(*calls)

    async def rage(self, seconds: float, *, each: int = 20, every: float = 0.016) -> None:
        """Say of `each` calls, every so many seconds, how far they are."""
        begin = time.monotonic()
        async with asyncio.timeout(seconds + BUSY_MACHINE_SECONDS):
            for tick in range(round(seconds / every)):
                await self._tell(*(self._progress((tick * each + i) % self.tasks, tick) for i in range(each)))
                self.updates += each
                await asyncio.sleep(max(0.0, begin + (tick + 1) * every - time.monotonic()))

    async def end(self) -> None:
        """All calls come to a result, and the run to its end."""
        results = [
            ToolResult(tool_call_id=f"call-{i}", ok=True, summary=f"found {i}", duration_ms=i + 1, output={"n": i})
            for i in range(self.tasks)
        ]
        for first in range(0, self.tasks, MAX_PARTS_PER_TRANSACTION):
            await self._tell(*results[first : first + MAX_PARTS_PER_TRANSACTION])
        await write(self._db, ending(self._lease, len(self._parts), fold((), self._parts)))

    @staticmethod
    def _progress(call: int, tick: int) -> ToolStatus:
        return ToolStatus(tool_call_id=f"call-{call}", state="running", reason=f"at {tick}")

    async def _tell(self, *parts: PartData) -> None:
        for first in range(0, len(parts), MAX_PARTS_PER_TRANSACTION):
            some = parts[first : first + MAX_PARTS_PER_TRANSACTION]
            await write(self._db, batch(self._lease, len(self._parts), *some))
            self._parts += some
