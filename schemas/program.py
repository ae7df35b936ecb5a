"""Compiles what a writer's Avro schema and a stream ask of each other into the rows that the kernel reads by.

Avro's rules of resolution hold, with these differences: the names of records are not compared; a null where the
stream wants a value refuses the record, not the schema; and an array may hold at most as many items as bytes.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastavro
import numpy as np
from numpy.typing import NDArray

from schemas import kernels as k
from schemas.stream import NUMPY_TYPES, Field, Stream

WIDTHS = {"boolean": 1, "int": 4, "float": 4, "long": 8, "double": 8, "timestamp": 8}
_OP_BY_TYPES = {  # (writer's type, stream's type): the operation that reads the one as the other
    ("int", "int"): k.INT,
    ("int", "long"): k.LONG,
    ("int", "float"): k.LONG_TO_FLOAT,
    ("int", "double"): k.LONG_TO_DOUBLE,
    ("long", "long"): k.LONG,
    ("long", "float"): k.LONG_TO_FLOAT,
    ("long", "double"): k.LONG_TO_DOUBLE,
    ("float", "float"): k.FLOAT,
    ("float", "double"): k.FLOAT_TO_DOUBLE,
    ("double", "double"): k.DOUBLE,
    ("boolean", "boolean"): k.BOOLEAN,
}
_OP_BY_TIME = {"timestamp-micros": k.LONG, "timestamp-millis": k.MILLIS, "timestamp-nanos": k.NANOS}
_NOT_INSTANTS = ("date", "time-millis", "time-micros")  # and local-timestamp-*: without a zone, no instant
_JUMPS = (k.JUMP, k.CALL, k.BLOCKS, k.NEXT_ITEM, k.READINGS, k.NEXT_READING)  # their `a` is a row
_FIXED_BYTES = {"null": 0, "float": 4, "double": 8}


class IncompatibleSchemaError(ValueError):
    """A writer's schema that the stream cannot read, and which field is why."""


class Slot(NamedTuple):
    """Where a field of the stream stands in the cells, and how it stands in the schema."""

    number: int
    field: Field
    role: str
    width: int  # bytes of a cell
    of_reading: bool
    avro: dict[str, Any]


class Program(NamedTuple):
    """Rows of (operation, a, b, c), to be entered at row 0; `places` says which field each row is about."""

    rows: NDArray[np.int64]
    places: list[str]

    def moved(self, by: int) -> NDArray[np.int64]:
        """The rows for a place further down, where other programs stand above."""
        rows = self.rows.copy()
        rows[np.isin(rows[:, 0], _JUMPS), 1] += by
        return rows


def slots_of(stream: Stream) -> dict[str, Slot]:
    """The slots of a stream's fields, by name: six roles first (status or a gap), then the values."""
    order: list[tuple[str, Field | None]] = [
        ("source", stream.source),
        ("run", stream.run),
        ("trigger", stream.trigger),
        ("time", stream.time),
        ("instrument", stream.instrument),
        ("status", stream.status),
        *(("value", value) for value in stream.values),
    ]
    indexes = {about.name: (index, role, about) for index, (role, about) in enumerate(order) if about is not None}
    slots = {}
    for avro, of_reading in _avro_fields(stream):
        index, role, about = indexes[avro["name"]]
        width = 8 if role in ("run", "trigger") else 4 if role in ("source", "instrument") else WIDTHS[about.type]
        slots[about.name] = Slot(index, about, role, width, of_reading, avro)
    return slots


def slot_count(stream: Stream) -> int:
    return 6 + len(stream.values)


def _avro_fields(stream: Stream) -> list[tuple[dict[str, Any], bool]]:
    fields = []
    for avro in stream.avro["fields"]:
        if avro["name"] == stream.readings:
            fields += [(inner, True) for inner in avro["type"]["items"]["fields"]]
        else:
            fields.append((avro, False))
    return fields


def compile_program(writer: dict[str, Any], stream: Stream) -> Program:
    """Compile the reading of records of `writer` as records of `stream`; IncompatibleSchemaError if that cannot be."""
    named: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(writer, named_schemas=named, _write_hint=False)
        return _Compiler(stream, named).compile(parsed)
    except IncompatibleSchemaError:
        raise
    except RecursionError:
        raise IncompatibleSchemaError("the writer's schema is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - what the registry holds is others' data; fastavro raises many types
        reason = f"{type(error).__name__}: {error}"[:200]
        raise IncompatibleSchemaError(f"the writer's schema is not valid Avro ({reason})") from None


@dataclass
class _Compiler:
    stream: Stream
    named: dict[str, Any]  # the writer's named types, by full name
    rows: list[list[int]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # full name: row of the part that skips this record
    calls: list[tuple[int, str]] = field(default_factory=list)  # rows of CALL whose target is not known yet

    def compile(self, writer: Any) -> Program:  # noqa: ANN401 - parsed JSON
        kind, writer = self.type_of(writer)
        if kind != "record":
            raise IncompatibleSchemaError(f"the writer's schema is of type {kind}, not a record")
        self.slots = slots_of(self.stream)
        self.record(writer, "", of_reading=False)
        self.emit(k.END, "end of the record")
        self.skipped_records()
        return Program(np.array(self.rows, np.int64), self.places)

    def emit(self, op: int, place: str, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.rows.append([op, a, b, c])
        self.places.append(place)
        return len(self.rows) - 1

    def forget(self, begin: int) -> None:
        """Take back the rows from `begin` on."""
        del self.rows[begin:], self.places[begin:]
        self.calls = [call for call in self.calls if call[0] < begin]

    def type_of(self, avro: Any) -> tuple[str, Any]:  # noqa: ANN401 - parsed JSON
        """The kind of a type, names and needless nesting resolved."""
        if isinstance(avro, list):
            return "union", avro
        if isinstance(avro, str):
            return self.type_of(self.named[avro]) if avro in self.named else (avro, {"type": avro})
        if isinstance(avro["type"], dict | list) or avro["type"] in self.named:
            return self.type_of(avro["type"])
        return ("record" if avro["type"] == "error" else avro["type"]), avro

    def record(self, writer: dict[str, Any], path: str, *, of_reading: bool) -> None:
        """Read the fields of the record, or of a reading, in the writer's order; then set those that it lacks."""
        targets: dict[str, Slot | None] = {}  # by name in the writer's schema; None: readings
        wanted = {slot.field.name: slot for slot in self.slots.values() if slot.of_reading == of_reading}
        names = {field["name"] for field in writer["fields"]}
        for name, slot in wanted.items():
            aliases = [alias for alias in slot.avro.get("aliases", []) if alias in names]
            targets[name if name in names or not aliases else aliases[0]] = slot
        if not of_reading and self.stream.readings is not None:
            targets[self.stream.readings] = None
        for avro in writer["fields"]:
            place = path + avro["name"]
            if avro["name"] not in targets:
                self.skip(avro["type"], place)
            else:
                target = targets.pop(avro["name"])
                if target is None:
                    self.readings(avro["type"], place)
                else:
                    self.value(avro["type"], target, place)
        for name, missing in targets.items():
            self.missing(name, missing, path)

    def readings(self, writer: Any, place: str) -> None:  # noqa: ANN401 - parsed JSON
        kind, avro = self.type_of(writer)
        if kind == "union":
            self.branches(avro, place, "array", lambda branch: self.readings(branch, place))
            return
        item_kind, items = self.type_of(avro["items"]) if kind == "array" else (kind, {})
        if kind != "array" or item_kind != "record":
            raise IncompatibleSchemaError(f"field {place!r} is not an array of records in the writer's schema")
        begin = self.emit(k.READINGS, place)
        self.record(items, place + ".", of_reading=True)
        self.emit(k.NEXT_READING, place, begin)
        self.rows[begin][1] = len(self.rows)

    def value(self, writer: Any, slot: Slot, place: str) -> None:  # noqa: ANN401 - parsed JSON
        kind, avro = self.type_of(writer)
        if kind != "union":
            op = self.operation(kind, avro, slot)
            if op is None:
                raise IncompatibleSchemaError(
                    f"field {place!r} is {_described(kind, avro)} in the writer's schema, not {slot.field.type}"
                )
            self.emit(op, place, slot.number, int(kind == "int"))
        elif slot.field.nullable and len(avro) == 2 and "null" in [self.type_of(branch)[0] for branch in avro]:
            null = [self.type_of(branch)[0] for branch in avro].index("null")
            self.emit(k.OPTION, place, slot.number, null, slot.width)
            self.value(avro[1 - null], slot, place)
        else:
            self.branches(avro, place, slot.field.type, lambda branch: self.branch(branch, slot, place))

    def branch(self, branch: Any, slot: Slot, place: str) -> None:  # noqa: ANN401 - parsed JSON
        if self.type_of(branch)[0] == "null" and slot.field.nullable:
            self.emit(k.ABSENT, place, slot.number, 0, slot.width)
        else:
            self.value(branch, slot, place)

    def branches(self, union: list[Any], place: str, wanted: str, read: Callable[[Any], None]) -> None:
        """Read a union: branches that cannot become what is wanted refuse the record that uses them."""
        table = self.emit(k.BRANCH, place, len(union))
        for _ in union:
            self.emit(k.JUMP, place)
        ends, read_any = [], False
        for number, branch in enumerate(union):
            begin = self.rows[table + 1 + number][1] = len(self.rows)
            try:
                read(branch)
                read_any = True
            except IncompatibleSchemaError:
                self.forget(begin)
                self.emit(k.MISMATCH, place)
            ends.append(self.emit(k.JUMP, place))
        if not read_any:
            raise IncompatibleSchemaError(f"field {place!r} is a union in the writer's schema, never {wanted}")
        for end in ends:
            self.rows[end][1] = len(self.rows)

    def operation(self, kind: str, avro: dict[str, Any], slot: Slot) -> int | None:
        """The operation that reads the writer's type into the slot; None: there is none."""
        if slot.field.type == "string":
            return (k.SOURCE if slot.role == "source" else k.INSTRUMENT_TEXT) if kind in ("string", "bytes") else None
        if slot.role == "instrument":
            return k.INSTRUMENT_NUMBER if kind in ("int", slot.field.type) else None
        if slot.field.type == "timestamp":
            unit = avro.get("logicalType", "")
            if kind not in ("int", "long") or unit in _NOT_INSTANTS or str(unit).startswith("local-"):
                return None
            return _OP_BY_TIME[unit if unit in _OP_BY_TIME else time_unit(slot.avro["type"])]
        if slot.role in ("run", "trigger"):  # long in columns, whatever the stream says
            return k.LONG if kind in ("int", slot.field.type) else None
        return _OP_BY_TYPES.get((kind, slot.field.type))

    def missing(self, name: str, slot: Slot | None, path: str) -> None:
        """Set a field that the writer does not know to its default."""
        avro = next(avro for avro in self.stream.avro["fields"] if avro["name"] == name) if slot is None else slot.avro
        if "default" not in avro and not (slot is not None and slot.field.nullable):
            raise IncompatibleSchemaError(f"field {path + name!r} is missing in the writer's schema and has no default")
        if slot is None:
            return  # a default of readings can only be none
        default = avro.get("default")
        if default is None:
            self.emit(k.ABSENT, path + name, slot.number, 0, slot.width)
        else:
            self.emit(k.CONSTANT, path + name, slot.number, default_bits(slot, default), slot.width)

    def skip(self, writer: Any, place: str) -> None:  # noqa: ANN401 - parsed JSON
        kind, avro = self.type_of(writer)
        if kind == "union":
            table = self.emit(k.BRANCH, place, len(avro))
            ends = [self.emit(k.JUMP, place) for _ in avro]
            for number, branch in enumerate(avro):
                self.rows[table + 1 + number][1] = len(self.rows)
                self.skip(branch, place)
                ends[number] = self.emit(k.JUMP, place)
            for end in ends:
                self.rows[end][1] = len(self.rows)
        elif kind in ("array", "map"):
            begin = self.emit(k.BLOCKS, place)
            if kind == "map":
                self.emit(k.SKIP_TEXT, place)
            self.skip(avro["items" if kind == "array" else "values"], place)
            self.emit(k.NEXT_ITEM, place, begin)
            self.rows[begin][1] = len(self.rows)
        elif kind == "record":
            self.calls.append((self.emit(k.CALL, place), avro["name"]))
        elif kind in _FIXED_BYTES or kind == "fixed":
            size = _FIXED_BYTES.get(kind, avro.get("size", 0))
            if size:
                self.emit(k.SKIP_FIXED, place, size)
        elif kind == "enum":
            self.emit(k.SKIP_ENUM, place, len(avro["symbols"]))
        elif kind == "boolean":
            self.emit(k.SKIP_BOOLEAN, place)
        elif kind in ("string", "bytes"):
            self.emit(k.SKIP_TEXT, place)
        elif kind in ("int", "long"):
            self.emit(k.SKIP_VARINT, place)
        else:
            raise IncompatibleSchemaError(f"field {place!r} is of the unknown type {kind} in the writer's schema")

    def skipped_records(self) -> None:
        """Write the part of each skipped record, once: so that types may contain themselves."""
        while self.calls:
            row, name = self.calls.pop()
            if name not in self.skipped:
                self.skipped[name] = len(self.rows)
                for avro in self.named[name]["fields"]:
                    self.skip(avro["type"], f"{name}.{avro['name']}")
                self.emit(k.RETURN, name)
            self.rows[row][1] = self.skipped[name]


def default_bits(slot: Slot, default: Any) -> int:  # noqa: ANN401 - parsed JSON
    """The bits of a default's cell, as a signed number."""
    if slot.field.type == "timestamp":
        unit = time_unit(slot.avro["type"])
        default = default * 1000 if unit == "timestamp-millis" else default
        return int(default) // (1000 if unit == "timestamp-nanos" else 1)
    packed = NUMPY_TYPES[slot.field.type].type(default).tobytes().ljust(8, b"\0")
    return int(struct.unpack("<q", packed)[0])


def time_unit(avro: Any) -> str:  # noqa: ANN401 - parsed JSON
    """The logical type of a timestamp of the stream, null or not."""
    if isinstance(avro, list):
        return time_unit(next(branch for branch in avro if branch != "null"))
    return str(avro["logicalType"])


def _described(kind: str, avro: dict[str, Any]) -> str:
    return f"{kind} ({avro['logicalType']})" if "logicalType" in avro else kind
