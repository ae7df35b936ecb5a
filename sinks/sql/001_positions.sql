-- Where each sink stands: the position of the raw sink moves in the transaction that stores the rows before it.

CREATE TABLE strobe.incarnations (
    stream text NOT NULL,
    incarnation smallint NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, incarnation),
    UNIQUE (stream, topic_id)
);
COMMENT ON TABLE strobe.incarnations IS
    'Lives of a stream''s topic: a topic that is deleted and made anew counts its offsets from 0 again, so it is another one.';
COMMENT ON COLUMN strobe.incarnations.topic_id IS 'Kafka''s UUID of the topic';

CREATE TABLE strobe.positions (
    stream text NOT NULL,
    topic_id text NOT NULL,
    incarnation smallint NOT NULL,
    partition integer NOT NULL,
    first bigint NOT NULL,
    next bigint NOT NULL,
    epoch bigint NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now(),
    format smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (stream, topic_id, partition),
    CHECK (next >= first)
) WITH (fillfactor = 10); -- each row is updated many times a second: room for the next version in the same page
COMMENT ON TABLE strobe.positions IS
    'How far the raw tables reach: every record of the partition with first <= offset < next is stored, a duplicate or a dead letter.';
COMMENT ON COLUMN strobe.positions.format IS 'of the row: a sink that does not know it stops';
COMMENT ON COLUMN strobe.positions.first IS 'offset that was the log''s first when the partition was seen first; above 0: older records were gone';
COMMENT ON COLUMN strobe.positions.next IS 'offset of the next record to store';
COMMENT ON COLUMN strobe.positions.epoch IS 'counts the takers of the partition; a batch of an earlier taker finds another number and is rolled back';

CREATE TABLE strobe.gaps (
    stream text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    first bigint NOT NULL,
    next bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, topic_id, partition, first)
);
COMMENT ON TABLE strobe.gaps IS
    'Offsets that were never stored because the log did not hold them any more: first <= offset < next (next < first: the log was cut back).';

CREATE TABLE strobe.seen (
    stream text NOT NULL,
    incarnation smallint NOT NULL,
    partition integer NOT NULL,
    instrument_id text NOT NULL,
    triggers bytea NOT NULL,
    last_time timestamptz NOT NULL,
    last_append timestamptz NOT NULL,
    PRIMARY KEY (stream, incarnation, partition, instrument_id)
) WITH (fillfactor = 40); -- as positions
COMMENT ON TABLE strobe.seen IS
    'Which triggers of each instrument were stored, as of the partition''s position: the memory by which duplicates are told.';
COMMENT ON COLUMN strobe.seen.triggers IS 'intervals of trigger numbers per run; begins with a format number';
COMMENT ON COLUMN strobe.seen.last_time IS 'highest event time stored, UTC';
COMMENT ON COLUMN strobe.seen.last_append IS 'when the broker took in the last reading stored, UTC';
