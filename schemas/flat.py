"""Rows of views to payloads and back: flat Avro records as columns. Knows neither Kafka nor the registry.

Timestamps are whole µs since 1970 on both sides, never datetimes. Rows are few (groups, not readings), so fastavro
serves; a reader with a row per reading would want schemas.codec's kernel.
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
from schemas.kernels import HEADER_BYTES

_DTYPES = {"boolean": np.bool_, "int": np.int32, "long": np.int64, "float": np.float32, "double": np.float64}
_INT_BOUNDS = {"int": 2**31, "long": 2**63}
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
        self._header = struct.pack(">bI", 0, schema_id)
        self._writer_schema = writer_schema
        self._writers = {schema_id: self._schema}
        self._fields = [_field(avro) for avro in self._schema["fields"]]

    def encode(self, columns: dict[str, Vector]) -> list[bytes]:
        lists = [self._given(name, kind, nullable, columns) for name, kind, nullable in self._fields]
        names = [name for name, _, _ in self._fields]
        out = io.BytesIO()
        write = fastavro.schemaless_writer
        payloads = []
        for row in zip(*lists, strict=True):
            out.write(self._header)
            write(out, self._schema, dict(zip(names, row, strict=True)))
            payloads.append(out.getvalue())
            out.seek(0)
            out.truncate()
        return payloads

    def decode(self, payloads: list[bytes]) -> dict[str, Vector]:
        rows = [self._row(payload) for payload in payloads]
        return {name: _vector([row[name] for row in rows], kind) for name, kind, _ in self._fields}

    def _given(self, name: str, kind: str, nullable: bool, columns: dict[str, Vector]) -> list[Any]:  # noqa: FBT001
        if name not in columns:
            raise KeyError(f"column {name!r} of the row schema is not among those given")
        vector = columns[name]
        if vector.valid.all():
            return list(vector.values.tolist())
        if not nullable:
            raise ValueError(f"column {name!r} holds a null, and its type {kind} has none")
        return [v if there else None for v, there in zip(vector.values.tolist(), vector.valid.tolist(), strict=True)]

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


def _field(avro: dict[str, Any]) -> tuple[str, str, bool]:
    """Name, type, and whether it may be null."""
    kind = avro["type"]
    branches = kind if isinstance(kind, list) else [kind]
    kinds = [branch["type"] if isinstance(branch, dict) else branch for branch in branches]
    others = [kind for kind in kinds if kind != "null"]
    if len(others) != 1 or not (others[0] in _DTYPES or others[0] == "string"):
        raise ValueError(f"field {avro['name']!r} of type {kind} is not flat: use a number, boolean, string or instant")
    return avro["name"], others[0], "null" in kinds


def _vector(given: list[Any], kind: str) -> Vector:
    valid = np.array([value is not None for value in given], np.bool_)
    if kind == "string":
        values = np.empty(len(given), object)
        values[:] = given
        return Vector(values, valid)
    if not valid.all():
        given = [0 if value is None else value for value in given]
    return Vector(np.array(given, _DTYPES[kind]), valid)
