"""Add a function that appends parts as `append_parts` does, returns revisions, and keeps the plans of its statements.

The version before calls `append_parts`, which is therefore dropped by a later one.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

STORE_PARTS = """
CREATE FUNCTION store_parts(
    run_ids uuid[], thread_ids uuid[], epochs int[], last_seqs int[], message_ids uuid[],
    lease_numbers int[], seqs int[], kinds text[], data text[], channel text
) RETURNS TABLE (run_id uuid, stored int, revision bigint, stored_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    bumped_ids uuid[];
    revisions bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'store_parts needs the isolation level read committed, because its fence reads after it has locked';
    END IF;
    WITH bumped AS (
        UPDATE threads SET revision = revision + 1
        FROM (
            SELECT id AS thread_id FROM threads WHERE id IN (
                SELECT lease.thread_id
                FROM unnest((SELECT run_ids), (SELECT thread_ids), (SELECT epochs), (SELECT last_seqs))
                  AS lease (run_id, thread_id, epoch, seq)
                JOIN runs AS run ON run.id = lease.run_id
                 AND (run.thread_id, run.epoch, run.status)
                     IS NOT DISTINCT FROM (lease.thread_id, lease.epoch, 'running')
                WHERE (
                    SELECT true FROM message_parts AS part
                    WHERE part.run_id = lease.run_id AND part.seq = lease.seq
                      AND part.thread_id IS NOT DISTINCT FROM lease.thread_id
                ) IS NULL)
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ) AS due WHERE threads.id = due.thread_id
        RETURNING id, revision
    ) SELECT array_agg(id), array_agg(revision) INTO bumped_ids, revisions FROM bumped;
    IF bumped_ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY WITH held AS MATERIALIZED (
        SELECT lease.*, bumped.revision
        FROM unnest((SELECT run_ids), (SELECT thread_ids), (SELECT epochs), (SELECT message_ids))
          WITH ORDINALITY AS lease (run_id, thread_id, epoch, message_id, number)
        JOIN unnest((SELECT bumped_ids), (SELECT revisions)) AS bumped (thread_id, revision)
          ON bumped.thread_id = lease.thread_id
        JOIN runs AS run ON run.id = lease.run_id
         AND (run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM (lease.thread_id, lease.epoch, 'running')
    ), added AS (
        INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
        SELECT held.run_id, part.seq, held.message_id, held.thread_id, part.kind, part.data::jsonb, held.revision
        FROM unnest((SELECT lease_numbers), (SELECT seqs), (SELECT kinds), (SELECT data))
          AS part (number, seq, kind, data)
        JOIN held ON held.number = part.number
        WHERE (
            SELECT true FROM message_parts AS earlier
            WHERE earlier.run_id = held.run_id AND earlier.seq = part.seq
              AND earlier.thread_id IS NOT DISTINCT FROM held.thread_id
        ) IS NULL
        RETURNING run_id
    ) SELECT held.run_id, count(added.run_id)::int, held.revision, now()
      FROM held LEFT JOIN added ON added.run_id = held.run_id GROUP BY held.run_id, held.revision;
    IF channel IS NOT NULL THEN
        PERFORM pg_notify(channel, array_to_string(bumped_ids, ','));
    END IF;
END
$$
"""
"""The first statement locks the threads. The second begins after that, with a snapshot of its own, because the function
is volatile: it sees the epochs that are current until the commit.

The subqueries hide the arrays from the planner. By their length, a plan for few runs would seem so much cheaper than one
for any number that Postgres would plan the statements at each call, which takes longer than to execute them."""


def upgrade() -> None:
    op.execute(STORE_PARTS)


def downgrade() -> None:
    op.execute("DROP FUNCTION store_parts")
