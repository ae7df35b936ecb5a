"""Streams from their files: what is read, and one line with the remedy for each mistake."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from strategies import BPM, STREAMS

from schemas.stream import Field, SchemaError, build_stream, load_stream, load_streams

Change = Callable[[dict[str, Any]], object]


def reading_fields(avro: dict[str, Any]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = avro["fields"][4]["type"]["items"]["fields"]
    return fields


def field(kind: Any, **strobe: Any) -> dict[str, Any]:
    return {"name": "extra", "type": kind, "strobe": {"role": "value", **strobe}}


def test_the_shipped_streams_load() -> None:
    streams = load_streams(STREAMS)
    assert {(stream.name, stream.topic) for stream in streams.values()} >= {("bpm", "bpm.v1"), ("doros", "doros.v1")}
    assert [field.name for field in streams["doros"].values] == ["hor_v1", "hor_v2", "ver_v1", "ver_v2"]
    for stream in streams.values():
        assert stream.meaning
        assert all(field.unit and field.meaning for field in stream.values), stream.name


def test_a_stream_names_its_parts_by_role() -> None:
    assert BPM.readings == "readings"
    assert (BPM.source.name, BPM.run.name, BPM.trigger.name, BPM.time.name) == ("source", "run", "trigger_id", "time")
    assert (BPM.instrument.type, BPM.time.type, BPM.partitions, BPM.retention_hours) == (
        "string",
        "timestamp",
        None,
        168,
    )
    assert BPM.values[0] == Field("top_in", "float", nullable=True, unit="V", meaning="amplitude, top inner button")
    assert BPM.avro == json.loads((STREAMS / "bpm.avsc").read_text())


def test_attributes_of_the_stream_are_read() -> None:
    avro = copy.deepcopy(BPM.avro)
    avro["strobe"] |= {"partitions": 8, "retention_hours": 24}
    stream = build_stream(avro, "x.avsc")
    assert (stream.partitions, stream.retention_hours) == (8, 24)


def test_a_record_without_an_array_is_one_reading() -> None:
    avro = copy.deepcopy(BPM.avro)
    avro["fields"][4:] = reading_fields(avro)
    stream = build_stream(avro, "x.avsc")
    assert (stream.readings, len(stream.values)) == (None, 4)


MISTAKES: list[tuple[Change, str]] = [
    (lambda avro: avro["fields"].pop(1), "no field has the role 'run'; add"),
    (lambda avro: reading_fields(avro).pop(0), "no field has the role 'instrument'; add"),
    (lambda avro: avro.pop("strobe"), '"strobe" does not say "stream"; add'),
    (lambda avro: avro["strobe"].pop("topic"), '"strobe" does not say "topic"; add'),
    (lambda avro: avro["strobe"].update(topic="a b"), "'a b' is no topic name; use"),
    (lambda avro: avro["strobe"].update(stream="Bpm"), "'Bpm' is no name; use"),
    (lambda avro: avro["strobe"].update(storage="packed"), "'packed' is not known; write"),
    (lambda avro: avro["strobe"].update(partitions=0), '"partitions": 0 is not a whole number above 0; correct'),
    (lambda avro: avro["strobe"].update(partition=3), "unknown key 'partition'; use"),
    (lambda avro: avro.update(type="array"), "is not an Avro record; begin"),
    (lambda avro: avro.pop("fields"), "has no fields; add"),
    (lambda avro: avro.pop("name"), "is not a valid Avro schema"),
    (lambda avro: avro["fields"].append({"name": "extra", "type": "int"}), "field 'extra': has no role; give it"),
    (lambda avro: avro["fields"].append(field("int", role="valeu")), "unknown role 'valeu'; give it"),
    (lambda avro: avro["fields"].append(field("int", units="V")), "field 'extra': .*unknown key 'units'; use"),
    (lambda avro: avro["fields"].append(field("int", unit=3)), '"unit" is not text; put'),
    (lambda avro: avro["fields"].append(field("flaot")), "flaot.* is not known to Avro; correct"),
    (lambda avro: avro["fields"].append(field("string")), "role 'value' cannot be string; use"),
    (lambda avro: avro["fields"].append(field({"type": "map", "values": "int"})), "cannot be map; use"),
    (lambda avro: avro["fields"].append(field(["null", "int", "long"])), "union of more than null and one type; use"),
    (
        lambda avro: avro["fields"].append({**field(["int", "null"]), "default": None}),
        "not of the union's first type; write",
    ),
    (lambda avro: avro["fields"].append({**field("int"), "default": "x"}), "is not a valid Avro schema .*Default"),
    (
        lambda avro: avro["fields"].append({**field("int"), "name": "kafka_offset"}),
        "cannot be the name of a column; use",
    ),
    (lambda avro: avro["fields"].append({**field("int"), "name": "Upper"}), "cannot be the name of a column; use"),
    (lambda avro: avro["fields"].append({**field("int"), "name": "top_in"}), "field 'top_in': .*both; rename"),
    (lambda avro: avro["fields"].append(field("int", role="run")), "role 'run' is already that of 'run'; keep"),
    (lambda avro: avro["fields"][1].update(type="string"), "field 'run': role 'run' cannot be string; use"),
    (lambda avro: avro["fields"][1].update(type=["null", "long"]), "role 'run' cannot be null; use"),
    (lambda avro: avro["fields"][1].update(default=0), "role 'run' cannot have a default.*; remove"),
    (lambda avro: avro["fields"][3].update(type="long"), "role 'time' cannot be long; use .*timestamp-micros"),
    (
        lambda avro: avro["fields"][4].update(type={"type": "array", "items": "int"}),
        "must be an array of a record; write",
    ),
    (
        lambda avro: avro["fields"].append({**copy.deepcopy(avro["fields"][0]), "name": "s2"}),
        "role 'source' is already",
    ),
    (lambda avro: reading_fields(avro).append(field("long", role="trigger")), "belongs to the record, .*; move"),
    (lambda avro: avro["fields"].append(reading_fields(avro).pop(0)), "would be the same reading; move"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_a_mistake_in_a_schema_is_one_line_with_file_and_remedy(change: Change, message: str) -> None:
    avro = copy.deepcopy(BPM.avro)
    change(avro)
    with pytest.raises(SchemaError, match=message) as caught:
        build_stream(avro, "folder/bpm.avsc")
    assert str(caught.value).startswith("folder/bpm.avsc: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"type": "record",\n "name": }', r"x\.avsc:2:10: not JSON .*; correct it there"),
        (b'{"name": "\xff"}', r"x\.avsc: byte 10 is not UTF-8; save it as UTF-8"),
        (b"[]", r"x\.avsc: is not an Avro record; begin"),
    ],
)
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.avsc").write_bytes(content)
    with pytest.raises(SchemaError, match=message):
        load_streams(tmp_path)


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"none\.avsc: cannot be read .*; check the path"):
        load_stream(tmp_path / "none.avsc")
    with pytest.raises(SchemaError, match=r"holds no \.avsc file; put"):
        load_streams(tmp_path)


def test_two_files_of_one_name_or_topic_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text(json.dumps(BPM.avro))
    for strobe, message in (({"topic": "other"}, "name 'bpm'"), ({"stream": "other"}, r"topic 'bpm\.v1'")):
        (tmp_path / "b.avsc").write_text(json.dumps({**BPM.avro, "strobe": {**BPM.avro["strobe"], **strobe}}))
        with pytest.raises(SchemaError, match=message + " is also that of another file"):
            load_streams(tmp_path)
