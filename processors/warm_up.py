"""Compiles every kernel that readings meet, before the first reading comes. Knows no server; its readings are made up.

Compiled kernels stay in numba's cache on disk, so this takes long only once on a machine; otherwise the first batch
would wait for the compiler, in every stage at once. A kernel is compiled for the types of its arguments, so the
made-up records go through the same files as real ones instead of through the kernels alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from processors.combine import ViewPartition
from processors.combine_restore import CombineRestore
from processors.packing import ATTRIBUTES_AT, raw_batch
from processors.packing_kernels import LOG_APPEND_TIME_BIT
from processors.partial import SourcePartition, partials_topic
from processors.partial_restore import PartialRestore
from processors.plan import Plan
from processors.rows import row_schema
from processors.states import StateLayout
from schemas.batch import RawBatch, Vector
from schemas.codec import Codec
from schemas.encoder import Encoder, Outgoing
from schemas.flat import FlatCodec
from schemas.names import Dictionary
from schemas.stream import NUMPY_TYPES, Field, Stream

RECORDS = 2  # one reading each; the second follows the first
TIME_MS = 1_760_000_000_000  # event and append time of both
BATCH_BYTES_MAX = 1 << 20
MAX_SKEW_US = OUT_OF_ORDERNESS_US = 1_000_000
STREAM_SCHEMA_ID, ROW_SCHEMA_ID = 1, 2
WRITER = bytes(16)


def warm_up(streams: Mapping[str, Stream], plans: Mapping[str, Plan]) -> None:
    """Run all that is compiled for these streams and views once, in memory."""
    for texts in (True, False):
        Dictionary(texts=texts).grow()  # which otherwise waits for the 257th instrument
    for stream in streams.values():
        _follow(stream, [plan for plan in plans.values() if plan.stream == stream.name])


def _follow(stream: Stream, plans: Sequence[Plan]) -> None:
    """Two records of a stream, from the producer to the rows of its views."""
    raw = _fetched(stream.topic, Encoder(stream, STREAM_SCHEMA_ID).encode(_made_up(stream)))
    codec = Codec(stream, {STREAM_SCHEMA_ID: stream.avro}.__getitem__)
    source = SourcePartition(stream.topic, "", 0, 1, MAX_SKEW_US, OUT_OF_ORDERNESS_US)
    worker = PartialRestore(source, plans, codec, None, log_start=0, log_end=RECORDS).finish(WRITER)
    worker.take(raw)
    flush = worker.flush()
    messages = flush.messages if flush is not None else []
    for plan in plans:
        partials = [message.value for message in messages if message.topic == partials_topic(plan.name)]
        view = ViewPartition(partials_topic(plan.name), "", 0, 1)
        rows = FlatCodec(row_schema(plan, stream), ROW_SCHEMA_ID)
        combiner = CombineRestore(view, plan, rows, None, len(partials)).finish(WRITER)
        combiner.take(_fetched(view.partials, partials))
        combiner.flush()
        _touch(plan.layout)


def _touch(layout: StateLayout) -> None:
    """All kernels of a view's states: its WHERE may have turned the made-up readings away."""
    table, rows = np.zeros((RECORDS, layout.words), np.int64), np.arange(RECORDS)
    nothing = Vector(np.zeros(RECORDS, np.float64), np.zeros(RECORDS, np.bool_))
    layout.init(table, rows)
    layout.absorb(table, rows, [nothing] * layout.arguments)
    layout.fold(table, rows, table.copy(), rows)
    layout.finish(table, rows)


def _made_up(stream: Stream) -> Outgoing:
    """Records of one reading each, the same instrument at two triggers; of what may be null the first is."""
    numbers = np.arange(RECORDS, dtype=np.int64)
    return Outgoing(
        source=["warm-up"] * RECORDS,
        run=np.ones(RECORDS, np.int64),
        trigger=numbers,
        time_us=np.full(RECORDS, TIME_MS * 1000),
        counts=np.ones(RECORDS, np.int64),
        instrument=["warm-up"] * RECORDS if stream.instrument.type == "string" else np.ones(RECORDS, np.int64),
        status=np.zeros(RECORDS, np.int32),
        values={field.name: _values(field) for field in stream.values},
    )


def _values(field: Field) -> Vector:
    valid = np.ones(RECORDS, np.bool_)
    valid[0] = not field.nullable
    return Vector(np.ones(RECORDS, NUMPY_TYPES[field.type]), valid)


def _fetched(topic: str, values: Sequence[bytes | None]) -> RawBatch:
    """Values as Kafka would bring them, stamped by the broker."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES_MAX)
    for offset, value in enumerate(values):
        builder.append(offset, TIME_MS, None, value, [])
    data = builder.build()
    data[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME_BIT
    return raw_batch(topic, 0, 0, len(values) - 1, bytes(data))
