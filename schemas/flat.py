"""Rows of views to payloads and back: flat Avro records as columns. Knows neither Kafka nor the registry.

Timestamps are whole µs since 1970 on both sides, never datetimes. Rows are encoded by a
compiled loop, and decoded by fastavro, some 16 µs each: they are few, groups and not readings.
"""

import io
import struct
from collections.abc import Callable
from typing import Any

import fastavro
import fastavro.read
import numpy as np

from schemas.batch import Vector
from schemas.codec import UndecodableError, UnknownSchemaIdError
from schemas.encoder import EncodeError, bits_of, codes_of, emit, texts_of, write
from schemas.encoder_kernels import END
from schemas.kernels import HEADER_BYTES

_DTYPES = {"boolean": np.bool_, "int": np.int32, "long": np.int64, "float": np.float32, "double": np.float64}
_INT_BOUNDS = {"int": 2**31, "long": 2**63}
TEXT_BYTES_MAX = 1 << 16  # of a group's value: it is part of a key
_KNOWN_MAX = 64  # writers' schemas kept parsed; a view changes rarely


class FlatCodec:
    """Encodes and decodes rows of one schema, whose fields are numbers, booleans, texts and instants, null or not.

    For example::

        codec = FlatCodec(row_schema(plan, stream), schema_id)
        payloads = codec.encode({"generation": Vector(…), …})
        columns = codec.decode(payloads)  # UndecodableError names the first bad one

    With `writer_schema`, rows of other schema ids are read too, by Avro's rules; without it they are refused.
    What it raises, other than UnknownSchemaIdError, passes through.
    """

    def __init__(
        self,
        avro_schema: dict[str, Any],
        schema_id: int,
        writer_schema: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        self._schema = _parsed(avro_schema)
        self._schema_id = schema_id
        self._header = np.frombuffer(struct.pack(">bI", 0, schema_id), np.uint8)
        self._writer_schema = writer_schema
        self._writers = {schema_id: self._schema}
        self._fields = [_field(avro) for avro in self._schema["fields"]]
        program: list[list[int]] = []
        self._row_bytes = HEADER_BYTES + sum(
            emit(program, slot, kind, null) for slot, (_, kind, null) in enumerate(self._fields)
        )
        self._program = np.array([*program, [END, 0, 0]], np.int64)

    def encode(self, columns: dict[str, Vector]) -> list[bytes]:
        for name, _, _ in self._fields:
            if name not in columns:
                raise EncodeError(f"column {name!r} of the rows' schema is not among those given")
        count = len(columns[self._fields[0][0]].values) if self._fields else 0
        cells = np.zeros((len(self._fields), count), np.int64)
        valid = np.ones((len(self._fields), count), np.uint8)
        given = [columns[name] for name, _, _ in self._fields]
        texts = texts_of(
            {
                text
                for vector, (_, kind, _) in zip(given, self._fields, strict=True)
                if kind == "string"
                for text in vector.values[vector.valid].tolist()
            },
            TEXT_BYTES_MAX,
        )
        sizes = np.diff(texts.bounds)
        bytes_max = count * self._row_bytes
        for slot, (vector, (name, kind, null)) in enumerate(zip(given, self._fields, strict=True)):
            if len(vector.values) != count or len(vector.valid) != count:
                raise EncodeError(f"column {name!r} has not {count} rows as the first has")
            if null is None and not vector.valid.all():
                raise EncodeError(f"column {name!r} holds a null, and its type {kind} has none")
            valid[slot] = vector.valid
            if kind == "string":
                cells[slot, vector.valid] = codes_of(texts, vector.values[vector.valid].tolist())
                bytes_max += int(sizes[cells[slot, vector.valid]].sum())
            else:
                cells[slot] = bits_of(name, kind, vector.values)
        return write(self._header, self._program, cells, valid, texts, np.zeros(count, np.int64), bytes_max)

    def decode(self, payloads: list[bytes]) -> dict[str, Vector]:
        rows = [self._row(payload) for payload in payloads]
        return {name: _vector([row[name] for row in rows], kind) for name, kind, _ in self._fields}

    def _row(self, payload: bytes) -> dict[str, Any]:
        if payload is None:
            raise UndecodableError("null", "the value is null")
        if len(payload) < HEADER_BYTES or payload[0] != 0:
            raise UndecodableError("not-framed", "the payload does not begin with the byte 0 and a schema id")
        schema_id = int.from_bytes(payload[1:HEADER_BYTES], "big")
        writer = self._writer(schema_id)
        body = io.BytesIO(payload)
        body.seek(HEADER_BYTES)
        try:
            row: Any = fastavro.schemaless_reader(body, writer, None if writer is self._schema else self._schema)
        except fastavro.read.SchemaResolutionError as error:
            raise UndecodableError("incompatible", f"schema id {schema_id}: {error}"[:200]) from None
        except EOFError:
            raise UndecodableError("truncated", "the payload ends before the row does") from None
        except Exception as error:  # noqa: BLE001 - fastavro raises whatever a damaged byte leads it to
            raise UndecodableError("bad-row", f"{type(error).__name__}: {error}"[:200]) from None
        if body.tell() != len(payload):
            raise UndecodableError("trailing", f"{len(payload) - body.tell()} bytes follow the row")
        for name, kind, _ in self._fields:
            bound = _INT_BOUNDS.get(kind)
            if bound is not None and row[name] is not None and not -bound <= row[name] < bound:
                raise UndecodableError("bad-number", f"{name}: {row[name]} is too large for type {kind}")
        return dict(row)

    def _writer(self, schema_id: int) -> dict[str, Any]:
        known = self._writers.get(schema_id)
        if known is not None:
            return known
        if self._writer_schema is None:
            raise UndecodableError(
                "unknown-schema", f"schema id {schema_id} is not {self._schema_id}, the only one read"
            )
        try:
            schema = self._writer_schema(schema_id)
        except UnknownSchemaIdError as error:
            raise UndecodableError("unknown-schema", str(error)) from None
        try:
            parsed = _parsed(schema)
        except Exception as error:  # noqa: BLE001 - what the registry holds is others' data
            raise UndecodableError("incompatible", f"schema id {schema_id}: {error}"[:200]) from None
        if len(self._writers) >= _KNOWN_MAX:
            self._writers = {self._schema_id: self._schema}
        self._writers[schema_id] = parsed
        return parsed


def _parsed(avro: dict[str, Any]) -> dict[str, Any]:
    """The schema, parsed, without logical types: fastavro would make datetimes, ten times as slow."""
    fields = [{**field, "type": _plain(field["type"])} for field in avro["fields"]]
    parsed: Any = fastavro.parse_schema({"type": "record", "name": "Row", "fields": fields}, named_schemas={})
    return dict(parsed)


def _plain(avro: Any) -> Any:  # noqa: ANN401 - parsed JSON
    if isinstance(avro, list):
        return [_plain(branch) for branch in avro]
    if isinstance(avro, dict) and "logicalType" in avro:
        return {key: value for key, value in avro.items() if key != "logicalType"}
    return avro


def _field(avro: dict[str, Any]) -> tuple[str, str, int | None]:
    """Name, type, and which branch is null, if one is."""
    kind = avro["type"]
    branches = kind if isinstance(kind, list) else [kind]
    kinds = [branch["type"] if isinstance(branch, dict) else branch for branch in branches]
    others = [kind for kind in kinds if kind != "null"]
    if len(others) != 1 or len(kinds) > 2 or not (others[0] in _DTYPES or others[0] == "string"):
        raise ValueError(f"field {avro['name']!r} of type {kind} is not flat: use a number, boolean, string or instant")
    return avro["name"], others[0], kinds.index("null") if "null" in kinds else None


def _vector(given: list[Any], kind: str) -> Vector:
    valid = np.array([value is not None for value in given], np.bool_)
    if kind == "string":
        values = np.empty(len(given), object)
        values[:] = given
        return Vector(values, valid)
    if not valid.all():
        given = [0 if value is None else value for value in given]
    return Vector(np.array(given, _DTYPES[kind]), valid)
