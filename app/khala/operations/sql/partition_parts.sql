-- Splits message_parts into 16 tables by a hash of the run's id, for vacuum, reindexing and backups in smaller pieces.
--
--   khala partition-parts hash
--
-- Stop Khala first: the table is locked, and copied. One transaction: it is split, or it is as it was. There has to be
-- room on disk for a second copy. docs/scaling.md says what it costs and what it is good for.
BEGIN;

LOCK TABLE message_parts IN ACCESS EXCLUSIVE MODE;
ALTER TABLE message_parts RENAME TO message_parts_whole;

CREATE TABLE message_parts (LIKE message_parts_whole INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING COMPRESSION)
    PARTITION BY HASH (run_id);

DO $$
BEGIN
    FOR place IN 0..15 LOOP
        -- The parameters of the table before: a partitioned table has none of its own.
        EXECUTE format(
            'CREATE TABLE message_parts_%s PARTITION OF message_parts FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (%s)',
            place, place, 'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.02, '
            'autovacuum_vacuum_insert_threshold = 10000, autovacuum_freeze_min_age = 0');
    END LOOP;
END
$$;

INSERT INTO message_parts SELECT * FROM message_parts_whole;

DROP TABLE message_parts_whole;

-- After the copy: an index is smaller and sooner made of rows that are there.
ALTER TABLE message_parts ADD CONSTRAINT message_parts_pkey PRIMARY KEY (run_id, seq);

COMMIT;

ANALYZE message_parts;
