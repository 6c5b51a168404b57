-- Splits message_parts into one table a month, by when each run was asked for: what is old can be dropped as a table,
-- which costs nothing, where DELETE writes each row again and leaves the rest to vacuum.
--
--   khala partition-parts month
--
-- A run's id is a UUID of version 7 and begins with the time, so the key stays as it is. Stop Khala first: the table is
-- locked, and copied. One transaction: it is split, or it is as it was. Khala drops empty ones: docs/scaling.md.
BEGIN;

LOCK TABLE message_parts IN ACCESS EXCLUSIVE MODE;
ALTER TABLE message_parts RENAME TO message_parts_whole;

CREATE TABLE message_parts (LIKE message_parts_whole INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING COMPRESSION)
    PARTITION BY RANGE (run_id);

-- The least id that a run can have which is asked for at that time.
CREATE FUNCTION run_id_at(at timestamptz) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- The table of the month in which this lies, unless it is there. Khala calls it for the next months before they begin:
-- what has no table of its own goes to the last one, which may not be dropped.
CREATE FUNCTION message_parts_month(at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    begins timestamptz := date_trunc('month', at, 'UTC');
BEGIN
    -- The parameters of the table before: a partitioned table has none of its own.
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF message_parts FOR VALUES FROM (%L) TO (%L) WITH (%s)',
        'message_parts_' || to_char(begins AT TIME ZONE 'UTC', 'YYYY_MM'),
        run_id_at(begins), run_id_at(date_trunc('month', begins + interval '32 days', 'UTC')),
        'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.02, '
        'autovacuum_vacuum_insert_threshold = 10000, autovacuum_freeze_min_age = 0');
END
$$;

CREATE TABLE message_parts_other PARTITION OF message_parts DEFAULT
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.02,
          autovacuum_vacuum_insert_threshold = 10000, autovacuum_freeze_min_age = 0);

SELECT message_parts_month(month) FROM generate_series(
    (SELECT coalesce(min(created_at), now()) FROM message_parts_whole) - interval '32 days',
    now() + interval '3 months', interval '28 days') AS month;

INSERT INTO message_parts SELECT * FROM message_parts_whole;

DROP TABLE message_parts_whole;

ALTER TABLE message_parts ADD CONSTRAINT message_parts_pkey PRIMARY KEY (run_id, seq);

COMMIT;

ANALYZE message_parts;
