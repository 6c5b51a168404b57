"""The statements of sends: they read all that decides on one, and queue its run."""

from khala.store.budgets import account_plans
from khala.store.postgres.notifications import RUNS_CHANNEL, THREADS_CHANNEL
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_MESSAGE, IS_RUN, last_position
from khala.store.webhooks import outbox

ANSWERED_BEFORE = f"""
    SELECT messages.parent_id, runs.id AS run_id, runs.revision, {IS_MESSAGE} AS present
    FROM messages LEFT JOIN runs ON runs.message_id = messages.id AND runs.thread_id = messages.thread_id
     AND {IS_RUN}
    WHERE messages.id = $1 AND messages.thread_id = $2
"""
POSITION = f"SELECT position FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN}"

OPEN = f"""
    WITH thread AS MATERIALIZED (
        SELECT id, owner_id, anon_key_hash, active_leaf, xmin AS version FROM threads
        WHERE id = $1 AND deleted_at IS NULL FOR UPDATE
    ), facts AS ({access.FACTS_OF_ONE}), before AS (
        SELECT messages.content, messages.revision, runs.id AS run_id, runs.message_id, {IS_MESSAGE} AS present
        FROM messages LEFT JOIN runs
          ON runs.user_message_id = messages.id AND runs.thread_id IS NOT DISTINCT FROM messages.thread_id
         AND runs.position >= messages.position
        WHERE messages.id = $5 AND messages.thread_id = $1 ORDER BY runs.position, runs.id LIMIT 1
    )
    SELECT facts.*, thread.id, thread.active_leaf,
           thread.version = (SELECT xmin FROM threads WHERE id = $1) AS is_current,
           (SELECT count(*) FROM runs WHERE fairness_key = (SELECT coalesce(owner_id, id) FROM thread)
            AND status IN ('queued', 'running', 'blocked')) AS own,
           (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT $6) AS queued) AS waiting,
           (SELECT count(*) FROM runs
            WHERE thread_id = $1 AND plan_id IS NULL AND status IN ('queued', 'running', 'blocked')) AS in_thread,
           {last_position("$1")} AS last, {outbox.IS_WANTED.format("thread.owner_id")} AS has_webhooks,
           payer.budget_plan, payer.budget_limits,
           before.present, before.content, before.revision, before.run_id, before.message_id
    FROM thread CROSS JOIN facts LEFT JOIN before ON true
    LEFT JOIN LATERAL ({account_plans.PAYER.format("coalesce($2::uuid, thread.owner_id)")}) AS payer ON true
"""
"""Locks the thread, and reads all that decides on a send: the caller's access, the message's first answer if it is
stored, the limits of the account that pays, the active runs of this owner, the queued runs of all owners (at most $6),
the active runs of the thread, and the position of the thread's last message. Each count has an index, so it reads no
other active runs.

`present` is false if a reset has deleted the message, and left its row to the purge; null if it is not stored. Runs at
lower positions answered a message that had the same id before a reset.

Except for the locked row, the statement reads the state before it began. If it had to wait for a lock, and the thread's
row has changed meanwhile, `is_current` is false, and the statement has to be repeated: each change of what it reads of
the thread also updates the row. With `=`, the planner could choose the index of all runs of the thread for the answer.
"""

QUEUE = f"""
    WITH thread AS (
        UPDATE threads SET revision = revision + 1, meta_revision = revision + 1, active_leaf = $3,
               updated_at = clock_timestamp()
        WHERE id = $1 RETURNING revision
    ), answer AS (
        INSERT INTO messages (id, thread_id, parent_id, position, role, status, run_id, revision)
        SELECT $3, $1, $4, $5, 'assistant', 'streaming', $2, revision FROM thread
    ), run AS (
        INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options,
                          user_id, asker_key_id, traceparent, remote_owner_id)
        SELECT $2, $1, $3, $4, $11, revision, $6, 'queued', $7::text::jsonb, $8, $9, $10,
               ($7::text::jsonb ->> 'remoteOwner')::uuid FROM thread
    ){{question}}
    SELECT revision, pg_notify('{THREADS_CHANNEL}', $1::text), pg_notify('{RUNS_CHANNEL}', '') FROM thread
"""
"""Gives the thread its next revision, as `threads.continue_from` does, and stores the rows of that revision."""

QUEUE_STORED = QUEUE.format(question="")

STORE_AND_QUEUE = QUEUE.format(
    question=""", question AS (
        INSERT INTO messages (id, thread_id, parent_id, position, role, status, content, author_id, author_name,
                              revision)
        SELECT $4, $1, $12::uuid, $5 - 1, 'user', 'final', $13::text::jsonb, $14, $15, revision FROM thread
    )"""
)
"""As `QUEUE_STORED`, and stores the message that is answered."""
