"""Waits until it is the turn of a plan's step to be merged: see `khala.domain.plans.merges`."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from khala.domain.chat import StepRef
from khala.domain.errors import Unavailable
from khala.domain.plans.merges import merge_deadline, steps_to_merge_first
from khala.store.plans import plan_rows
from khala.store.postgres.database import Database

POLL_SECONDS = 0.5


class MergeTurn:
    """The turn of one attempt."""

    def __init__(self, db: Database, thread_id: UUID, step: StepRef) -> None:
        self._db = db
        self._thread_id = thread_id
        self._step = step
        self._event_seq = 0
        self._deadline: datetime | None = None

    async def wait(self) -> None:
        """Wait until the steps that go first have ended, or until waiting would hold something up."""
        while await self._is_too_early():  # noqa: ASYNC110  # the plan changes in the database
            await asyncio.sleep(POLL_SECONDS)

    async def _is_too_early(self) -> bool:
        if self._deadline is not None and datetime.now(UTC) >= self._deadline:
            return False
        try:
            async with self._db.driver() as driver:
                seq = await plan_rows.read_event_seq(driver, self._thread_id, self._step.plan_id)
                if seq == self._event_seq:
                    return True
                stored = await plan_rows.read(driver, self._thread_id, self._step.plan_id)
        except Unavailable:
            return self._deadline is not None
        if stored is None or not steps_to_merge_first(stored.plan, self._step.step_id):
            return False
        self._event_seq = stored.event_seq
        self._deadline = self._deadline or merge_deadline(stored.plan, self._step.step_id, datetime.now(UTC))
        return True
