-- What could not be taken in. Written by the raw sink alone, in the transaction that moves its position.

CREATE TABLE public.dead_letters (
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    index integer NOT NULL,
    stream text NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    schema_id bigint,
    append_time timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    payload bytea,
    PRIMARY KEY (topic_id, partition, "offset", index)
);
CREATE INDEX dead_letters_received_at ON public.dead_letters (received_at DESC);
COMMENT ON TABLE public.dead_letters IS 'Records and readings that could not be stored, and why. A record read again makes the same row, so nothing is counted twice.';
COMMENT ON COLUMN public.dead_letters.topic_id IS 'Kafka''s UUID of the topic';
COMMENT ON COLUMN public.dead_letters.partition IS 'partition of the record';
COMMENT ON COLUMN public.dead_letters."offset" IS 'offset of the record';
COMMENT ON COLUMN public.dead_letters.index IS 'of the reading within its record, from 0; -1: no reading of the record could be decoded';
COMMENT ON COLUMN public.dead_letters.reason IS 'class of the reason, a word';
COMMENT ON COLUMN public.dead_letters.message IS 'what exactly';
COMMENT ON COLUMN public.dead_letters.schema_id IS 'schema id that the payload names; null: it has none';
COMMENT ON COLUMN public.dead_letters.append_time IS 'when the broker took the record in, UTC';
COMMENT ON COLUMN public.dead_letters.received_at IS 'when the sink wrote this row, UTC';
COMMENT ON COLUMN public.dead_letters.payload IS 'the record as it came; with the first of its letters only';
