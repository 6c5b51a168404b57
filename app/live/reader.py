"""The reader: brings observers up to date who join, lag or come back, many at once, with few reads."""

import asyncio
from typing import TypeAlias, assert_never
from uuid import UUID

from app.domain import frames
from app.domain.chat import Delta
from app.live.observer import Out
from app.store import changes
from app.store.db import Database, Driver

SNAPSHOT_MESSAGES = 100
"""Messages in a snapshot."""
MOST_READS = 8
"""Reads at the same time; the others wait, and leave the pool's other connections to requests."""

Key: TypeAlias = tuple[UUID, int]


class Reader:
    """Reads a thread from a revision on. Who asks for the same at the same time shares one read and one encoding."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reading: dict[Key, asyncio.Task[Out | None]] = {}
        self._turns = asyncio.Semaphore(MOST_READS)

    async def read(self, thread_id: UUID, after: int) -> Out | None:
        """What has changed after that revision, or a snapshot; an empty body for nothing, None for a deleted thread."""
        key = (thread_id, after)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(_retrieve)
        # Shielded: who asked first may leave while others wait for the same.
        return await asyncio.shield(task)

    async def _read(self, key: Key) -> Out | None:
        thread_id, after = key
        shared = True
        try:
            async with self._turns, self._db.snapshot() as driver:
                # Who comes from now on may know of more than this read will see, and reads anew.
                del self._reading[key]
                shared = False
                found = await changes.since(driver, {thread_id: after})
                return await _out(driver, thread_id, after, found[thread_id])
        finally:
            if shared:
                del self._reading[key]


def _retrieve(done: "asyncio.Task[Out | None]") -> None:
    """Whoever asked may have left, and an error that nobody hears is no news."""
    if not done.cancelled():
        done.exception()


async def _out(driver: Driver, thread_id: UUID, after: int, change: changes.Change) -> Out | None:
    match change:
        case Delta():
            return Out(frames.delta(thread_id, change), change.revision)
        case changes.Behind():
            reset = change.reset and after >= 0
            whole = await changes.snapshot(driver, thread_id, limit=SNAPSHOT_MESSAGES, reset=reset)
            return Out(frames.snapshot(thread_id, whole), whole.revision)
        case changes.Unchanged():
            return Out("")
        case changes.Gone():
            return None
        case _:
            assert_never(change)
