"""Columns to payloads: the producers' half of the wire format. Knows neither Kafka nor the registry."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas import encoder_kernels as k
from schemas.batch import Int32s, Int64s, Vector
from schemas.kernels import HEADER_BYTES, NAME_BYTES_MAX, READINGS_PER_RECORD_MAX
from schemas.program import slot_count, slots_of, time_unit
from schemas.stream import NUMPY_TYPES, Stream

_INT_MAX = 2**31 - 1
_OPS = {"float": k.FLOAT, "double": k.DOUBLE, "boolean": k.BOOLEAN, "string": k.TEXT}
_BYTES = {"float": 4, "double": 8, "boolean": 1}


class EncodeError(ValueError):
    """Columns that are no records of the stream: the field and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Records to be sent. `counts[i]` readings belong to record i; readings stand one after the other.

    A value of the record itself, not of a reading, is taken from the record's first reading.
    """

    source: list[str]  # of each record, as are the next four
    run: Int64s
    trigger: Int64s
    time_us: Int64s
    counts: Int64s
    instrument: Sequence[str] | Int64s  # of each reading, as are the last two
    status: Int32s
    values: dict[str, Vector]


class Texts(NamedTuple):
    """The distinct texts of a batch, encoded: that of code c is arena[bounds[c] : bounds[c + 1]]."""

    bounds: Int64s
    arena: NDArray[np.uint8]
    codes: dict[str, int]


class Encoder:
    """Encodes records of one stream; the bytes are those that any Avro library writes.

    For example::

        payloads = Encoder(stream, registry.register(subject, stream.avro)).encode(outgoing)
    """

    def __init__(self, stream: Stream, schema_id: int) -> None:
        self.stream = stream
        self._header = np.frombuffer(struct.pack(">bI", 0, schema_id), np.uint8)
        self._slots = slots_of(stream)
        self._slot_count = slot_count(stream)
        self._unit = time_unit(self._slots[stream.time.name].avro["type"])
        self._program, self._record_bytes, self._reading_bytes = self._compiled()

    def encode(self, outgoing: Outgoing) -> list[bytes]:
        """One payload for each record; EncodeError, and nothing encoded, if a column does not fit."""
        records, readings = len(outgoing.source), len(outgoing.status)
        self._check(outgoing, records, readings)
        numbered = self.stream.instrument.type != "string"
        instruments = [] if numbered else list(outgoing.instrument)
        texts = texts_of({*outgoing.source, *instruments}, NAME_BYTES_MAX)
        sources = codes_of(texts, outgoing.source)
        instrument = outgoing.instrument if numbered else codes_of(texts, instruments)

        cells = np.zeros((self._slot_count, max(records, readings)), np.int64)
        valid = np.ones(cells.shape, np.uint8)
        firsts = np.cumsum(outgoing.counts) - outgoing.counts
        self._put(cells, self.stream.source.name, sources)
        self._put(cells, self.stream.run.name, outgoing.run)
        self._put(cells, self.stream.trigger.name, outgoing.trigger)
        self._put(cells, self.stream.time.name, self._in_unit(np.asarray(outgoing.time_us, np.int64), self._unit))
        self._put(cells, self.stream.instrument.name, instrument)
        if self.stream.status is not None:
            self._put(cells, self.stream.status.name, outgoing.status)
        for field in self.stream.values:
            slot = self._slots[field.name]
            vector = outgoing.values.get(field.name)
            if vector is None:
                vector = Vector(np.zeros(readings, NUMPY_TYPES[field.type]), np.zeros(readings, np.bool_))
            if not slot.of_reading and self.stream.readings is not None:
                vector = _of_records(vector, firsts, np.asarray(outgoing.counts))
            if not (field.nullable or vector.valid.all()):
                raise EncodeError(f"{field.name}: a value is missing, and the field cannot be null")
            valid[slot.number, : len(vector.valid)] = vector.valid
            self._put(cells, field.name, vector.values)

        texts_bytes = int(np.diff(texts.bounds)[sources].sum())
        if not numbered:
            texts_bytes += int(np.diff(texts.bounds)[np.asarray(instrument)].sum())
        bytes_max = records * self._record_bytes + readings * self._reading_bytes + texts_bytes
        counts = np.ascontiguousarray(outgoing.counts, np.int64)
        return write(self._header, self._program, cells, valid, texts, counts, bytes_max)

    def _put(self, cells: Int64s, name: str, values: ArrayLike) -> None:
        slot = self._slots[name]
        given = np.asarray(values)
        bits = bits_of(name, slot.field.type, given)
        if slot.role == "value" and slot.field.type == "timestamp":
            bits = self._in_unit(bits, time_unit(slot.avro["type"]))
        cells[slot.number, : len(given)] = bits

    @staticmethod
    def _in_unit(time_us: Int64s, unit: str) -> Int64s:
        if unit == "timestamp-millis":
            return time_us // 1000
        return time_us * 1000 if unit == "timestamp-nanos" else time_us

    def _check(self, outgoing: Outgoing, records: int, readings: int) -> None:
        lengths = {
            "run": (len(outgoing.run), records),
            "trigger": (len(outgoing.trigger), records),
            "time_us": (len(outgoing.time_us), records),
            "counts": (len(outgoing.counts), records),
            "instrument": (len(outgoing.instrument), readings),
        }
        for name, vector in outgoing.values.items():
            if name not in self._slots or self._slots[name].role != "value":
                raise EncodeError(f"{name} is no value of stream {self.stream.name}")
            lengths[name] = (len(vector.values), readings)
            lengths[name + " (valid)"] = (len(vector.valid), readings)
        for name, (length, wanted) in lengths.items():
            if length != wanted:
                raise EncodeError(f"{name} has {length} entries, not {wanted}")
        counts = np.asarray(outgoing.counts)
        if records and not 0 <= counts.min() <= counts.max() <= READINGS_PER_RECORD_MAX:
            raise EncodeError(f"counts: a record has less than 0 or more than {READINGS_PER_RECORD_MAX} readings")
        if int(counts.sum()) != readings:
            raise EncodeError(f"counts add up to {int(counts.sum())}, but there are {readings} readings")
        if self.stream.readings is None and records and counts.min() != 1:
            raise EncodeError(f"counts: a record of stream {self.stream.name} is one reading")

    def _compiled(self) -> tuple[Int64s, int, int]:
        """The program, and the most bytes that a record and a reading take, texts left out."""
        rows: list[list[int]] = []
        sizes = [HEADER_BYTES, 0]
        for avro in self.stream.avro["fields"]:
            if avro["name"] != self.stream.readings:
                sizes[0] += self._emit(rows, avro)
                continue
            begin = len(rows)
            rows.append([k.READINGS, 0, 0])
            sizes[0] += 2 * k.NUMBER_BYTES_MAX
            for inner in avro["type"]["items"]["fields"]:
                sizes[1] += self._emit(rows, inner)
            rows.append([k.NEXT_READING, begin, 0])
            rows[begin][1] = len(rows)
        rows.append([k.END, 0, 0])
        return np.array(rows, np.int64), sizes[0], sizes[1]

    def _emit(self, rows: list[list[int]], avro: dict[str, Any]) -> int:
        slot = self._slots[avro["name"]]
        null = avro["type"].index("null") if slot.field.nullable else None
        return emit(rows, slot.number, slot.field.type, null)


def emit(rows: list[list[int]], slot: int, kind: str, null: int | None) -> int:
    """Add the writing of a field, whose branch `null` is null; the most bytes that it takes, texts left out."""
    if null is not None:
        rows.append([k.OPTION, slot, null])
    rows.append([_OPS.get(kind, k.NUMBER), slot, 0])
    return _BYTES.get(kind, k.NUMBER_BYTES_MAX) + (null is not None)


def texts_of(distinct: set[str], bytes_max: int) -> Texts:
    encoded = [text.encode() for text in distinct]
    for text in encoded:
        if len(text) > bytes_max or b"\0" in text:
            raise EncodeError(f"name {text[:40]!r} holds NUL, or more than {bytes_max} bytes")
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=bounds[1:])
    codes = {text: code for code, text in enumerate(distinct)}
    return Texts(bounds, np.frombuffer(b"".join(encoded), np.uint8), codes)


def bits_of(name: str, kind: str, given: NDArray[np.generic]) -> Int64s:
    """Values of a type as the kernel takes them."""
    if kind == "float":
        return given.astype(np.float32).view(np.uint32).astype(np.int64)
    if kind == "double":
        return given.astype(np.float64).view(np.int64)
    bits = given.astype(np.int64, casting="same_kind")
    if kind == "int" and len(bits) and not -_INT_MAX - 1 <= int(bits.min()) <= int(bits.max()) <= _INT_MAX:
        raise EncodeError(f"{name}: a value does not fit the 32 bits of its type int")
    return bits


def write(
    header: NDArray[np.uint8],
    program: Int64s,
    cells: Int64s,
    valid: NDArray[np.uint8],
    texts: Texts,
    counts: Int64s,
    bytes_max: int,
) -> list[bytes]:
    """Run the kernel; `bytes_max`: what all records can take at most."""
    out = np.empty(bytes_max, np.uint8)
    ends = np.zeros(len(counts), np.int64)
    size = k.write_records(out, ends, header, program, cells, valid, texts.bounds, texts.arena, counts)
    data = out[:size].tobytes()
    return [data[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def codes_of(texts: Texts, names: Sequence[str]) -> Int64s:
    return np.fromiter(map(texts.codes.__getitem__, names), np.int64, len(names))


def _of_records(vector: Vector, firsts: Int64s, counts: Int64s) -> Vector:
    """One value for each record, that of its first reading; null where it has none."""
    values = np.zeros(len(counts), vector.values.dtype)
    valid = np.zeros(len(counts), np.bool_)
    some = counts > 0
    values[some], valid[some] = vector.values[firsts[some]], vector.valid[firsts[some]]
    return Vector(values, valid)
