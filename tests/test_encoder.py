"""The encoder against fastavro, byte for byte, and through the codec and back."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BPM, EVERY_TYPE, FLAT, data_of, encoded, raw_batch, rows_of

from schemas.batch import Vector
from schemas.codec import Codec
from schemas.encoder import EncodeError, Encoder, Outgoing
from schemas.stream import NUMPY_TYPES, Stream, build_stream


def outgoing_of(stream: Stream, records: list[dict[str, Any]]) -> Outgoing:
    """Records as fastavro takes them, as columns."""
    groups = [[record] if stream.readings is None else record[stream.readings] for record in records]
    rows = [{**record, **reading} for record, group in zip(records, groups, strict=True) for reading in group]
    instruments = [row[stream.instrument.name] for row in rows]
    values = {}
    for field in stream.values:
        given = [row[field.name] for row in rows]
        valid = np.array([value is not None for value in given], np.bool_)
        filled = [0 if value is None else value for value in given]
        values[field.name] = Vector(np.array(filled, NUMPY_TYPES[field.type]), valid)
    return Outgoing(
        source=[record[stream.source.name] for record in records],
        run=np.array([record[stream.run.name] for record in records], np.int64),
        trigger=np.array([record[stream.trigger.name] for record in records], np.int64),
        time_us=np.array([record[stream.time.name] for record in records], np.int64),
        counts=np.array([len(group) for group in groups], np.int64),
        instrument=instruments if stream.instrument.type == "string" else np.array(instruments, np.int64),
        status=np.array([row[stream.status.name] if stream.status else 0 for row in rows], np.int32),
        values=values,
    )


@pytest.mark.parametrize("stream", [BPM, EVERY_TYPE, FLAT], ids=lambda stream: stream.name)
def test_payloads_are_those_of_fastavro(stream: Stream) -> None:
    @settings(max_examples=80)
    @given(st.lists(data_of(stream.avro), max_size=4))
    def check(records: list[dict[str, Any]]) -> None:
        if stream is EVERY_TYPE:  # the values of a record come from its first reading
            records = [record for record in records if record["readings"]]
        expected = [encoded(stream.avro, record, 258) for record in records]
        assert Encoder(stream, 258).encode(outgoing_of(stream, records)) == expected

    check()


@settings(max_examples=30)
@given(st.lists(data_of(EVERY_TYPE.avro).filter(lambda record: record["readings"]), min_size=1, max_size=4))
def test_what_is_encoded_decodes_to_the_same(records: list[dict[str, Any]]) -> None:
    outgoing = outgoing_of(EVERY_TYPE, records)
    columns, letters = Codec(EVERY_TYPE, lambda _: EVERY_TYPE.avro).decode(
        raw_batch([*Encoder(EVERY_TYPE, 1).encode(outgoing)])
    )
    assert letters == []
    assert [row[6] for row in rows_of(columns)] == list(outgoing.instrument)
    for name, vector in outgoing.values.items():
        assert (columns.values[name].valid == vector.valid).all()
        if name not in ("energy", "shots", "lit"):  # of the record: the first reading's
            there = vector.valid
            assert columns.values[name].values[there].tobytes() == vector.values[there].tobytes()


@pytest.mark.parametrize(("unit", "written"), [("timestamp-millis", 1234), ("timestamp-nanos", 1234567000)])
def test_instants_are_written_in_the_unit_of_the_stream(unit: str, written: int) -> None:
    fields = [dict(field) for field in FLAT.avro["fields"]]
    fields[3]["type"] = {"type": "long", "logicalType": unit}
    stream = build_stream({**FLAT.avro, "fields": fields}, "flat.avsc")
    record = {"source": "s", "run": 1, "trigger": 2, "time": 1234567, "instrument": 3, "level": None, "count": 4}
    plain = {**FLAT.avro, "fields": [*fields[:3], {"name": "time", "type": "long"}, *fields[4:]]}
    assert Encoder(stream, 1).encode(outgoing_of(FLAT, [record])) == [encoded(plain, {**record, "time": written})]


def good() -> Outgoing:
    one = np.ones(2, np.int64)
    return Outgoing(
        source=["a", "b"],
        run=one,
        trigger=one,
        time_us=one,
        counts=one,
        instrument=["x", "y"],
        status=np.zeros(2, np.int32),
        values={field.name: Vector(np.ones(2, np.float32), np.ones(2, np.bool_)) for field in BPM.values},
    )


def test_a_value_that_is_not_given_is_null() -> None:
    outgoing = replace(good(), values={})
    columns = Codec(BPM, lambda _: BPM.avro).decode(raw_batch([*Encoder(BPM, 1).encode(outgoing)])).columns
    assert not any(vector.valid.any() for vector in columns.values.values())


def test_no_records_are_no_payloads() -> None:
    none = np.zeros(0, np.int64)
    assert Encoder(BPM, 1).encode(Outgoing([], none, none, none, none, [], np.zeros(0, np.int32), {})) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": np.ones(3, np.int64)}, "run has 3 entries, not 2"),
        ({"counts": np.array([1, 2])}, "counts add up to 3, but there are 2 readings"),
        ({"counts": np.array([-1, 3])}, "less than 0"),
        ({"instrument": ["x"]}, "instrument has 1 entries, not 2"),
        ({"instrument": ["x", "a\0b"]}, "holds NUL"),
        ({"source": ["x", "y" * 256]}, "more than 255 bytes"),
        ({"values": {"top_inn": Vector(np.ones(2), np.ones(2, np.bool_))}}, "top_inn is no value of stream bpm"),
        ({"values": {"top_in": Vector(np.ones(2), np.ones(1, np.bool_))}}, r"top_in \(valid\) has 1 entries"),
        ({"status": np.array([0, 2**40])}, "status: a value does not fit the 32 bits"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        Encoder(BPM, 1).encode(replace(good(), **change))


def test_a_null_where_the_stream_has_none_is_refused() -> None:
    record = {"source": "s", "run": 1, "trigger": 2, "time": 3, "instrument": 4, "level": None, "count": None}
    with pytest.raises(EncodeError, match="count: a value is missing, and the field cannot be null"):
        Encoder(FLAT, 1).encode(outgoing_of(FLAT, [record]))


def test_a_flat_record_is_one_reading() -> None:
    record = {"source": "s", "run": 1, "trigger": 2, "time": 3, "instrument": 4, "level": None, "count": 5}
    outgoing = replace(outgoing_of(FLAT, [record, record]), counts=np.array([0, 2]))
    with pytest.raises(EncodeError, match="a record of stream flat is one reading"):
        Encoder(FLAT, 1).encode(outgoing)
