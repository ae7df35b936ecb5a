-- How the pipeline fares: what instruments sent last, and how each sink keeps up.

CREATE TABLE strobe.stages (
    stage text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    next bigint NOT NULL,
    log_end bigint NOT NULL,
    records bigint NOT NULL,
    records_per_s double precision NOT NULL,
    freshness_s double precision,
    waiting_for text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stage, topic, partition)
) WITH (fillfactor = 10); -- each row is updated every second
COMMENT ON TABLE strobe.stages IS 'What each sink says of itself every second, by partition; the last one to take a partition says it.';

CREATE VIEW public.stage_health AS
SELECT stage, topic, partition, host, pid, next, log_end, greatest(log_end - next, 0) AS lag,
       records, records_per_s, freshness_s, waiting_for,
       extract(epoch FROM clock_timestamp() - updated_at)::double precision AS age_s
FROM strobe.stages;
COMMENT ON VIEW public.stage_health IS 'Rate, lag and freshness of each sink, by partition.';
COMMENT ON COLUMN public.stage_health.stage IS 'raw-sink or view-sink';
COMMENT ON COLUMN public.stage_health.host IS 'machine that the stage runs on';
COMMENT ON COLUMN public.stage_health.pid IS 'process number of the stage';
COMMENT ON COLUMN public.stage_health.next IS 'offset of the next record to take in';
COMMENT ON COLUMN public.stage_health.log_end IS 'one past the last offset in the log';
COMMENT ON COLUMN public.stage_health.lag IS 'records that wait in Kafka';
COMMENT ON COLUMN public.stage_health.records IS 'records taken in since the stage took the partition';
COMMENT ON COLUMN public.stage_health.records_per_s IS 'records taken in, 1/s, over the last second';
COMMENT ON COLUMN public.stage_health.freshness_s IS 'age of the newest record when it was committed, s, since the broker took it in; null: none yet';
COMMENT ON COLUMN public.stage_health.waiting_for IS 'what outside the stage waits for; null: nothing';
COMMENT ON COLUMN public.stage_health.age_s IS 'how long ago the stage said so, s: more than a few means that it is down';

CREATE VIEW public.pipeline_health AS
SELECT stream,
       instrument_id,
       max(last_time) AS last_time,
       extract(epoch FROM clock_timestamp() - max(last_append))::double precision AS silence_s,
       array_agg(DISTINCT partition ORDER BY partition) AS partitions,
       count(DISTINCT partition) > 1 AS in_two_partitions
FROM strobe.seen
WHERE incarnation = (SELECT max(i.incarnation) FROM strobe.incarnations i WHERE i.stream = seen.stream)
GROUP BY stream, instrument_id;
COMMENT ON VIEW public.pipeline_health IS 'Every instrument that was ever stored: how long it has been silent, and whether its source is what it should be.';
COMMENT ON COLUMN public.pipeline_health.last_time IS 'highest event time stored, UTC';
COMMENT ON COLUMN public.pipeline_health.silence_s IS 'wall-clock time since the broker took in its last reading, s';
COMMENT ON COLUMN public.pipeline_health.partitions IS 'partitions of the topic that it was seen in';
COMMENT ON COLUMN public.pipeline_health.in_two_partitions IS 'true: it was sent under two keys, so duplicates of it are not told apart; give each instrument one source';
