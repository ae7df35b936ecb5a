"""What the tests of schemas share: records, writers' schemas, damage, and rows in a form that can be compared."""

import copy
import io
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
from hypothesis import strategies as st

from schemas.batch import Columns, RawBatch
from schemas.stream import Stream, build_stream, load_stream

STREAMS = Path(__file__).parent.parent / "schemas" / "streams"
BPM = load_stream(STREAMS / "bpm.avsc")
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def value(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "strobe": {"role": "value", "unit": "1", "meaning": name}, **more}


def role(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "strobe": {"role": name}, **more}


HEAD = [role("source", "string"), role("run", "long"), role("trigger", "int"), role("time", MICROS)]
EVERY_TYPE = build_stream(  # an array of readings, and values of every type on the record and on the reading
    {
        "type": "record",
        "name": "Every",
        "namespace": "strobe.test",
        "strobe": {"stream": "every", "topic": "every.v1"},
        "fields": [
            *HEAD,
            value("energy", ["null", "double"], default=None),
            value("shots", "long", default=-7),
            {
                "name": "readings",
                "strobe": {"role": "readings"},
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "EveryReading",
                        "fields": [
                            role("instrument", "string"),
                            role("status", "int", default=3),
                            value("flag", "boolean", default=True),
                            value("small", ["int", "null"], default=5),
                            value("large", ["null", "long"]),
                            value("single", "float", default=1.5),
                            value("double", "double"),
                            value("seen", ["null", MICROS], default=None),
                        ],
                    },
                },
            },
            value("lit", "boolean"),
        ],
    },
    "every.avsc",
)
FLAT = build_stream(  # a record is a reading; instruments are numbers
    {
        "type": "record",
        "name": "Flat",
        "strobe": {"stream": "flat", "topic": "flat.v1"},
        "fields": [*HEAD, role("instrument", "long"), value("level", ["null", "float"]), value("count", "int")],
    },
    "flat.avsc",
)

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["crate1", "bpm001", "bpm002", "Strahllage ä", "加速器", "🙂"]
)
ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32)
instants_us = st.integers(0, 4_000_000_000_000_000)  # until 2096
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": ints,
    "long": longs,
    "float": floats,
    "double": st.floats(),
    "string": names,
    "bytes": names.map(str.encode),
}
EXTRAS: list[Any] = [  # types of fields that a stream does not know
    *[kind for kind in PRIMITIVES if kind != "null"],
    {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "BLUE"]},
    {"type": "fixed", "name": "Digest", "size": 3},
    {"type": "array", "items": "long"},
    {"type": "array", "items": {"type": "array", "items": "string"}},
    {"type": "map", "values": ["null", "double", {"type": "array", "items": "int"}]},
    ["null", "string", {"type": "map", "values": "bytes"}],
    {
        "type": "record",
        "name": "Pair",
        "fields": [{"name": "l", "type": "int"}, {"name": "r", "type": ["null", "float"]}],
    },
    {"type": "array", "items": {"type": "record", "name": "Item", "fields": [{"name": "text", "type": "string"}]}},
    {
        "type": "record",
        "name": "Link",
        "fields": [{"name": "weight", "type": "long"}, {"name": "next", "type": ["null", "Link"]}],
    },
]
WIDER = {"long": ["int"], "float": ["int", "long"], "double": ["int", "long", "float"], "string": ["bytes"]}


def data_of(avro: Any, named: dict[str, Any] | None = None, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of an Avro type, as fastavro takes them."""
    named = {} if named is None else named
    if isinstance(avro, list):
        branches = [branch for branch in avro if depth < 3 or branch == "null" or "null" not in avro]
        return st.one_of([data_of(branch, named, depth + 1) for branch in branches])
    if isinstance(avro, str):
        return PRIMITIVES[avro] if avro in PRIMITIVES else data_of(named[avro], named, depth + 1)
    kind = avro["type"]
    if kind == "record":
        named[avro["name"]] = avro
        fields = {field["name"]: data_of(field["type"], named, depth) for field in avro["fields"]}
        return st.fixed_dictionaries(fields)
    if kind == "array":
        return st.lists(data_of(avro["items"], named, depth + 1), max_size=3)
    if kind == "map":
        return st.dictionaries(names, data_of(avro["values"], named, depth + 1), max_size=2)
    if kind == "enum":
        return st.sampled_from(avro["symbols"])
    if kind == "fixed":
        return st.binary(min_size=avro["size"], max_size=avro["size"])
    if avro.get("logicalType") == "timestamp-millis":
        return instants_us.map(lambda us: us // 1000)
    return instants_us if "logicalType" in avro else data_of(kind, named, depth)


@st.composite
def written_fields(draw: st.DrawFn, fields: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """Fields as a writer of another version might have them: fewer, more, reordered, of narrower types, in unions."""
    written = []
    for field in fields:
        if field["name"] == "readings":
            readings = copy.deepcopy(field)
            readings["type"]["items"]["fields"] = draw(written_fields(readings["type"]["items"]["fields"], label + "i"))
            written.append(readings)
            continue
        nullable = isinstance(field["type"], list)
        if (nullable or "default" in field) and draw(st.integers(0, 4)) == 0:
            continue
        kind = next(branch for branch in field["type"] if branch != "null") if nullable else field["type"]
        if isinstance(kind, str) and kind in WIDER and draw(st.integers(0, 2)) == 0:
            kind = draw(st.sampled_from(WIDER[kind]))
        elif isinstance(kind, dict) and draw(st.booleans()):
            kind = {"type": "long", "logicalType": "timestamp-millis"}
        form = draw(st.integers(0, 4))
        if nullable:
            kind = [kind, ["null", kind], [kind, "null"], ["null", kind], ["null", kind]][form]
        elif form == 0:
            kind = [kind]
        written.append({"name": field["name"], "type": kind})
    for i, extra in enumerate(draw(st.lists(st.sampled_from(EXTRAS), max_size=2))):
        written.append({"name": f"extra_{label}{i}", "type": renamed(extra, f"{label}{i}")})
    return draw(st.permutations(written))


def renamed(avro: Any, suffix: str) -> Any:
    """The type under another name, since a schema may define a name only once."""
    if isinstance(avro, list):
        return [renamed(branch, suffix) for branch in avro]
    if avro == "Link":
        return "Link" + suffix
    if not isinstance(avro, dict):
        return avro
    out = {key: renamed(inner, suffix) if key in ("items", "values") else inner for key, inner in avro.items()}
    if "name" in out:
        out["name"] += suffix
    if "fields" in out:
        out["fields"] = [{**field, "type": renamed(field["type"], suffix)} for field in out["fields"]]
    return out


@st.composite
def writers(draw: st.DrawFn, stream: Stream) -> dict[str, Any]:
    avro = {key: part for key, part in stream.avro.items() if key != "strobe"}
    return {**avro, "fields": draw(written_fields(stream.avro["fields"], "x"))}


def encoded(avro: dict[str, Any], record: dict[str, Any], schema_id: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), record)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def raw_batch(payloads: list[bytes | None], first: int = 100, step: int = 1) -> RawBatch:
    """Payloads at offsets first, first + step, …; the data ends where the last payload does."""
    given = [payload or b"" for payload in payloads]
    sizes = np.array([-1 if payload is None else len(payload) for payload in payloads], np.int64)
    starts = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
    offsets = first + step * np.arange(len(payloads), dtype=np.int64)
    data = np.frombuffer(b"".join(given), np.uint8)
    return RawBatch("t", 3, first, first + step * len(payloads), data, starts, sizes, offsets, offsets * 10)


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    """The readings as tuples: (offset, index, source, run, trigger, time, instrument, status, bits of the values …)."""
    return [
        (
            int(columns.offset[i]),
            int(columns.index[i]),
            columns.sources[columns.source[i]],
            int(columns.run[i]),
            int(columns.trigger[i]),
            int(columns.time_us[i]),
            columns.instruments[columns.instrument[i]],
            int(columns.status[i]),
            *(bits(vector.values[i]) if vector.valid[i] else None for vector in columns.values.values()),
        )
        for i in range(len(columns))
    ]


def bits(number: np.generic) -> bytes | str:
    return "nan" if number != number else number.tobytes()  # noqa: PLR0124 - nan: fastavro does not keep its payload


def expected_rows(stream: Stream, offset: int, record: dict[str, Any]) -> list[tuple[Any, ...]]:
    """As `rows_of`, of a record that fastavro has read."""
    readings = [record] if stream.readings is None else record[stream.readings]
    return [_expected_row(stream, offset, index, {**record, **reading}) for index, reading in enumerate(readings)]


def _expected_row(stream: Stream, offset: int, index: int, row: dict[str, Any]) -> tuple[Any, ...]:
    dtypes: dict[str, Any] = {
        "boolean": np.bool_,
        "int": np.int32,
        "long": np.int64,
        "float": np.float32,
        "double": np.float64,
        "timestamp": lambda instant: np.int64(microseconds(instant)),
    }
    return (
        offset,
        index,
        text(row[stream.source.name]),
        row[stream.run.name],
        row[stream.trigger.name],
        microseconds(row[stream.time.name]),
        text(row[stream.instrument.name]),
        0 if stream.status is None else row[stream.status.name],
        *(None if row[field.name] is None else bits(dtypes[field.type](row[field.name])) for field in stream.values),
    )


def text(given: Any) -> Any:
    return given.decode() if isinstance(given, bytes) else given


def microseconds(instant: datetime | int) -> int:
    if isinstance(instant, int):
        return instant
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """A good message with 1 to 4 bytes changed, cut, or extended."""
    how = draw(st.sampled_from(["change", "change", "change", "cut", "extend", "insert"]))
    if how == "cut":
        return payload[: draw(st.integers(0, len(payload) - 1))]
    if how == "extend":
        return payload + draw(st.binary(min_size=1, max_size=4))
    at = draw(st.integers(0, len(payload) - 1))
    if how == "insert":
        return payload[:at] + draw(st.binary(min_size=1, max_size=4)) + payload[at:]
    out = bytearray(payload)
    for _ in range(draw(st.integers(1, 4))):
        out[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]))
    return bytes(out)
