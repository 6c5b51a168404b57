"""Endings of runs: every run ends through `end_runs`, whether or not an executor holds it.

One call stores the status and the finish of the run and the content of its message, settles its budgets, marks its
thread unread, and notifies executors. The caller stores the last parts before, in the same transaction.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from khala.domain.chat import RunStatus
from khala.domain.fold import Content
from khala.domain.parts import Finish, json_text
from khala.store.budgets import ledger
from khala.store.budgets.ledger import Settlement
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import notify_executors
from khala.store.runs.leases import Lease
from khala.store.threads import thread_lists


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The ending of a run: its status, and the whole message, folded from `seq` parts."""

    status: RunStatus
    finish: Finish
    content: Content
    seq: int
    unheld_status: Literal["queued", "running", "blocked"] | None = None
    """The previous status, if no executor holds the run: `running` if its executor was lost. None if one holds it."""


END = """
    WITH ended AS (
        UPDATE runs SET status = ending.status, finish = ending.finish::jsonb, finished_at = clock_timestamp(),
               epoch = runs.epoch + (ending.unheld_status IS NOT NULL)::int,
               lease_owner = NULL, lease_expires_at = NULL
        FROM (
            SELECT run.id, run.thread_id, ending.status, ending.finish, ending.content, ending.seq,
                   ending.unheld_status
            FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::int[], $8::text[])
              AS ending (run_id, thread_id, epoch, status, finish, content, seq, unheld_status)
            JOIN runs AS run ON run.id = ending.run_id
             AND (run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM
                 (ending.thread_id, ending.epoch, coalesce(ending.unheld_status, 'running'))
            ORDER BY run.id FOR NO KEY UPDATE OF run
        ) AS ending
        WHERE runs.id = ending.id AND runs.thread_id = ending.thread_id
        RETURNING runs.message_id, runs.thread_id, ending.status, ending.finish, ending.content, ending.seq
    )
    UPDATE messages SET status = ended.status, finish = ended.finish::jsonb, content = ended.content::jsonb,
           seq = ended.seq, revision = threads.revision, updated_at = clock_timestamp()
    FROM ended JOIN threads ON threads.id = ended.thread_id
    WHERE messages.id = ended.message_id AND messages.thread_id = ended.thread_id
    RETURNING messages.run_id
"""
"""A run that no executor holds gets a new epoch, so that a former executor that returns is not taken for its holder.
"""


async def end_runs(driver: Driver, endings: Sequence[tuple[Lease, RunEnding]], *, notify: bool = True) -> None:
    """End those of these runs that are still at the epoch of their lease. Repeating the call changes nothing.

    The caller holds the locks of the threads and has given each thread a new revision, which the messages get. With
    `notify`, executors are notified at the commit.

    Locks budget windows, and then users' rows. A caller that locks more windows afterwards must first lock all of them
    with `ledger.lock`.
    """
    columns = [
        (
            *(lease.run_id, lease.thread_id, lease.epoch),
            *(ending.status, json_text(ending.finish), json_text(ending.content), ending.seq, ending.unheld_status),
        )
        for lease, ending in endings
    ]
    ended = {row["run_id"] for row in await driver.fetch(END, *zip(*columns, strict=True))}
    settled = [
        Settlement(run_id=lease.run_id, thread_id=lease.thread_id, interrupted=ending.unheld_status == "running")
        for lease, ending in endings
        if lease.run_id in ended
    ]
    await ledger.settle(driver, settled)
    await thread_lists.mark_changed(driver, [run.thread_id for run in settled], unread=True)
    if notify:
        await notify_executors(driver)
