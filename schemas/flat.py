"""Flat records as payloads and back: the rows of continuous views. Knows no registry and no Kafka."""

import io
from typing import Any

import fastavro
import numpy as np

from schemas.batch import Vector
from schemas.codec import UndecodableError

HEADER_BYTES = 5
_NUMPY = {"boolean": np.bool_, "int": np.int32, "long": np.int64, "float": np.float32, "double": np.float64}


class FlatCodec:
    """Records of fields without structure, in the Confluent wire format, by one schema.

    For example::

        codec = FlatCodec(schema, schema_id)
        payloads = codec.encode({"count": Vector(counts, valid), …})
        columns = codec.decode(payloads)

    Logical types are left alone: a time is a number of µs, as everywhere in Strobe.
    """

    def __init__(self, schema: dict[str, Any], schema_id: int) -> None:
        self._types = {field["name"]: _plain(field["type"]) for field in schema["fields"]}
        fields = [{"name": name, "type": _avro(field["type"])} for name, field in _by_name(schema).items()]
        self._schema = fastavro.parse_schema({"type": "record", "name": schema["name"], "fields": fields})
        self._header = b"\0" + schema_id.to_bytes(4, "big")

    def encode(self, columns: dict[str, Vector]) -> list[bytes]:
        """One payload for each row; columns are those of the schema, by name."""
        lists = []
        for name in self._types:
            values: list[Any] = columns[name].values.tolist()
            if not columns[name].valid.all():
                values = [v if ok else None for v, ok in zip(values, columns[name].valid.tolist(), strict=True)]
            lists.append(values)
        payloads = []
        for row in zip(*lists, strict=True):
            stream = io.BytesIO()
            stream.write(self._header)
            fastavro.schemaless_writer(stream, self._schema, dict(zip(self._types, row, strict=True)))
            payloads.append(stream.getvalue())
        return payloads

    def decode(self, payloads: list[bytes]) -> dict[str, Vector]:
        """The columns of payloads written by this schema. Raises UndecodableError for any that is not."""
        rows = [self._decode_one(payload) for payload in payloads]
        return {name: _column([row[name] for row in rows], kind) for name, kind in self._types.items()}

    def _decode_one(self, payload: bytes) -> dict[str, Any]:
        if payload[:HEADER_BYTES] != self._header:
            raise UndecodableError(
                "not-framed", f"begins with {payload[:HEADER_BYTES].hex()}, not {self._header.hex()}"
            )
        stream = io.BytesIO(payload[HEADER_BYTES:])
        try:
            row = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # noqa: BLE001 - fastavro raises what it likes on damaged input
            raise UndecodableError("truncated", f"{type(error).__name__}: {error}") from None
        if stream.read(1):
            raise UndecodableError("trailing", "bytes follow the record")
        if not isinstance(row, dict):
            raise UndecodableError("incompatible", "not a record")
        return row


def _by_name(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in schema["fields"]}


def _avro(kind: Any) -> Any:  # noqa: ANN401 - parsed JSON
    """A field's type without logical types."""
    if isinstance(kind, list):
        return [_avro(branch) for branch in kind]
    return kind["type"] if isinstance(kind, dict) else kind


def _plain(kind: Any) -> str:  # noqa: ANN401 - parsed JSON
    """The name of a field's type, of a union that of its branch that is not null."""
    kind = _avro(kind)
    branches = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]
    if len(branches) != 1 or branches[0] not in (*_NUMPY, "string"):
        raise ValueError(f"a flat record cannot have a field of type {kind!r}")
    return str(branches[0])


def _column(values: list[Any], kind: str) -> Vector:
    valid = np.array([value is not None for value in values], np.bool_)
    if kind == "string":
        return Vector(np.array(["" if value is None else value for value in values], object), valid)
    return Vector(np.array([0 if value is None else value for value in values], _NUMPY[kind]), valid)
