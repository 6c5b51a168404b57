"""Reads a thread's messages for an export: page by page, each at its own moment, and only for those who may read it."""

from array import array
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from khala.domain.access import Action, Caller
from khala.domain.chat import Message, Thread
from khala.store.postgres import rows
from khala.store.postgres.database import Database
from khala.store.sharing import access
from khala.store.threads import thread_feed
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.threads.thread_feed import IS_LISTED

PAGE_MESSAGES = 10
"""Messages in memory at once."""

ALL = f"SELECT position FROM messages WHERE thread_id = $1 AND {IS_MESSAGE} AND {IS_LISTED} ORDER BY position"
BRANCH = f"""
    WITH RECURSIVE branch AS (
        SELECT parent_id, position FROM messages WHERE id = $2 AND thread_id = $1 AND {IS_MESSAGE}
        UNION ALL
        SELECT messages.parent_id, messages.position FROM branch
        JOIN messages ON messages.id = branch.parent_id AND messages.thread_id = $1
        WHERE messages.position < branch.position AND {IS_MESSAGE}
    )
    SELECT position FROM branch ORDER BY position
"""
PAGE = f"SELECT * FROM messages WHERE thread_id = $1 AND position = ANY ($2::int[]) AND {IS_MESSAGE} ORDER BY position"


class ThreadExport:
    """The thread and the positions of its messages, as of the beginning of the export."""

    def __init__(self, db: Database, caller: Caller, thread: Thread, positions: "array[int]") -> None:
        self.thread = thread
        self._db = db
        self._caller = caller
        self._positions = positions

    async def messages(self) -> AsyncIterator[Message]:
        """The messages, in order. Raises the errors of `access.authorize` as soon as the caller has lost access."""
        for start in range(0, len(self._positions), PAGE_MESSAGES):
            for message in await self._page(self._positions[start : start + PAGE_MESSAGES]):
                yield message

    async def _page(self, positions: Sequence[int]) -> Sequence[Message]:
        async with self._db.snapshot() as driver:
            await access.authorize(driver, self.thread.id, self._caller, Action.READ_THREAD)
            found = await driver.fetch(PAGE, self.thread.id, list(positions))
            return await thread_feed.with_live_parts(driver, self.thread.id, list(map(rows.message, found)))


async def begin(db: Database, thread_id: UUID, caller: Caller, *, whole: bool) -> ThreadExport:
    """Begin an export of the active branch, or of all branches (`whole`). Raises the errors of `access.authorize`."""
    async with db.snapshot() as driver:
        await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        row = await driver.fetchrow(thread_feed.THREAD, thread_id)
        assert row is not None
        thread = rows.thread(row)
        found = await (driver.fetch(ALL, thread_id) if whole else driver.fetch(BRANCH, thread_id, thread.active_leaf))
    return ThreadExport(db, caller, thread, array("i", (row["position"] for row in found)))
