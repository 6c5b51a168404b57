"""Endings of runs: every run ends through `end_runs`, whether or not an executor holds it.

One call stores the status and the finish of the run and the content of its message, settles its budgets, marks its
thread unread, and notifies executors. The caller stores the last parts before, in the same transaction.
"""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec

from khala.domain.chat import RunStatus
from khala.domain.fold import Content
from khala.domain.parts import Finish, json_text
from khala.store.budgets import ledger
from khala.store.budgets.ledger import Settlement
from khala.store.budgets.stripes import STRIPED
from khala.store.postgres.array_arguments import unnested
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import notify_drivers, notify_executors
from khala.store.push import push_outbox
from khala.store.runs.leases import IS_HELD, Lease, lease_columns
from khala.store.threads import thread_lists
from khala.store.webhooks import outbox
from khala.store.webhooks.outbox import EndedRunFacts


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The ending of a run: its status, and the whole message, folded from `seq` parts."""

    status: RunStatus
    finish: Finish
    content: Content
    seq: int
    unheld_status: Literal["queued", "running", "blocked"] | None = None
    """The previous status, if no executor holds the run: `running` if its executor was lost. None if one holds it."""


TRY_LOCK = f"""
    WITH changed AS MATERIALIZED (
        SELECT run.id, run.thread_id, lease.ends
        FROM {unnested(1, "uuid", "uuid", "int", "bool")} AS lease (run_id, thread_id, epoch, ends)
        JOIN runs AS run ON run.id = lease.run_id AND {IS_HELD.format("lease")}
        ORDER BY run.id FOR NO KEY UPDATE OF run SKIP LOCKED
    ), entries AS MATERIALIZED (
        SELECT entry.* FROM changed JOIN usage_ledger AS entry ON entry.run_id = changed.id
        WHERE changed.ends AND entry.settled IS NULL
    ), locked_entries AS MATERIALIZED (
        SELECT run_id, scope, measure FROM usage_ledger
        WHERE run_id IN (SELECT run_id FROM entries) AND settled IS NULL
        ORDER BY run_id, scope, measure FOR NO KEY UPDATE SKIP LOCKED
    ), locked_windows AS MATERIALIZED (
        SELECT scope, key, measure, starts_at FROM budgets
        WHERE (scope, key, measure, starts_at) IN (
            SELECT scope, key, measure, starts_at FROM entries WHERE scope NOT IN ({STRIPED}))
        ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE SKIP LOCKED
    ), listed AS MATERIALIZED (
        SELECT listings.thread_id, listings.user_id FROM changed JOIN listings USING (thread_id)
        WHERE changed.ends AND NOT listings.gone
    ), locked_users AS MATERIALIZED (
        SELECT id FROM users WHERE id IN (SELECT user_id FROM listed) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT id FROM changed WHERE NOT EXISTS (
        SELECT FROM entries WHERE entries.run_id = changed.id AND (
            (run_id, scope, measure) NOT IN (SELECT run_id, scope, measure FROM locked_entries)
            OR (scope NOT IN ('run', {STRIPED}) AND (scope, key, measure, starts_at) NOT IN (
                SELECT scope, key, measure, starts_at FROM locked_windows))))
    AND NOT EXISTS (
        SELECT FROM listed WHERE changed.ends AND listed.thread_id = changed.thread_id
        AND user_id NOT IN (SELECT id FROM locked_users))
"""
"""Locks the rows that `SET_STEPS` and `end_runs` will change, without waiting for any: the runs, and for those that
end, their reservations, budgets and the users whose lists have their thread. Returns the runs all of whose rows are
locked.
"""

END = f"""
    WITH ended AS (
        UPDATE runs SET status = ending.status, finish = ending.finish::jsonb, finished_at = clock_timestamp(),
               epoch = runs.epoch + (ending.unheld_status IS NOT NULL)::int,
               lease_owner = NULL, lease_expires_at = NULL
        FROM (
            SELECT run.id, run.thread_id, ending.status, ending.finish, ending.content, ending.seq,
                   ending.unheld_status
            FROM {unnested(1, "uuid", "uuid", "int", "text", "text", "text", "int", "text")}
              AS ending (run_id, thread_id, epoch, status, finish, content, seq, unheld_status)
            JOIN runs AS run ON run.id = ending.run_id
             AND (run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM
                 (ending.thread_id, ending.epoch, coalesce(ending.unheld_status, 'running'))
            ORDER BY run.id FOR NO KEY UPDATE OF run
        ) AS ending
        WHERE runs.id = ending.id AND runs.thread_id = ending.thread_id
        RETURNING runs.id, runs.message_id, runs.thread_id, runs.position, runs.plan_id, runs.user_id,
                  runs.asker_key_id, runs.created_at, ending.status, ending.finish, ending.content, ending.seq
    ), searched AS (
        INSERT INTO search_queue (id, thread_id, first_position, last_position)
        SELECT id, thread_id, position, coalesce(
            (SELECT messages.position FROM messages
             WHERE messages.id = ended.message_id AND messages.thread_id IS NOT DISTINCT FROM ended.thread_id),
            position + 1
        ) FROM ended
    )
    UPDATE messages SET status = ended.status, finish = ended.finish::jsonb, content = ended.content::jsonb,
           seq = ended.seq, revision = threads.revision, updated_at = clock_timestamp()
    FROM ended JOIN threads ON threads.id = ended.thread_id
    WHERE messages.id = ended.message_id AND messages.thread_id = ended.thread_id
    RETURNING messages.run_id, ended.plan_id, {outbox.IS_WANTED.format("threads.owner_id")} AS has_webhooks,
              ended.status <> 'canceled' AND {push_outbox.WANTS_ANSWER.format("ended")} AS has_push
"""
"""A run that no executor holds gets a new epoch, so that a former executor that returns is not taken for its holder.
The message and its answer are queued for searches: `khala.store.search.indexing`.
"""


async def try_lock(driver: Driver, changed: Sequence[tuple[Lease, bool]]) -> set[UUID]:
    """Lock all that changes with these runs, each with whether it ends. Returns the runs for which that succeeded.

    For the other runs, another transaction has locked a row, or the lease is lost. It waits for no lock, so that a
    locked budget or user does not delay other runs.
    """
    columns = lease_columns([lease for lease, _ in changed])
    return {row["id"] for row in await driver.fetch(TRY_LOCK, *columns, [ends for _, ends in changed])}


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
    rows = await driver.fetch(END, *zip(*columns, strict=True))
    ended = {row["run_id"]: row["plan_id"] for row in rows}
    with_webhooks = {row["run_id"] for row in rows if row["has_webhooks"]}
    await outbox.record_ended(driver, [_ended(*each) for each in endings if each[0].run_id in with_webhooks])
    with_push = {row["run_id"] for row in rows if row["has_push"]}
    if with_push:
        await push_outbox.record_answers(
            driver, [(lease.run_id, lease.thread_id) for lease, _ in endings if lease.run_id in with_push]
        )
    settled = [
        Settlement(run_id=lease.run_id, thread_id=lease.thread_id, interrupted=ending.unheld_status == "running")
        for lease, ending in endings
        if lease.run_id in ended
    ]
    await ledger.settle(driver, settled)
    await thread_lists.mark_changed(driver, [run.thread_id for run in settled], unread=True)
    plan_ids = {plan_id for plan_id in ended.values() if plan_id is not None}
    if plan_ids:
        await notify_drivers(driver, plan_ids)
    if notify:
        await notify_executors(driver)


def _ended(lease: Lease, ending: RunEnding) -> EndedRunFacts:
    return EndedRunFacts(
        run_id=lease.run_id,
        thread_id=lease.thread_id,
        message_id=lease.message_id,
        status=ending.status,
        reason=ending.finish.reason,
        usage=ending.finish.usage,
        cost_usd=ending.finish.cost_usd,
        model=ending.finish.model,
    )
