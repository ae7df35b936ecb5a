-- How long raw rows and view rows are kept: whole chunks are dropped, by the raw sink, every hour. Time counts from
-- when a chunk was first written to, not from the event time of its rows: measured data of last year, sent today, stays.

CREATE TABLE strobe.retention (
    table_schema text NOT NULL,
    table_name text NOT NULL,
    keep interval NOT NULL CHECK (keep > interval '0'),
    PRIMARY KEY (table_schema, table_name)
);
COMMENT ON TABLE strobe.retention IS 'How long each hypertable keeps a chunk of rows after first writing to it; an operator may change it.';

-- Dropping needs the owner's rights, which the sinks do not have: the function lends them for this one thing.
CREATE FUNCTION strobe.drop_old_chunks(chunks_max integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    kept strobe.retention;
    chunk regclass;
    dropped bigint := 0;
    bound timestamptz;
BEGIN
    FOR kept IN SELECT * FROM strobe.retention ORDER BY table_schema, table_name LOOP
        SELECT d.chunk_creation_time INTO bound
        FROM timescaledb_information.chunks d
        WHERE d.hypertable_schema = kept.table_schema AND d.hypertable_name = kept.table_name
          AND d.chunk_creation_time <= now() - kept.keep
        ORDER BY d.chunk_creation_time OFFSET greatest(chunks_max - dropped - 1, 0) LIMIT 1;
        bound := coalesce(bound + interval '1 microsecond', now() - kept.keep);
        SELECT dropped + count(*) INTO dropped
        FROM drop_chunks(format('%I.%I', kept.table_schema, kept.table_name)::regclass, created_before => bound);
        EXIT WHEN dropped >= chunks_max;
    END LOOP;
    RETURN dropped;
END $$;
REVOKE ALL ON FUNCTION strobe.drop_old_chunks(integer) FROM PUBLIC;
COMMENT ON FUNCTION strobe.drop_old_chunks IS 'Drops chunks older than strobe.retention says, about chunks_max at most, oldest first; returns how many.';
