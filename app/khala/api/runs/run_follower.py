"""Follows one run: yields its parts in order, each once: those that are stored, then each commit, up to the end.

All adapters of other protocols read runs here. An adapter maps parts to its own frames, and keeps no other state than
what it derives from the parts it has seen: so a replay from the first part gives the same frames again.
"""

from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing
from typing import TypeVar
from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.api.threads.feed_reader import read_frames
from khala.domain.access import Caller
from khala.domain.errors import Forbidden
from khala.domain.frames import DeltaFrame, GoneFrame
from khala.domain.parts import Part
from khala.domain.plans.views import PlanEntry
from khala.live.encoded_frame import EncodedFrame
from khala.store.postgres.database import Driver
from khala.store.runs import parts, runs
from khala.store.threads import thread_feed

PAGE_SIZE = 1000
"""Parts that one query reads."""

T = TypeVar("T")


class FollowedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to follow. `queued_at` is the revision that queued it, if it was queued just now.

    Without `queued_at`, the stored parts are read first, and the feed is followed from the revision of that read.
    """

    thread_id: UUID
    run_id: UUID
    queued_at: int | None = None


class RunUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The next parts of a run, and the thread's plans that changed with them. Without both, it is a keep-alive.

    All parts that were stored already come in one update.
    """

    parts: Sequence[Part] = ()
    plans: Sequence[PlanEntry] = ()
    frame: EncodedFrame | None = None
    """The frame of the feed that had these parts; None if they were read from the table."""

    @property
    def text_part(self) -> Part | None:
        """The part, if it is a text delta and all that the update has: so it is in nearly all commits."""
        is_text = len(self.parts) == 1 and not self.plans and self.parts[0].kind == "text-delta"
        return self.parts[0] if is_text else None

    def derive(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what `compute` makes of the update. Followers that share the frame and the key share the result.

        The result may depend on nothing but the parts of the run up to this update and the key.
        """
        return compute() if self.frame is None else self.frame.derive(key, compute)


async def follow_run(context: Context, run: FollowedRun, caller: Caller) -> AsyncGenerator[RunUpdate]:
    """Yield the parts of the run that were committed together, and an empty update for a keep-alive.

    Raises `Forbidden`, `ThreadNotFound` or `RunNotFound` if the caller may not see them.
    """
    authorization = await context.live.threads.authorize(context.db, run.thread_id, caller)
    next_seq, revision = 0, run.queued_at
    if revision is None:
        revision, stored = await _read_stored(context, run, caller, 0)
        if stored:
            yield RunUpdate(parts=stored)
            next_seq = stored[-1].seq + 1
            if _is_end(stored):
                return
    async with aclosing(read_frames(context.live, run.thread_id, revision, authorization)) as frames:
        async for outgoing in frames:
            if outgoing is None:
                yield RunUpdate()
                continue
            update = await _update(context, run, caller, outgoing.body, next_seq)
            if update.parts or update.plans:
                yield update
            if update.parts:
                next_seq = update.parts[-1].seq + 1
                if _is_end(update.parts):
                    return


def _is_end(batch: Sequence[Part]) -> bool:
    return batch[-1].kind == "finish"


async def _update(context: Context, run: FollowedRun, caller: Caller, body: EncodedFrame, next_seq: int) -> RunUpdate:
    """Return the run's parts from `next_seq` on: of this frame, or from the table if the frame does not continue."""
    delta = body.content
    if isinstance(delta, GoneFrame):
        raise Forbidden("You no longer have access to the thread of this answer.")
    if isinstance(delta, DeltaFrame):
        run_id = run.run_id
        new_parts = [part for part in delta.parts if part.seq >= next_seq and part.run_id == run_id]
        if not new_parts or new_parts[0].seq == next_seq:
            return RunUpdate(parts=new_parts, plans=delta.plans, frame=body)
    # The feed has skipped frames for this slow reader, or the thread was reset.
    _, stored = await _read_stored(context, run, caller, next_seq)
    return RunUpdate(parts=stored)


async def _read_stored(context: Context, run: FollowedRun, caller: Caller, next_seq: int) -> tuple[int, list[Part]]:
    """Return the thread's revision, and the parts from `next_seq` on at that revision."""
    async with context.db.snapshot() as driver:
        await runs.read_authorized(driver, run.run_id, caller)
        revision = await thread_feed.read_revision(driver, run.thread_id)
        return revision, await read_parts(driver, run.thread_id, run.run_id, next_seq)


async def read_parts(driver: Driver, thread_id: UUID, run_id: UUID, next_seq: int = 0) -> list[Part]:
    """Return all stored parts of the run from `next_seq` on, page by page."""
    stored: list[Part] = []
    while True:
        after = next_seq + len(stored) - 1
        page = await parts.of_run(driver, thread_id, run_id, after=after, limit=PAGE_SIZE)
        stored += page
        if len(page) < PAGE_SIZE:
            return stored
