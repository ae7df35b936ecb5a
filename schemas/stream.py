"""What a stream is: an Avro schema whose fields say their role, unit and meaning. Knows neither Kafka nor SQL."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import fastavro
import fastavro.schema
import numpy as np

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "boolean": np.dtype(np.bool_),
    "int": np.dtype(np.int32),
    "long": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "timestamp": np.dtype(np.int64),  # µs since 1970
}
TIMESTAMPS = ("timestamp-micros", "timestamp-millis", "timestamp-nanos")
ROLES: dict[str, tuple[str, ...]] = {  # which types a role may have; values are the only ones that may be null
    "source": ("string",),
    "run": ("int", "long"),
    "trigger": ("int", "long"),
    "time": ("timestamp",),
    "instrument": ("int", "long", "string"),
    "status": ("int",),
    "value": tuple(NUMPY_TYPES),
}
REQUIRED = ("source", "run", "trigger", "time", "instrument")
OF_THE_RECORD = ("source", "run", "trigger", "time")  # never of a reading: they name the trigger
RESERVED = ("kafka_partition", "kafka_offset", "reading_index", "incarnation")  # columns that the raw table adds
STREAM_KEYS = ("stream", "topic", "storage", "partitions", "retention_hours")
FIELD_KEYS = ("role", "unit", "meaning")
RETENTION_HOURS = 168  # a week: what a topic keeps when the schema does not say otherwise
NAME_CHARACTERS_MAX = 40  # PostgreSQL cuts names at 63 bytes, and ours gain endings such as `_latest`


class SchemaError(ValueError):
    """A stream's schema that cannot be used: file, place, what is wrong and the remedy, in one line."""


@dataclass(frozen=True)
class Field:
    """A column: what it is called, what it holds, and in which unit."""

    name: str
    type: str  # "boolean", "int", "long", "float", "double", "string" or "timestamp"
    nullable: bool
    unit: str
    meaning: str


@dataclass(frozen=True)
class Stream:
    """A kind of record, as its `.avsc` file describes it.

    For example::

        bpm = load_stream(Path("schemas/streams/bpm.avsc"))
        bpm.topic, [field.name for field in bpm.values]  # "bpm.v1", ["top_in", "bot_in", …]
    """

    name: str
    topic: str
    storage: str  # "row": one row of the raw table for each reading
    partitions: int | None  # None: as the settings say
    retention_hours: int
    meaning: str
    avro: dict[str, Any]  # as registered
    source: Field
    run: Field
    trigger: Field
    time: Field
    instrument: Field
    status: Field | None
    values: tuple[Field, ...]  # in the order of the schema; those of the record are repeated to each reading
    readings: str | None  # the array field; None: a record is one reading


def load_streams(folder: Path) -> dict[str, Stream]:
    """Read every `.avsc` file of a folder; the streams by name."""
    streams: dict[str, Stream] = {}
    for path in sorted(folder.glob("*.avsc")):
        stream = load_stream(path)
        for other in streams.values():
            for what in ("name", "topic"):
                if getattr(stream, what) == getattr(other, what):
                    raise SchemaError(
                        f"{path}: {what} {getattr(stream, what)!r} is also that of another file here; rename one"
                    )
        streams[stream.name] = stream
    if not streams:
        raise SchemaError(f"{folder}: holds no .avsc file; put a stream's schema there, or set STROBE_STREAMS")
    return streams


def load_stream(path: Path) -> Stream:
    try:
        avro = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise SchemaError(f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg}); correct it there") from None
    return build_stream(avro, str(path))


def build_stream(avro: Any, file: str) -> Stream:  # noqa: ANN401 - parsed JSON
    """Check a parsed schema and name its parts. `file` is only for messages."""
    return _Reader(file).stream(avro)


@dataclass(frozen=True)
class _Place:
    """A field as it stands in the file, and whether it belongs to a reading or to the record."""

    role: str
    field: Field
    of_reading: bool


class _Reader:
    """Reads one file; every refusal names it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.readings: str | None = None

    def refuse(self, place: str, wrong: str, remedy: str) -> NoReturn:
        raise SchemaError(f"{self.file}: {place + ': ' if place else ''}{wrong}; {remedy}")

    def stream(self, avro: Any) -> Stream:  # noqa: ANN401 - parsed JSON
        if not isinstance(avro, dict) or avro.get("type") != "record":
            self.refuse("", "is not an Avro record", 'begin with {"type": "record", "name": …, "fields": […]}')
        self.check_avro(avro)
        about = self.attributes("", avro, STREAM_KEYS)
        name = self.text(about, "stream")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > NAME_CHARACTERS_MAX:
            self.refuse(
                "", f'"stream": {name!r} is no name', f"use a-z, 0-9 and _, at most {NAME_CHARACTERS_MAX} characters"
            )
        topic = self.text(about, "topic")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", topic):
            self.refuse("", f'"topic": {topic!r} is no topic name', "use letters, digits, '.', '_' and '-'")
        storage = about.get("storage", "row")
        if storage != "row":
            self.refuse("", f'"storage": {storage!r} is not known', 'write "row"')
        places = list(self.places(avro, of_reading=False))
        by_role = self.by_role(places)
        return Stream(
            name=name,
            topic=topic,
            storage=storage,
            partitions=self.count(about, "partitions"),
            retention_hours=self.count(about, "retention_hours") or RETENTION_HOURS,
            meaning=str(avro.get("doc", "")),
            avro=avro,
            source=by_role["source"],
            run=by_role["run"],
            trigger=by_role["trigger"],
            time=by_role["time"],
            instrument=by_role["instrument"],
            status=by_role.get("status"),
            values=tuple(place.field for place in places if place.role == "value"),
            readings=self.readings,
        )

    def check_avro(self, avro: dict[str, Any]) -> None:
        """Refuse what Avro itself refuses, so that nothing later has to expect it."""
        try:
            fastavro.parse_schema(avro)
        except fastavro.schema.UnknownType as error:
            self.refuse("", f"type {error.name!r} is not known to Avro", "correct the type")
        except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)[:160].replace("\n", " ")
            self.refuse("", f"is not a valid Avro schema ({what})", "correct it")

    def places(self, record: dict[str, Any], *, of_reading: bool) -> Iterator[_Place]:
        if not record.get("fields"):
            self.refuse(f"record {record['name']!r}", "has no fields", 'add "fields": […]')
        for avro in record["fields"]:
            name = avro["name"]
            about = self.attributes(f"field {name!r}", avro, FIELD_KEYS)
            role = about.get("role")
            if role == "readings":
                yield from self.places(self.items(avro, of_reading=of_reading), of_reading=True)
            elif role in ROLES:
                yield _Place(role, self.field(avro, about, role, of_reading=of_reading), of_reading)
            else:
                wrong = "has no role" if role is None else f"has the unknown role {role!r}"
                self.refuse(
                    f"field {name!r}", wrong, f'give it "strobe": {{"role": …}}, one of {", ".join(ROLES)}, readings'
                )

    def items(self, avro: dict[str, Any], *, of_reading: bool) -> dict[str, Any]:
        place = f"field {avro['name']!r}"
        if of_reading or self.readings is not None:
            self.refuse(place, "is a second array of readings", "keep one, on the record itself")
        items = avro["type"].get("items") if isinstance(avro["type"], dict) else None
        if not isinstance(items, dict) or items.get("type") != "record":
            self.refuse(
                place,
                "readings must be an array of a record",
                'write "type": {"type": "array", "items": {"type": "record", …}}',
            )
        self.readings = avro["name"]
        return items

    def field(self, avro: dict[str, Any], about: dict[str, Any], role: str, *, of_reading: bool) -> Field:
        name, place = avro["name"], f"field {avro['name']!r}"
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", str(name)) or len(name) > NAME_CHARACTERS_MAX or name in RESERVED:
            self.refuse(
                place,
                "cannot be the name of a column",
                f"use a-z, 0-9 and _, at most {NAME_CHARACTERS_MAX} characters, and none of {', '.join(RESERVED)}",
            )
        if of_reading and role in OF_THE_RECORD:
            self.refuse(place, f"role {role!r} belongs to the record, not to a reading", "move it out of the array")
        kind, nullable = self.kind(avro["type"])
        if role in REQUIRED and "default" in avro:
            self.refuse(place, f"role {role!r} cannot have a default: it tells readings apart", "remove the default")
        if nullable and "default" in avro and (avro["default"] is None) != (avro["type"][0] == "null"):
            self.refuse(place, "the default is not of the union's first type", 'write ["null", …] and "default": null')
        if kind not in ROLES[role]:
            wrong = f"role {role!r} cannot be {kind}"
            self.refuse(place, wrong, f"use {' or '.join(_written(kind) for kind in ROLES[role])}")
        if nullable and role != "value":
            self.refuse(place, f"role {role!r} cannot be null", f'use "type": {_written(kind)}')
        meaning = about.get("meaning", avro.get("doc", ""))
        return Field(name, kind, nullable, about.get("unit", ""), meaning)

    def kind(self, avro: Any) -> tuple[str, bool]:  # noqa: ANN401 - parsed JSON
        """Name a field's type, and whether it may be null."""
        if isinstance(avro, list):
            others = [branch for branch in avro if branch != "null"]
            if len(avro) != 2 or len(others) != 1:
                return "a union of more than null and one type", False
            return self.kind(others[0])[0], True
        if isinstance(avro, dict):
            if avro.get("type") == "long" and avro.get("logicalType") in TIMESTAMPS:
                return "timestamp", False
            return self.kind(avro["type"])
        return str(avro), False

    def by_role(self, places: list[_Place]) -> dict[str, Field]:
        by_role: dict[str, Field] = {}
        names: set[str] = set()
        for place in places:
            name = place.field.name
            if name in names:
                self.refuse(
                    f"field {name!r}",
                    "stands on the record and on the reading: one column cannot be both",
                    "rename one",
                )
            names.add(name)
            if place.role == "value":
                continue
            if place.role in by_role:
                other = by_role[place.role].name
                self.refuse(f"field {name!r}", f"role {place.role!r} is already that of {other!r}", "keep one")
            if place.role == "instrument" and self.readings is not None and not place.of_reading:
                self.refuse(
                    f"field {name!r}", "all readings of a record would be the same reading", "move it into the array"
                )
            by_role[place.role] = place.field
        for role in REQUIRED:
            if role not in by_role:
                self.refuse("", f"no field has the role {role!r}", f'add "strobe": {{"role": "{role}"}} to one')
        return by_role

    def attributes(self, place: str, avro: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        about = avro.get("strobe", {})
        if not isinstance(about, dict):
            self.refuse(place, '"strobe" is not an object', 'write "strobe": {…}')
        for key in about:
            if key not in keys:
                self.refuse(place, f'"strobe" has the unknown key {key!r}', f"use {', '.join(keys)}")
        for key in set(keys) & {"role", "unit", "meaning"}:
            if not isinstance(about.get(key, ""), str):
                self.refuse(place, f'"{key}" is not text', "put it in quotes")
        return about

    def text(self, about: dict[str, Any], key: str) -> str:
        value = about.get(key)
        if not isinstance(value, str):
            self.refuse("", f'"strobe" does not say "{key}"', f'add "strobe": {{"{key}": "…"}} beside "fields"')
        return value

    def count(self, about: dict[str, Any], key: str) -> int | None:
        value = about.get(key)
        if value is not None and (type(value) is not int or value < 1):
            self.refuse("", f'"{key}": {value!r} is not a whole number above 0', "correct it, or leave it out")
        return value


def _written(kind: str) -> str:
    return '{"type": "long", "logicalType": "timestamp-micros"}' if kind == "timestamp" else f'"{kind}"'
