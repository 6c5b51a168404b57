"""The SQL of the filler. Each statement inserts one kind of row for the whole deployment.

Every id is a UUID of version 7 of the moment at which its row would have been created, and rows are inserted in the
order of these moments: the plan of runs has that order, and the statements after it read the plan from its first row to
its last. So the rows of one thread are scattered over the pages of their tables, as in a real deployment.
"""

PREPARE = """
    CREATE SCHEMA scale;
    CREATE FUNCTION scale.id(at timestamptz, kind int, number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
        SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(kind), 3, '0')
                || '8' || lpad(to_hex(number), 15, '0'))::uuid
    $$;
    CREATE FUNCTION scale.user_id(number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE number WHEN 0 THEN '{collector}'::uuid WHEN 1 THEN '{historian}'::uuid
                           ELSE scale.id(timestamptz '2025-01-01', 1, number) END
    $$;
    CREATE FUNCTION scale.chain(run_id uuid, suffixes text[]) RETURNS bytea[] LANGUAGE plpgsql IMMUTABLE AS $$
        DECLARE link bytea := ''; links bytea[] := '{{}}'; suffix text;
        BEGIN
            FOREACH suffix IN ARRAY suffixes LOOP
                link := sha256(link || convert_to('["' || run_id::text || suffix, 'UTF8'));
                links := links || link;
            END LOOP;
            RETURN links;
        END
    $$;
    CREATE FUNCTION scale.witness(hashes bytea[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
        SELECT jsonb_build_object('witness', encode(hashes[cardinality(hashes)], 'hex'))
    $$;
    CREATE UNLOGGED TABLE scale.answers (
        answer int PRIMARY KEY, status text, question jsonb, content jsonb, finish jsonb, parts int, suffixes text[]);
    CREATE UNLOGGED TABLE scale.answer_parts (answer int, seq int, kind text, data jsonb, PRIMARY KEY (answer, seq));
    CREATE UNLOGGED TABLE scale.answer_receipts (
        answer int, seq int, type text, tool_call_id text, data jsonb, cost_usd numeric, PRIMARY KEY (answer, seq));
    CREATE UNLOGGED TABLE scale.threads (
        number bigint, id uuid, kind text, owner_id uuid, anon_key_hash bytea, runs int, gap interval,
        created_at timestamptz);
    CREATE UNLOGGED TABLE scale.runs (
        number bigint, turn int, id uuid, thread_id uuid, kind text, owner_id uuid, parent_id uuid,
        user_message_id uuid, message_id uuid, answer int, revision bigint, created_at timestamptz, hashes bytea[]);
"""

USERS = """
    INSERT INTO users (id, name, email, created_at)
    SELECT scale.user_id(number), 'User ' || number, 'user' || number || '@example.com', now() - interval '90 days'
    FROM generate_series(0, {users} - 1) AS number
"""

SESSIONS = """
    INSERT INTO sessions (id, user_id, secret_hash, created_at, seen_at, expires_at)
    SELECT scale.id(now() - interval '1 day', 8, number), scale.user_id(number), sha256(number::text::bytea),
           now() - interval '1 day', now() - interval '1 hour', now() + interval '30 days'
    FROM generate_series(0, {users} - 1) AS number
"""

PLAN_THREADS = """
    INSERT INTO scale.threads
    SELECT number, CASE WHEN kind = 'deep' THEN '{deep_thread}'::uuid ELSE scale.id(created_at, 2, number) END, kind,
           CASE kind WHEN 'listed' THEN scale.user_id(0) WHEN 'deep' THEN scale.user_id(1)
                     WHEN 'owned' THEN scale.user_id(2 + number % ({users} - 2)) END,
           CASE kind WHEN 'anonymous' THEN sha256(('key ' || number)::bytea) END,
           CASE kind WHEN 'listed' THEN 1 WHEN 'deleted' THEN 2 WHEN 'deep' THEN {deep_runs} ELSE {runs} END,
           CASE kind WHEN 'deep' THEN interval '8 minutes' ELSE interval '12 hours' END, created_at
    FROM (
        SELECT number,
               CASE WHEN number = {threads} THEN 'deep' WHEN number < {listed} THEN 'listed'
                    WHEN number < {listed} + {deleted} THEN 'deleted' WHEN number % 10 < 3 THEN 'anonymous'
                    ELSE 'owned' END AS kind,
               CASE WHEN number = {threads} THEN now() - interval '80 days'
                    ELSE now() - interval '90 days'
                         + (number * 7919 % {threads}) * (interval '86 days' / {threads}) END AS created_at
        FROM generate_series(0::bigint, {threads}) AS number
    ) AS thread
"""

PLAN_RUNS = """
    INSERT INTO scale.runs
    SELECT run.number, turn, run.id, thread_id, kind, owner_id,
           coalesce(lag(message_id) OVER (PARTITION BY thread_id ORDER BY turn), scale.id(thread_at, 6, run.thread)),
           user_message_id, message_id, run.answer, revision, created_at, scale.chain(run.id, answers.suffixes)
    FROM (
        SELECT *, scale.id(created_at, 3, number) AS id, scale.id(created_at, 4, number) AS user_message_id,
               scale.id(created_at, 5, number) AS message_id, (thread * 31 + turn) % {answers} AS answer
        FROM (
            SELECT thread.number AS thread, thread.number * 20000 + turn AS number, turn, thread.id AS thread_id, kind,
                   owner_id, thread.created_at AS thread_at, 1 + turn * {revisions} AS revision,
                   thread.created_at + interval '1 minute' + turn * gap AS created_at
            FROM scale.threads AS thread CROSS JOIN LATERAL generate_series(0, thread.runs - 1) AS turn
        ) AS timed
    ) AS run JOIN scale.answers ON answers.answer = run.answer
    ORDER BY created_at
"""

THREADS = """
    INSERT INTO threads (id, owner_id, anon_key_hash, title, revision, meta_revision, active_leaf, created_at,
                         updated_at, deleted_at)
    SELECT id, owner_id, anon_key_hash, CASE WHEN kind <> 'deleted' THEN 'Thread ' || number END,
           1 + runs * {revisions}, 2 + (runs - 1) * {revisions},
           scale.id(created_at + interval '1 minute' + (runs - 1) * gap, 5, number * 20000 + runs - 1), created_at,
           created_at + runs * gap,
           CASE WHEN kind = 'deleted' THEN now() - CASE WHEN number % 10 = 0 THEN interval '2 days'
                                                        ELSE interval '1 hour' END END
    FROM scale.threads ORDER BY created_at
"""

WELCOMES = """
    INSERT INTO messages (id, thread_id, position, role, status, content, revision, created_at, updated_at)
    SELECT scale.id(created_at, 6, number), id, 1, 'assistant', 'final',
           '[{{"type": "text", "text": "Hello. What can I do for you?"}}]', 1, created_at, created_at
    FROM scale.threads ORDER BY created_at
"""

MESSAGES = """
    INSERT INTO messages (id, thread_id, position, parent_id, role, status, author_id, author_name, run_id, seq,
                          content, finish, revision, created_at, updated_at)
    SELECT message.id, run.thread_id, message.position, message.parent_id, message.role, message.status,
           message.author_id, CASE WHEN message.author_id IS NOT NULL THEN 'Somebody' END, message.run_id, message.seq,
           message.content, message.finish, message.revision, run.created_at, run.created_at
    FROM scale.runs AS run JOIN scale.answers USING (answer) CROSS JOIN LATERAL (VALUES
        (run.user_message_id, 2 * run.turn + 2, run.parent_id, 'user', 'final', run.owner_id, NULL::uuid, 0,
         answers.question, NULL::jsonb, run.revision + 1),
        (run.message_id, 2 * run.turn + 3, run.user_message_id, 'assistant', answers.status, NULL, run.id,
         answers.parts, answers.content, answers.finish || scale.witness(run.hashes), run.revision + 1 + answers.parts)
    ) AS message (id, position, parent_id, role, status, author_id, run_id, seq, content, finish, revision)
"""

RUNS = """
    INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options,
                      user_id, epoch, steps, finish, created_at, finished_at)
    SELECT run.id, thread_id, message_id, user_message_id, 2 * turn + 2, revision + 1, coalesce(owner_id, thread_id),
           answers.status, '{{}}', owner_id, 1, 1, answers.finish || scale.witness(run.hashes), run.created_at,
           run.created_at + interval '4 seconds'
    FROM scale.runs AS run JOIN scale.answers USING (answer)
"""

PARTS = """
    INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision, created_at)
    SELECT run.id, part.seq, run.message_id, run.thread_id, part.kind,
           CASE WHEN part.kind = 'finish' THEN part.data || scale.witness(run.hashes) ELSE part.data END,
           run.revision + 2 + part.seq, run.created_at + part.seq * interval '350 ms'
               + (hashint8(run.number * 10000 + part.seq) & 31) * interval '1 ms'
    FROM scale.runs AS run CROSS JOIN LATERAL (
        SELECT * FROM scale.answer_parts WHERE answer_parts.answer = run.answer ORDER BY seq
    ) AS part
"""

RECEIPTS = """
    INSERT INTO receipts (run_id, seq, thread_id, type, tool_call_id, data, cost_usd, hash, created_at)
    SELECT run.id, receipt.seq, run.thread_id, receipt.type, receipt.tool_call_id, receipt.data, receipt.cost_usd,
           run.hashes[receipt.seq + 1], run.created_at
    FROM scale.runs AS run CROSS JOIN LATERAL (
        SELECT * FROM scale.answer_receipts WHERE answer_receipts.answer = run.answer ORDER BY seq
    ) AS receipt
"""

LEDGER = """
    INSERT INTO usage_ledger (run_id, scope, measure, key, starts_at, reserved, settled, most, created_at)
    SELECT run.id, used.scope, 'usd', used.key, date_trunc('day', run.created_at, 'UTC'), 0.005, 0.0042, 1000,
           run.created_at
    FROM scale.runs AS run CROSS JOIN LATERAL (VALUES
        ('accounts', ''::bytea), ('user', uuid_send(coalesce(run.owner_id, run.thread_id)))
    ) AS used (scope, key)
    WHERE run.created_at > now() - interval '7 days'
"""

BUDGETS = """
    INSERT INTO budgets (scope, key, measure, starts_at, ends_at, settled)
    SELECT used.scope, used.key, 'usd', today.at, today.at + interval '1 day', 0.1
    FROM date_trunc('day', now(), 'UTC') AS today (at), LATERAL (
        SELECT 'accounts', ''::bytea
        UNION ALL SELECT 'user', uuid_send(scale.user_id(number)) FROM generate_series(0, {users} - 1) AS number
    ) AS used (scope, key)
"""

LISTINGS = """
    INSERT INTO listings (user_id, thread_id, revision, said_revision, read_revision, gone, changed_at)
    SELECT user_id, id, row_number() OVER (PARTITION BY user_id ORDER BY created_at, id),
           1 + runs * {revisions}, 1 + runs * {revisions}, gone, changed_at
    FROM (
        SELECT *, coalesce(owner_id, scale.user_id(2 + number % ({users} - 2))) AS user_id, kind = 'deleted' AS gone,
               CASE WHEN kind = 'deleted' THEN now() - interval '1 hour' ELSE created_at + runs * gap END AS changed_at
        FROM scale.threads WHERE kind <> 'anonymous'
    ) AS entry ORDER BY created_at, id
"""

LIST_REVISIONS = """
    UPDATE users SET revision = newest.revision
    FROM (SELECT user_id, max(revision) AS revision FROM listings GROUP BY user_id) AS newest
    WHERE newest.user_id = users.id
"""

OBJECTS = """
    INSERT INTO objects (sha256, size, stored, touched_at)
    SELECT sha256(number::text::bytea), 4096, true, created_at FROM scale.runs WHERE number % 5 = 0
"""

BLOBS = """
    INSERT INTO blobs (id, thread_id, run_id, sha256, size, media_type, author_id, created_at)
    SELECT scale.id(created_at, 7, number), thread_id, id, sha256(number::text::bytea), 4096, 'text/plain', owner_id,
           created_at
    FROM scale.runs WHERE number % 5 = 0
"""

STATEMENTS = {
    "users": USERS,
    "sessions": SESSIONS,
    "plan of threads": PLAN_THREADS,
    "plan of runs": PLAN_RUNS,
    "threads": THREADS,
    "welcome messages": WELCOMES,
    "messages": MESSAGES,
    "runs": RUNS,
    "parts": PARTS,
    "receipts": RECEIPTS,
    "usage ledger": LEDGER,
    "budgets": BUDGETS,
    "thread lists": LISTINGS,
    "revisions of thread lists": LIST_REVISIONS,
    "objects": OBJECTS,
    "blobs": BLOBS,
}
"""The statements in the order of their execution, by what each inserts."""

DROP_PLAN = "DROP TABLE scale.threads, scale.runs, scale.answers, scale.answer_parts, scale.answer_receipts"

BEGIN_RUNS = """
    WITH chosen AS (
        SELECT {first} + row_number() OVER (ORDER BY id) - 1 AS number, id AS thread_id, owner_id, revision, active_leaf
        FROM ({threads}) AS thread
    ), planned AS (
        SELECT *, scale.id(now(), 3, number) AS id, scale.id(now(), 4, number) AS question_id,
               scale.id(now(), 5, number) AS answer_id, coalesce((
                   SELECT max(position) FROM messages WHERE messages.thread_id = chosen.thread_id), 0) AS last
        FROM chosen
    ), changed AS (
        UPDATE threads SET revision = threads.revision + 1 + {parts}, meta_revision = threads.revision + 1,
               active_leaf = answer_id FROM planned WHERE threads.id = planned.thread_id
    ), asked AS (
        INSERT INTO messages (id, thread_id, position, parent_id, role, status, run_id, content, revision)
        SELECT question_id, thread_id, last + 1, active_leaf, 'user', 'final', NULL::uuid,
               '[{{"type": "text", "text": "And then?"}}]'::jsonb, revision + 1 FROM planned
        UNION ALL
        SELECT answer_id, thread_id, last + 2, question_id, 'assistant', 'streaming', id, NULL, revision + 1
        FROM planned
    ), written AS (
        INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
        SELECT id, seq, answer_id, thread_id, 'text-delta', '{{"text": "And then the tide turned. "}}',
               revision + 2 + seq
        FROM planned CROSS JOIN generate_series(0, {parts} - 1) AS seq
    ), reserved AS (
        INSERT INTO usage_ledger (run_id, scope, measure, key, starts_at, reserved, most)
        SELECT id, 'accounts', 'usd', '', date_trunc('day', now(), 'UTC'), 0.005, 1000 FROM planned
    )
    INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options,
                      user_id, epoch, lease_owner, lease_expires_at)
    SELECT id, thread_id, answer_id, question_id, last + 1, revision + 1, coalesce(owner_id, thread_id), '{status}',
           '{{}}', owner_id, {epoch}, {lease} FROM planned
"""
"""Begins one run in each chosen thread: queued, or running with a few parts."""

WAITING_THREADS = """
    INSERT INTO threads (id, owner_id, anon_key_hash)
    SELECT scale.id(now(), 2, number), CASE WHEN number % 2 = 0 THEN scale.user_id(2 + number % ({users} - 2)) END,
           CASE WHEN number % 2 = 1 THEN sha256(('key ' || number)::bytea) END
    FROM generate_series({first}, {first} + {count} - 1) AS number
    RETURNING id
"""
