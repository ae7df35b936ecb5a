"""The codec against fastavro, against damage, and against what nobody should send."""

import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from corpus.hostile_messages import HOSTILE, SCHEMAS
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BPM, EVERY_TYPE, FLAT, damaged, data_of, encoded, expected_rows, raw_batch, rows_of, writers

from processors.app import AWAY, SAID
from schemas import kernels
from schemas.batch import WHOLE_RECORD, Decoded, RawBatch
from schemas.codec import REASONS, Codec, UndecodableError, UnknownSchemaIdError
from schemas.names import TooManyNamesError
from schemas.stream import Stream, build_stream
from sinks.__main__ import WRONG
from sinks.raw_stage import TROUBLE


def codec_of(stream: Stream, *schemas: dict[str, Any]) -> Codec:
    """Schema ids count from 1; all others are unknown."""

    def schema(schema_id: int) -> dict[str, Any]:
        if not 1 <= schema_id <= len(schemas):
            raise UnknownSchemaIdError(schema_id)
        return schemas[schema_id - 1]

    return Codec(stream, schema)


def read_by_fastavro(stream: Stream, writer: dict[str, Any], payload: bytes) -> dict[str, Any]:
    body = io.BytesIO(payload[kernels.HEADER_BYTES :])
    reader = fastavro.parse_schema(with_null_defaults(stream.avro))
    record: Any = fastavro.schemaless_reader(body, fastavro.parse_schema(writer), reader)
    return dict(record)


def with_null_defaults(avro: Any) -> Any:
    """The schema in Avro's strict sense: a field that may be null and has no default is null by default with us."""
    if isinstance(avro, list):
        return [with_null_defaults(part) for part in avro]
    if not isinstance(avro, dict):
        return avro
    out = {key: with_null_defaults(part) for key, part in avro.items() if key != "strobe"}
    if isinstance(avro.get("type"), list) and avro["type"][0] == "null":
        out.setdefault("default", None)
    return out


def fits(stream: Stream, record: dict[str, Any]) -> bool:
    """Whether the values for floats are small enough that rounding to double on the way, as Python does, is no step."""
    readings = [record] if stream.readings is None else record[stream.readings]
    single = [field.name for field in stream.values if field.type == "float"]
    numbers = [part[name] for part in (record, *readings) for name in single if part.get(name) is not None]
    return all(abs(number) <= 2**53 for number in numbers if math.isfinite(number))


@pytest.mark.parametrize("stream", [BPM, EVERY_TYPE, FLAT], ids=lambda stream: stream.name)
def test_columns_equal_what_fastavro_reads(stream: Stream) -> None:
    @settings(max_examples=60)
    @given(st.lists(data_of(stream.avro), max_size=4))
    def check(records: list[dict[str, Any]]) -> None:
        payloads = [encoded(stream.avro, record) for record in records]
        decoded = codec_of(stream, stream.avro).decode(raw_batch(payloads, first=50, step=3))
        assert decoded.letters == []
        assert rows_of(decoded.columns) == [
            row
            for i, payload in enumerate(payloads)
            for row in expected_rows(stream, 50 + 3 * i, read_by_fastavro(stream, stream.avro, payload))
        ]
        assert (decoded.columns.append_us == decoded.columns.offset * 10).all()

    check()


@pytest.mark.parametrize("stream", [EVERY_TYPE, FLAT], ids=lambda stream: stream.name)
def test_records_of_other_writers_are_resolved_as_fastavro_resolves_them(stream: Stream) -> None:
    @settings(max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schemas = data.draw(st.lists(writers(stream), min_size=1, max_size=3))
        payloads: list[bytes | None] = []
        expected = []
        for _ in range(data.draw(st.integers(1, 5))):
            number = data.draw(st.integers(0, len(schemas) - 1))
            payload = encoded(schemas[number], data.draw(data_of(schemas[number])), number + 1)
            read = read_by_fastavro(stream, schemas[number], payload)
            if fits(stream, read):
                expected += expected_rows(stream, 100 + len(payloads), read)
                payloads.append(payload)
        decoded = codec_of(stream, *schemas).decode(raw_batch(payloads))
        assert decoded.letters == []
        assert rows_of(decoded.columns) == expected

    check()


def test_a_batch_cut_anywhere_gives_the_same_rows() -> None:
    @settings(max_examples=30)
    @given(st.lists(data_of(BPM.avro), min_size=2, max_size=5), st.data())
    def check(records: list[dict[str, Any]], data: st.DataObject) -> None:
        payloads = [encoded(BPM.avro, record) for record in records]
        cut = data.draw(st.integers(1, len(payloads) - 1))
        whole, parts = codec_of(BPM, BPM.avro), codec_of(BPM, BPM.avro)
        rows = rows_of(parts.decode(raw_batch(payloads[:cut])).columns)
        rows += rows_of(parts.decode(raw_batch(payloads[cut:], first=100 + cut)).columns)
        assert rows == rows_of(whole.decode(raw_batch(payloads)).columns)
        assert (parts.instruments, parts.sources) == (whole.instruments, whole.sources)

    check()


@pytest.mark.parametrize("stream", [BPM, EVERY_TYPE, FLAT], ids=lambda stream: stream.name)
def test_a_damaged_message_becomes_a_letter_or_rows_and_its_neighbours_never_notice(stream: Stream) -> None:
    @settings(max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schemas = [stream.avro] if stream is BPM else [stream.avro, data.draw(writers(stream))]
        payloads = [
            encoded(schemas[number], data.draw(data_of(schemas[number])), number + 1)
            for number in data.draw(st.lists(st.integers(0, len(schemas) - 1), min_size=1, max_size=3))
        ]
        victim = data.draw(st.integers(0, len(payloads) - 1))
        bad = data.draw(damaged(payloads[victim]))
        before = codec_of(stream, *schemas).decode(raw_batch(payloads))
        after = codec_of(stream, *schemas).decode(raw_batch([*payloads[:victim], bad, *payloads[victim + 1 :]]))

        def others(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            return [row for row in rows if row[0] != 100 + victim]

        assert others(rows_of(after.columns)) == others(rows_of(before.columns))
        mine = [letter for letter in after.letters if letter.offset == 100 + victim]
        kept = [row for row in rows_of(after.columns) if row[0] == 100 + victim]
        assert len(mine) <= 1
        assert not (mine and kept)
        for letter in mine:
            assert (letter.index, letter.payload) == (WHOLE_RECORD, bad)
            assert letter.reason in REASONS
            with pytest.raises(UndecodableError) as caught:
                codec_of(stream, *schemas).decode_one(bad)
            assert (caught.value.reason, caught.value.message) == (letter.reason, letter.message)

    check()


def test_a_damaged_message_that_is_taken_reads_as_fastavro_reads_it() -> None:
    plain = {**BPM.avro, "fields": [dict(field) for field in BPM.avro["fields"]]}
    plain["fields"][3]["type"] = "long"  # fastavro would make a datetime, which ends in the year 9999

    @settings(max_examples=250)
    @given(data_of(BPM.avro).flatmap(lambda record: damaged(encoded(BPM.avro, record))))
    def check(bad: bytes) -> None:
        try:
            columns = codec_of(BPM, BPM.avro).decode_one(bad)
        except UndecodableError:
            return
        read: Any = fastavro.schemaless_reader(io.BytesIO(bad[5:]), fastavro.parse_schema(plain), None)
        assert rows_of(columns) == expected_rows(BPM, 0, read)

    check()


@pytest.mark.parametrize(("name", "payload", "reason"), HOSTILE, ids=[name for name, _, _ in HOSTILE])
def test_a_hostile_message_is_refused_with_its_reason(name: str, payload: bytes | None, reason: str) -> None:
    del name
    codec = codec_of(BPM, *SCHEMAS)
    good = encoded(BPM.avro, RECORD)
    decoded = codec.decode(raw_batch([good, payload, good]))
    assert [(letter.offset, letter.reason) for letter in decoded.letters] == [(101, reason)]
    assert [row[0] for row in rows_of(decoded.columns)] == [100, 102]
    assert (codec.instruments, codec.sources) == (["bpm1"], ["crate1"])  # nothing of the refused record stays
    with pytest.raises(UndecodableError, match=reason):
        codec.decode_one(payload)


def test_the_corpus_has_every_reason() -> None:
    assert {reason for _, _, reason in HOSTILE} == set(REASONS)


RECORD = {
    "source": "crate1",
    "run": 1,
    "trigger_id": 2,
    "time": 3,
    "readings": [{"instrument_id": "bpm1", "status": 0, "top_in": 1.0, "bot_in": None, "bot_out": 0.5, "top_out": 2.0}],
}


def test_a_letter_says_where_the_damage_is() -> None:
    bad = encoded(BPM.avro, RECORD).replace(b"bpm1", b"bp\xff1")
    letter = codec_of(BPM, BPM.avro).decode(raw_batch([bad])).letters[0]
    assert letter.message == f"readings.instrument_id, byte 17 of {len(bad)}: a name is not UTF-8, or holds NUL"


def test_an_incompatible_writer_is_named_in_the_letter() -> None:
    fields = [field for field in BPM.avro["fields"] if field["name"] != "run"]
    writer = {**BPM.avro, "fields": fields}
    record = {name: part for name, part in RECORD.items() if name != "run"}
    letter = codec_of(BPM, writer).decode(raw_batch([encoded(writer, record)])).letters[0]
    assert letter.reason == "incompatible"
    assert letter.message == "schema id 1: field 'run' is missing in the writer's schema and has no default"


class RegistryAwayError(Exception):
    """What the registry's client raises when nobody answers."""


def test_a_registry_that_is_away_leaves_the_codec_as_it_was() -> None:
    away = True

    def schema(schema_id: int) -> dict[str, Any]:
        if schema_id == 2 and away:
            raise RegistryAwayError
        return BPM.avro

    codec = Codec(BPM, schema)
    batch = raw_batch([encoded(BPM.avro, RECORD, 1), encoded(BPM.avro, RECORD, 2)])
    with pytest.raises(RegistryAwayError):
        codec.decode(batch)
    assert (codec.instruments, codec.sources) == ([], [])
    away = False
    assert [row[0] for row in rows_of(codec.decode(batch).columns)] == [100, 101]


def test_an_unknown_id_is_asked_for_once_a_batch_and_again_in_the_next() -> None:
    asked = []

    def schema(schema_id: int) -> dict[str, Any]:
        asked.append(schema_id)
        raise UnknownSchemaIdError(schema_id)

    codec = Codec(BPM, schema)
    batch = raw_batch([encoded(BPM.avro, RECORD, 7)] * 3)
    assert [letter.reason for letter in codec.decode(batch).letters] == ["unknown-schema"] * 3
    codec.decode(batch)
    assert asked == [7, 7]


def test_a_batch_without_records_gives_empty_columns() -> None:
    columns, letters = codec_of(BPM, BPM.avro).decode(raw_batch([]))
    assert (len(columns), letters) == (0, [])
    assert list(columns.values) == ["top_in", "bot_in", "bot_out", "top_out"]
    assert [vector.values.dtype for vector in columns.values.values()] == [np.float32] * 4


def test_a_batch_that_points_outside_its_data_is_a_bug_and_said_so() -> None:
    batch = raw_batch([encoded(BPM.avro, RECORD)])
    for wrong in (batch._replace(sizes=batch.sizes + 1), batch._replace(starts=batch.starts - 1)):
        with pytest.raises(ValueError, match="outside its data"):
            codec_of(BPM, BPM.avro).decode(wrong)


def test_many_instruments_make_the_dictionary_grow_and_codes_stay() -> None:
    codec = codec_of(BPM, BPM.avro)
    readings = [{**RECORD["readings"][0], "instrument_id": f"bpm{i:05d}"} for i in range(3000)]  # type: ignore[index]
    payload = encoded(BPM.avro, {**RECORD, "readings": readings})
    for _ in range(2):
        rows = rows_of(codec.decode(raw_batch([payload])).columns)
        assert [row[6] for row in rows] == [reading["instrument_id"] for reading in readings]
    assert len(codec.instruments) == 3000
    numbered = codec_of(FLAT, FLAT.avro)
    flat = {"source": "s", "run": 1, "trigger": 2, "time": 3, "level": 1.0, "count": 1}
    payloads: list[bytes | None] = [encoded(FLAT.avro, {**flat, "instrument": i * 2**40}) for i in range(3000)]
    assert [row[6] for row in rows_of(numbered.decode(raw_batch(payloads)).columns)] == [i * 2**40 for i in range(3000)]


def test_more_instruments_than_the_bound_stop_the_process_and_leave_the_codec_as_it_was() -> None:
    codec = Codec(BPM, {1: BPM.avro}.__getitem__, instruments_max=3)

    def batch(*numbers: int) -> RawBatch:
        readings = [{**RECORD["readings"][0], "instrument_id": f"bpm{i}"} for i in numbers]  # type: ignore[index]
        return raw_batch([encoded(BPM.avro, {**RECORD, "readings": [reading]}) for reading in readings])

    codec.decode(batch(0))
    with pytest.raises(TooManyNamesError) as stopped:
        codec.decode(batch(0, 1, 2, 3, 0))
    assert str(stopped.value) == (
        "stream bpm, t[3] offset 103: more than 3 instruments in one process; if they are real, raise INSTRUMENTS_MAX"
        " in schemas/names.py; if not, stop the producer that sends damaged names, and restart."
        " The newest: 'bpm0', 'bpm1', 'bpm2'"
    )
    assert (codec.instruments, codec.sources) == (["bpm0"], ["crate1"])
    rows = rows_of(codec.decode(batch(7, 8, 0)).columns)  # the bound is on names, not on tries
    assert [row[6] for row in rows] == ["bpm7", "bpm8", "bpm0"]


def test_more_sources_than_the_bound_stop_the_process_too() -> None:
    codec = Codec(FLAT, {1: FLAT.avro}.__getitem__, sources_max=2)
    flat = {"run": 1, "instrument": 5, "trigger": 2, "time": 3, "level": 1.0, "count": 1}
    sent = [encoded(FLAT.avro, {**flat, "source": f"crate\n{i}"}) for i in range(3)]
    with pytest.raises(TooManyNamesError, match=r"more than 2 sources .* raise SOURCES_MAX .*'crate\\n0'") as stopped:
        codec.decode(raw_batch([*sent]))
    assert len(str(stopped.value).splitlines()) == 1
    assert (codec.instruments, codec.sources) == ([], [])


def test_a_stage_with_too_many_names_ends_in_their_line_instead_of_trying_again() -> None:
    assert TooManyNamesError in SAID
    assert TooManyNamesError in WRONG
    assert not issubclass(TooManyNamesError, (*TROUBLE, *AWAY))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=30))
def test_what_a_codec_read_before_changes_no_letter_and_no_row(batches: list[list[int]]) -> None:
    def payload(number: int) -> bytes:
        reading = {**RECORD["readings"][0], "instrument_id": f"bpm{number}"}  # type: ignore[index]
        good = encoded(BPM.avro, {**RECORD, "source": f"crate{number % 7}", "readings": [reading, reading]})
        return good[:-1] if number % 3 == 0 else good

    old = codec_of(BPM, BPM.avro)
    bounded = Codec(BPM, {1: BPM.avro}.__getitem__, instruments_max=20)
    for numbers in batches:
        batch = raw_batch([payload(number) for number in numbers])
        fresh = codec_of(BPM, BPM.avro).decode(batch)
        for decoded in (old.decode(batch), decoded_or_none(bounded, batch)):
            if decoded is not None:
                assert decoded.letters == fresh.letters
                assert rows_of(decoded.columns) == rows_of(fresh.columns)


def decoded_or_none(codec: Codec, batch: RawBatch) -> Decoded | None:
    try:
        return codec.decode(batch)
    except TooManyNamesError:
        return None


def test_blocks_that_say_their_bytes_are_read() -> None:
    def zigzag(number: int) -> bytes:
        out, left = b"", (number << 1) ^ (number >> 63)
        while left > 127:
            out, left = out + bytes([left & 127 | 128]), left >> 7
        return out + bytes([left])

    plain = encoded(BPM.avro, RECORD)
    item = plain[plain.index(b"\x08bpm1") : -1]
    head = plain[: plain.index(b"\x08bpm1") - 1]
    blocks = head + zigzag(-1) + zigzag(len(item)) + item + zigzag(2) + item + item + zigzag(-1) + zigzag(len(item))
    rows = rows_of(codec_of(BPM, BPM.avro).decode_one(blocks + item + b"\0"))
    assert [row[1] for row in rows] == [0, 1, 2, 3]
    assert len({row[2:] for row in rows}) == 1


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        ("timestamp-micros", -1, -1),
        ("timestamp-millis", -1, -1000),
        ("timestamp-nanos", -1, -1),  # floored, as all instants are
        ("timestamp-nanos", 1999, 1),
        (None, 5, 5),  # a plain long is in the stream's own unit
    ],
)
def test_instants_of_other_units_become_microseconds(unit: str | None, given: int, expected: int) -> None:
    kind = {"type": "long"} if unit is None else {"type": "long", "logicalType": unit}
    writer = {**BPM.avro, "fields": [dict(field) for field in BPM.avro["fields"]]}
    writer["fields"][3]["type"] = kind
    plain = {**writer, "fields": [dict(field) for field in writer["fields"]]}
    plain["fields"][3]["type"] = "long"
    columns = codec_of(BPM, writer).decode_one(encoded(plain, {**RECORD, "time": given}))
    assert columns.time_us.tolist() == [expected]


def test_an_instant_without_a_zone_is_incompatible() -> None:
    writer = {**BPM.avro, "fields": [dict(field) for field in BPM.avro["fields"]]}
    writer["fields"][3]["type"] = {"type": "long", "logicalType": "local-timestamp-micros"}
    with pytest.raises(UndecodableError, match="field 'time' is long \\(local-timestamp-micros\\)"):
        codec_of(BPM, writer).decode_one(b"\0\0\0\0\1xxxx")


def test_an_alias_finds_the_field_under_its_old_name() -> None:
    stream = build_stream(
        {**FLAT.avro, "fields": [*FLAT.avro["fields"][:-1], {**FLAT.avro["fields"][-1], "aliases": ["number"]}]}, "f"
    )
    writer = {**FLAT.avro, "fields": [*FLAT.avro["fields"][:-1], {"name": "number", "type": "int"}]}
    record = {"source": "s", "run": 1, "trigger": 2, "time": 3, "instrument": 4, "level": None, "number": 77}
    assert codec_of(stream, writer).decode_one(encoded(writer, record)).values["count"].values.tolist() == [77]


def test_no_index_leaves_its_array_when_the_kernel_runs_in_python() -> None:
    """Compiled code does not check indexes; Python does. So the kernels run uncompiled on damaged messages."""
    here = Path(__file__).parent
    environ = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
    done = subprocess.run(
        [sys.executable, str(here / "uncompiled_codec.py")], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 100  # letters: the damage was noticed


def test_a_null_of_a_record_without_readings_is_not_the_next_record_s() -> None:
    writer = {**EVERY_TYPE.avro, "fields": [dict(field) for field in EVERY_TYPE.avro["fields"]]}
    writer["fields"][4]["type"] = "double"
    del writer["fields"][4]["default"]
    head = {"source": "s", "run": 1, "trigger": 2, "time": 3, "shots": 4, "lit": True}
    reading = {"instrument": "i", "status": 0, "flag": True, "small": 1, "large": 2, "single": 1.0, "double": 2.0}
    payloads: list[bytes | None] = [
        encoded(EVERY_TYPE.avro, {**head, "energy": None, "readings": []}, 1),
        encoded(writer, {**head, "energy": 8.0, "readings": [{**reading, "seen": None}]}, 2),
    ]
    energy = codec_of(EVERY_TYPE, EVERY_TYPE.avro, writer).decode(raw_batch(payloads)).columns.values["energy"]
    assert (energy.values.tolist(), energy.valid.tolist()) == ([8.0], [True])
