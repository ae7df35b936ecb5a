"""One record on its way through every stage, in memory: from the trigger at the instrument to the row in SQL.

Read it from top to bottom beside docs/architecture.md; each step names the file that does it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from processors.combine import ViewPartition
from processors.combine_restore import CombineRestore
from processors.partial import SourcePartition
from processors.partial_restore import PartialRestore
from processors.plan import load_views
from processors.records import Message
from processors.rows import row_schema
from producers.reading_columns import record_outgoing
from schemas.batch import RawBatch
from schemas.codec import Codec
from schemas.encoder import Encoder
from schemas.flat import FlatCodec
from schemas.seen import Seen
from schemas.stream import load_streams
from sinks.raw import take_in
from sinks.view_rows import newest_rows, split

ROOT = Path(__file__).parent.parent
SECOND_US = 1_000_000
TIME_US = 1_760_000_000_250_000  # of the trigger: a quarter into a second
WRITER = bytes(16)


def as_batch(topic: str, payloads: Sequence[bytes | None]) -> RawBatch:
    """Payloads as a fetch would bring them, the first at offset 0."""
    sizes = np.array([-1 if payload is None else len(payload) for payload in payloads], np.int64)
    offsets = np.arange(len(payloads), dtype=np.int64)
    data = np.frombuffer(b"".join(payload or b"" for payload in payloads), np.uint8)
    starts = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
    append_us = np.full(len(payloads), TIME_US + 40_000)  # the broker stamps it 40 ms later
    return RawBatch(topic, 0, 0, len(payloads), data, starts, sizes, offsets, append_us)


def for_topic(messages: list[Message], topic: str) -> list[bytes | None]:
    return [message.value for message in messages if message.topic == topic]


def test_one_trigger_from_the_instrument_to_the_row() -> None:
    streams = load_streams(ROOT / "schemas" / "streams")  # what instruments send: schemas/streams/bpm.avsc
    bpm = streams["bpm"]
    plan = load_views(ROOT / "processors" / "views", streams)["bpm_1s"]  # what is kept of it: views/bpm_1s.sql

    # producers/: a crate has read two monitors at trigger 7; one record, one payload (schemas/encoder.py).
    readings = [
        {"instrument_id": "bpm001", "top_in": 1.0, "bot_in": 1.0, "bot_out": 2.0, "top_out": 2.0},
        {"instrument_id": "bpm002", "top_in": 1.5, "bot_in": None, "bot_out": 1.0, "top_out": 1.0},
    ]
    outgoing = record_outgoing(
        bpm, source="crate1", run=1, trigger=7, time=TIME_US / SECOND_US, readings=readings, values={}
    )
    (payload,) = Encoder(bpm, schema_id=1).encode(outgoing)
    topic = as_batch(bpm.topic, [payload, payload])  # Kafka keeps it; the producer was restarted and sent it twice

    # sinks/raw.py: decoded (schemas/codec.py), judged (schemas/judge.py), stored once with its provenance.
    codec = Codec(bpm, {1: bpm.avro}.__getitem__)
    intake = take_in(topic, codec.decode(topic), Seen(), max_skew_us=60 * SECOND_US)
    assert [(intake.columns.offset[i], intake.columns.index[i]) for i in intake.good] == [(0, 0), (0, 1)]
    assert intake.letters == []

    # processors/partial.py: absorbed into the state of (instrument, second), by the same judgement.
    source = SourcePartition(bpm.topic, "id", 0, 1, 60 * SECOND_US, 2 * SECOND_US)
    worker = PartialRestore(source, [plan], codec, None, log_start=0, log_end=2).finish(WRITER)
    worker.take(topic)
    flush = worker.flush()
    assert flush is not None
    partials = for_topic(flush.messages, "bpm_1s.partials")
    assert len(partials) == 2  # each monitor's whole state, and up to which offset it absorbed
    checkpoint = worker.acknowledged(flush)  # Kafka has all of it: the position may be committed
    assert checkpoint.position == 2
    partials += for_topic(worker.committed(checkpoint), "bpm_1s.partials")

    # processors/combine.py: the newest partial of every source partition, folded into the window's row.
    row_codec = FlatCodec(row_schema(plan, bpm), schema_id=2)
    combiner = CombineRestore(ViewPartition("bpm_1s.partials", "id", 0, 1), plan, row_codec, None, 3).finish(WRITER)
    combiner.take(as_batch("bpm_1s.partials", partials))
    rows_out = combiner.flush()
    assert rows_out is not None
    published = [value for value in for_topic(rows_out.messages, "bpm_1s") if value]

    # sinks/view_rows.py: of all rows for a window the richest stays, however often each comes.
    view_rows, marks = split(row_codec.decode(published * 2))
    view = newest_rows(view_rows, ["instrument_id"])
    assert not len(marks["mark_offset"].values)  # nothing came too late

    # What the operator reads:
    assert view["instrument_id"].values.tolist() == ["bpm001", "bpm002"]
    assert view["window_start"].values.tolist() == [TIME_US - 250_000] * 2
    assert view["count"].values.tolist() == view["revision"].values.tolist() == [1, 1]
    assert view["closed"].values.tolist() == [False, False]  # no source has passed the end of this second yet
    assert view["x_mean"].values[0] == ((2.0 + 2.0) - (1.0 + 1.0)) / 6.0
    assert not view["x_mean"].valid[1]  # a button gave nothing, so there is no position: NULL
    assert not view["x_stddev"].valid[0]  # one reading has no spread
