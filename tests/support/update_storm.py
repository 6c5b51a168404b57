"""A run with hundreds of concurrent tool calls, whose parts the test writes itself."""

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
"""Except in `rage`."""
BUSY_MACHINE_SECONDS = 60.0
"""Added to the time that the updates of `rage` take on an idle machine."""


class Storm:
    """The executor of one run, which writes the parts of its calls."""

    def __init__(self, db: Database, lease: Lease, tasks: int) -> None:
        self.tasks = tasks
        self.updates = 0
        self._db = db
        self._lease = lease
        self._parts: list[PartData] = []

    @classmethod
    async def of(cls, db: Database, run_id: UUID, *, tasks: int) -> "Storm":
        """Claim this run, so that no other executor writes to it."""
        lease = next(one.lease for one in await claim(db, lease=600) if one.lease.run_id == run_id)
        return cls(db, lease, tasks)

    async def begin(self, *, each: int = CALLS_PER_STEP) -> None:
        """Write all calls, in steps of `each`."""
        for first in range(0, self.tasks, each):
            step = first // each + 1
            ids = range(first, min(first + each, self.tasks))
            await self._append(Step(step=step, max_steps=20, tool_count=len(ids)))
            calls = [ToolCall(tool_call_id=f"call-{i}", step=step, tool="grep", args={"pattern": f"n{i}"}) for i in ids]
            await self._append(*calls)

    async def rage(self, seconds: float, *, each: int = 20, every: float = 0.016) -> None:
        """Write the progress of `each` calls, every so many seconds."""
        begin = time.monotonic()
        async with asyncio.timeout(seconds + BUSY_MACHINE_SECONDS):
            for tick in range(round(seconds / every)):
                await self._append(*(self._progress((tick * each + i) % self.tasks, tick) for i in range(each)))
                self.updates += each
                await asyncio.sleep(max(0.0, begin + (tick + 1) * every - time.monotonic()))

    async def end(self) -> None:
        """Write the results of all calls, and end the run."""
        results = [
            ToolResult(tool_call_id=f"call-{i}", ok=True, summary=f"found {i}", duration_ms=i + 1, output={"n": i})
            for i in range(self.tasks)
        ]
        for first in range(0, self.tasks, MAX_PARTS_PER_TRANSACTION):
            await self._append(*results[first : first + MAX_PARTS_PER_TRANSACTION])
        await write(self._db, ending(self._lease, len(self._parts), fold((), self._parts)))

    @staticmethod
    def _progress(call: int, tick: int) -> ToolStatus:
        return ToolStatus(tool_call_id=f"call-{call}", state="running", reason=f"at {tick}")

    async def _append(self, *parts: PartData) -> None:
        for first in range(0, len(parts), MAX_PARTS_PER_TRANSACTION):
            some = parts[first : first + MAX_PARTS_PER_TRANSACTION]
            await write(self._db, batch(self._lease, len(self._parts), *some))
            self._parts += some
