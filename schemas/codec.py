"""Payloads to columns: the Confluent wire format and Avro, by one compiled kernel. Knows neither Kafka nor registry.

The wire format is a byte 0x00, the writer's schema id in four bytes, big endian, and the Avro body.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import kernels
from schemas.batch import WHOLE_RECORD, Columns, Decoded, Int64s, Letter, RawBatch, Vector
from schemas.names import INSTRUMENTS_MAX, SOURCES_MAX, Dictionary, TooManyNamesError
from schemas.program import IncompatibleSchemaError, compile_program, slot_count, slots_of
from schemas.stream import NUMPY_TYPES, Field, Stream

_BYTES_PER_READING = 32  # first guess at the size of a reading; the last batch's own figure afterwards

REASONS: dict[str, str] = {
    "null": "the value is null",
    "empty": "the payload has no bytes",
    "not-framed": "the payload does not begin with the byte 0 and a schema id",
    "unknown-schema": "the registry does not know the schema id",
    "incompatible": "records of this schema cannot be read as the stream's",
    "truncated": "the payload ends before the record does",
    "bad-number": "a number takes more than its type's bits",
    "bad-length": "a length is negative or reaches beyond the payload",
    "bad-count": "an array counts more items than the payload can hold",
    "bad-choice": "the branch of a union, or a symbol, does not exist",
    "bad-boolean": "a boolean is neither 0 nor 1",
    "bad-text": "a name is not UTF-8 without NUL, or too long",
    "nested": "values lie within each other more deeply than is read",
    "trailing": "bytes follow the record",
    "no-value": "a null, or a branch of another type, where the stream wants a value",
}
# Of the kernel: (a key of REASONS, what to say). MANY_NAMES is none of them: it ends in TooManyNamesError.
_FATES: dict[int, tuple[str, str]] = {
    kernels.NULL: ("null", REASONS["null"]),
    kernels.EMPTY: ("empty", REASONS["empty"]),
    kernels.SHORT: ("not-framed", f"shorter than the {kernels.HEADER_BYTES} bytes of byte 0 and schema id"),
    kernels.MAGIC: ("not-framed", "does not begin with byte 0, so it is not in the registry's wire format"),
    kernels.TRUNCATED: ("truncated", "the payload ends here"),
    kernels.VARINT: ("bad-number", "a number is longer than 64 bits"),
    kernels.RANGE: ("bad-number", "a number is too large for its type"),
    kernels.LENGTH: ("bad-length", REASONS["bad-length"]),
    kernels.COUNT: (
        "bad-count",
        f"more items than bytes left, or more than {kernels.READINGS_PER_RECORD_MAX} readings",
    ),
    kernels.BLOCK: ("bad-length", "a block of readings does not end where it says"),
    kernels.CHOICE: ("bad-choice", REASONS["bad-choice"]),
    kernels.NOT_BOOLEAN: ("bad-boolean", REASONS["bad-boolean"]),
    kernels.NOT_TEXT: ("bad-text", "a name is not UTF-8, or holds NUL"),
    kernels.LONG_NAME: ("bad-text", f"a name is longer than {kernels.NAME_BYTES_MAX} bytes"),
    kernels.DEEP: ("nested", f"more than {kernels.DEPTH_MAX} values lie within each other"),
    kernels.TRAILING: ("trailing", "bytes follow the record"),
    kernels.NO_PLACE: ("no-value", REASONS["no-value"]),
}


class UndecodableError(ValueError):
    """A payload that cannot be read: `reason` is a key of REASONS, `message` says what and where."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class UnknownSchemaIdError(LookupError):
    """The registry answers, and has no schema of this id."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"schema id {schema_id} is not known to the registry")
        self.schema_id = schema_id


class Codec:
    """Decodes the payloads of one stream.

    For example::

        codec = Codec(stream, registry.schema)
        columns, letters = codec.decode(raw)

    Bad payloads become letters, never exceptions; a letter depends on the payload and its schema, never on what this
    process read before. TooManyNamesError, and what `writer_schema` raises other than UnknownSchemaIdError, pass
    through `decode` and leave the codec as it was, so the same batch can be handed in again.
    `instruments` and `sources` only ever grow: a code keeps its meaning for the life of the codec.
    """

    def __init__(
        self,
        stream: Stream,
        writer_schema: Callable[[int], dict[str, Any]],
        *,
        instruments_max: int = INSTRUMENTS_MAX,
        sources_max: int = SOURCES_MAX,
    ) -> None:
        self.stream = stream
        self.instruments: list[Any] = []
        self.sources: list[str] = []
        self._writer_schema = writer_schema
        self._slots = slots_of(stream)
        self._slot_count = slot_count(stream)
        self._shared = np.array(
            [(slot.number, slot.width) for slot in self._slots.values() if not slot.of_reading], np.int64
        ).reshape(-1, 2)
        self._instruments = Dictionary(texts=stream.instrument.type == "string")
        self._sources = Dictionary(texts=True)
        self._names_max = np.array([sources_max, instruments_max], np.int64)
        self._program = np.zeros((0, 4), np.int64)
        self._places: list[str] = []
        self._entries: dict[int, int] = {}  # schema id: row of `_program`
        self._incompatible: dict[int, str] = {}  # schema id: why
        self._bytes_per_reading = float(_BYTES_PER_READING)

    def decode(self, raw: RawBatch) -> Decoded:
        _check(raw)
        count = len(raw.starts)
        ids, fates, ats, wheres = (np.zeros(count, np.int64) for _ in range(4))
        kernels.read_headers(raw.data, raw.starts, raw.sizes, ids, fates)
        entries = self._entries_of(ids, fates)
        counts = np.zeros(count, np.int64)
        cells, rows = self._read(raw, entries, counts, fates, ats, wheres)
        letters = [
            self._letter(raw, i, int(fates[i]), int(ids[i]), int(ats[i]), int(wheres[i]))
            for i in np.flatnonzero(fates).tolist()
        ]
        return Decoded(self._columns(raw, counts, cells, rows), letters)

    def decode_one(self, payload: bytes | None) -> Columns:
        """Decode a single payload, at offset 0; UndecodableError if it cannot be read."""
        data = np.frombuffer(payload or b"", np.uint8)
        zero = np.zeros(1, np.int64)
        size = np.array([-1 if payload is None else len(payload)], np.int64)
        columns, letters = self.decode(RawBatch(self.stream.topic, 0, 0, 1, data, zero, size, zero, zero))
        if letters:
            raise UndecodableError(letters[0].reason, letters[0].message)
        return columns

    def _entries_of(self, ids: Int64s, fates: Int64s) -> Int64s:
        """The program row of each record, -1 where there is none to run; compiles what is new."""
        distinct, positions = np.unique(ids, return_inverse=True)
        entries = np.full(len(distinct), -1, np.int64)
        why = np.zeros(len(distinct), np.int64)
        for i, schema_id in enumerate(distinct.tolist()):
            if schema_id < 0:
                continue
            try:
                entries[i] = self._entry(schema_id)
            except UnknownSchemaIdError:
                why[i] = kernels.UNKNOWN
            if schema_id in self._incompatible:
                why[i] = kernels.INCOMPATIBLE
        np.copyto(fates, why[positions], where=fates == 0)
        return entries[positions]

    def _entry(self, schema_id: int) -> int:
        if schema_id in self._incompatible:
            return -1
        if schema_id not in self._entries:
            writer = self._writer_schema(schema_id)
            try:
                program = compile_program(writer, self.stream)
            except IncompatibleSchemaError as error:
                self._incompatible[schema_id] = str(error)
                return -1
            self._entries[schema_id] = len(self._program)
            self._program = np.concatenate([self._program, program.moved(len(self._program))])
            self._places += program.places
        return self._entries[schema_id]

    def _read(
        self, raw: RawBatch, entries: Int64s, counts: Int64s, fates: Int64s, ats: Int64s, wheres: Int64s
    ) -> tuple[kernels.Cells, int]:
        """Run the kernel, with more room each time it asks for it."""
        size = int(raw.sizes.sum())
        cells = _cells(self._slot_count, len(entries) + int(size / self._bytes_per_reading * 1.1) + 16)
        progress = np.zeros(2, np.int64)
        while True:
            stop = kernels.read_records(
                raw.data, raw.starts, raw.sizes, entries, self._program, cells, self._shared,
                int(self.stream.readings is None), self._sources.names, self._instruments.names, self._names_max,
                progress, counts, fates, ats, wheres,
            )  # fmt: skip
            if stop == kernels.DONE:
                break
            if stop == kernels.MORE_ROWS:
                record_bytes = int(raw.sizes[progress[0]])
                cells = _grown(cells, int(progress[1]), 2 * cells.valid.shape[1] + record_bytes)
            elif stop == kernels.MORE_SOURCES:
                self._sources.grow()
            else:
                self._instruments.grow()
        if (fates == kernels.MANY_NAMES).any():
            self._refuse_names(raw, int(np.argmax(fates == kernels.MANY_NAMES)))
        rows = int(progress[1])
        if rows:
            self._bytes_per_reading = max(size / rows, 1.0)
        self.sources += self._sources.news(len(self.sources))
        self.instruments += self._instruments.news(len(self.instruments))
        return cells, rows

    def _refuse_names(self, raw: RawBatch, i: int) -> None:
        """Forget the batch's names, and raise."""
        sources_max, instruments_max = self._names_max.tolist()
        full, bound, kind = self._sources, sources_max, "sources"
        if len(self._instruments) >= instruments_max:
            full, bound, kind = self._instruments, instruments_max, "instruments"
        where = f"stream {self.stream.name}, {raw.topic}[{raw.partition}] offset {int(raw.offsets[i])}"
        error = TooManyNamesError(where, kind, bound, full.newest())
        self._sources.forget(len(self.sources))
        self._instruments.forget(len(self.instruments))
        raise error

    def _columns(self, raw: RawBatch, counts: Int64s, cells: kernels.Cells, rows: int) -> Columns:
        slots = self._slots
        status = self.stream.status
        firsts = np.cumsum(counts) - counts
        return Columns(
            stream=self.stream.name,
            partition=raw.partition,
            offset=np.repeat(raw.offsets, counts),
            index=(np.arange(rows) - np.repeat(firsts, counts)).astype(np.int32),
            append_us=np.repeat(raw.append_us, counts),
            source=cells.i4[slots[self.stream.source.name].number, :rows],
            run=cells.i8[slots[self.stream.run.name].number, :rows],
            trigger=cells.i8[slots[self.stream.trigger.name].number, :rows],
            time_us=cells.i8[slots[self.stream.time.name].number, :rows],
            instrument=cells.i4[slots[self.stream.instrument.name].number, :rows],
            status=np.zeros(rows, np.int32) if status is None else cells.i4[slots[status.name].number, :rows],
            values={
                value.name: Vector(
                    _cells_of(cells, value)[slots[value.name].number, :rows],
                    cells.valid[slots[value.name].number, :rows].view(np.bool_),
                )
                for value in self.stream.values
            },
            instruments=self.instruments,
            sources=self.sources,
        )

    def _letter(self, raw: RawBatch, i: int, fate: int, schema_id: int, at: int, where: int) -> Letter:
        begin, size = int(raw.starts[i]), max(int(raw.sizes[i]), 0)
        payload = raw.data[begin : begin + size].tobytes()
        if fate == kernels.UNKNOWN:
            reason, message = "unknown-schema", str(UnknownSchemaIdError(schema_id))
        elif fate == kernels.INCOMPATIBLE:
            reason, message = "incompatible", f"schema id {schema_id}: {self._incompatible[schema_id]}"
        else:
            reason, message = _FATES[fate]
            if at:
                message = f"{self._places[where]}, byte {at} of {size}: {message}"
        return Letter(int(raw.offsets[i]), WHOLE_RECORD, reason, message, payload)


def _check(raw: RawBatch) -> None:
    """Payloads outside the data would be read from foreign memory: a bug of whoever made the batch."""
    sizes = np.maximum(raw.sizes, 0)
    if not len(raw.starts) == len(raw.sizes) == len(raw.offsets) == len(raw.append_us):
        raise ValueError(f"{raw.topic}[{raw.partition}]: arrays of the batch at {raw.first} differ in length")
    if len(sizes) and (raw.starts.min() < 0 or (raw.starts > len(raw.data) - sizes).any()):
        raise ValueError(f"{raw.topic}[{raw.partition}]: the batch at {raw.first} has payloads outside its data")


def _cells(slots: int, rows: int) -> kernels.Cells:
    base: NDArray[np.int64] = np.empty((slots, rows), np.int64)
    return kernels.Cells(
        i8=base,
        f8=base.view(np.float64),
        i4=base.view(np.int32),
        u4=base.view(np.uint32),
        f4=base.view(np.float32),
        u1=base.view(np.uint8),
        valid=np.ones((slots, rows), np.uint8),
    )


def _cells_of(cells: kernels.Cells, field: Field) -> NDArray[np.generic]:
    """The cells seen as a field's type."""
    return cells.u1.view(NUMPY_TYPES[field.type]) if field.type == "boolean" else cells.i8.view(NUMPY_TYPES[field.type])


def _grown(cells: kernels.Cells, rows: int, capacity: int) -> kernels.Cells:
    """The same rows in larger cells. A slot's kind is not known here, so all bytes that any kind may use are copied."""
    grown = _cells(len(cells.i8), capacity)
    grown.i8[:, :rows] = cells.i8[:, :rows]
    grown.valid[:, :rows] = cells.valid[:, :rows]
    return grown
