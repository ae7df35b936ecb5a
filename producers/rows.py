"""Rows of a measured file as columns, one row a reading, and how rows become records. Opens nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from producers.mapping import UNITS_US, Origin, fields_of
from schemas.batch import Int32s, Int64s, Vector
from schemas.encoder import Outgoing
from schemas.stream import NUMPY_TYPES, Field, Stream

RECORD_ROWS_MAX = 100_000  # more rows of one trigger and source are a mistake in the mapping


class RowsError(ValueError):
    """Rows that cannot become readings: file, field, which row and why, in one line."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a file, in its order; every array has one entry for each row."""

    source: NDArray[np.object_]
    run: Int64s
    trigger: Int64s
    time_us: Int64s
    instrument: NDArray[Any]
    status: Int32s
    values: dict[str, Vector]

    def __len__(self) -> int:
        return len(self.run)

    def take(self, at: Int64s | slice) -> "Rows":
        return Rows(
            self.source[at],
            self.run[at],
            self.trigger[at],
            self.time_us[at],
            self.instrument[at],
            self.status[at],
            {name: Vector(vector.values[at], vector.valid[at]) for name, vector in self.values.items()},
        )


def joined(parts: list[Rows]) -> Rows:
    """One after the other."""

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    names = parts[0].values
    return Rows(
        column("source"),
        column("run"),
        column("trigger"),
        column("time_us"),
        column("instrument"),
        column("status"),
        {
            name: Vector(
                np.concatenate([part.values[name].values for part in parts]),
                np.concatenate([part.values[name].valid for part in parts]),
            )
            for name in names
        },
    )


def build_rows(columns: dict[str, Vector], stream: Stream, place: str, first: int) -> Rows:
    """Check columns by field name (times in µs already) and give each its type; `first` numbers their first row."""
    for field in fields_of(stream).values():
        vector = columns.get(field.name)
        if vector is not None and not field.nullable and not vector.valid.all():
            row = first + int(np.flatnonzero(~vector.valid)[0])
            raise RowsError(
                f"{place}: row {row}: {field.name} is empty, which it cannot be; fill it in or leave the row out"
            )
    count = len(next(iter(columns.values())).values)

    def typed(field: Field) -> Vector:
        vector = columns.get(field.name)
        if vector is None:
            return Vector(np.zeros(count, NUMPY_TYPES.get(field.type, np.dtype(object))), np.zeros(count, np.bool_))
        if field.type == "string":
            return Vector(np.array([str(value) for value in vector.values.tolist()], object), vector.valid)
        return Vector(_cast(vector, field, place, first), vector.valid)

    instrument = typed(stream.instrument).values
    return Rows(
        source=typed(stream.source).values.astype(object),
        run=typed(stream.run).values.astype(np.int64),
        trigger=typed(stream.trigger).values.astype(np.int64),
        time_us=typed(stream.time).values.astype(np.int64),
        instrument=instrument if stream.instrument.type == "string" else instrument.astype(np.int64),
        status=np.zeros(count, np.int32) if stream.status is None else typed(stream.status).values.astype(np.int32),
        values={field.name: typed(field) for field in stream.values},
    )


def _cast(vector: Vector, field: Field, place: str, first: int) -> NDArray[Any]:
    wanted = NUMPY_TYPES[field.type]
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # too great for float32 is infinite, as IEEE 754 says
            cast = vector.values.astype(wanted)
    except (TypeError, ValueError):
        raise RowsError(
            f"{place}: {field.name}: {vector.values.dtype} values cannot be {field.type}; correct the mapping"
        ) from None
    if np.issubdtype(wanted, np.integer):
        with np.errstate(invalid="ignore"):
            changed = vector.valid & (cast != vector.values)
        if changed.any():
            at = int(np.flatnonzero(changed)[0])
            raise RowsError(
                f"{place}: row {first + at}: {field.name}={vector.values[at]} is no {field.type}; correct it"
            )
    return cast


def times_us(values: NDArray[Any], origin: Origin, rows: Int64s) -> Int64s:
    """Bring times to µs since 1970, floored, and add the step of each row; exact in whole numbers."""
    if values.dtype.kind == "M":
        base = values.astype("datetime64[us]").astype(np.int64)  # NumPy floors
    else:
        unit = UNITS_US[origin.unit or "us"]
        if np.issubdtype(values.dtype, np.integer):
            base = values.astype(np.int64) * unit.numerator // unit.denominator
        else:
            # Seconds since 1970 as float64 are 0.24 µs apart: a quarter more, so that whole µs are not floored away.
            base = np.floor(values.astype(np.float64) * float(unit) + 0.25).astype(np.int64)
    return base + rows * origin.step_us.numerator // origin.step_us.denominator


def records(parts: Iterable[Rows], stream: Stream, place: str) -> Iterator[Outgoing]:
    """Make records of rows: of neighbours with one source, run, trigger and time, if a record may hold several."""
    held: Rows | None = None
    for part in parts:
        rows = part if held is None else joined([held, part])
        if len(rows) == 0:
            continue
        starts = _starts(rows, stream)
        if stream.readings is None:
            yield _outgoing(rows, starts)
            continue
        last = int(starts[-1])  # its record may go on in the next part
        if len(rows) - last > RECORD_ROWS_MAX:
            raise RowsError(
                f"{place}: more than {RECORD_ROWS_MAX} rows of one source, run, trigger and time; correct the mapping"
            )
        held = rows.take(slice(last, None))
        if last:
            yield _outgoing(rows.take(slice(0, last)), starts[:-1])
    if held is not None:
        yield _outgoing(held, np.zeros(1, np.int64))


def sliced(outgoing: Outgoing, first: int, stop: int) -> Outgoing:
    """Give records [first, stop) with their readings."""
    begin, end = int(outgoing.counts[:first].sum()), int(outgoing.counts[:stop].sum())
    return Outgoing(
        source=outgoing.source[first:stop],
        run=outgoing.run[first:stop],
        trigger=outgoing.trigger[first:stop],
        time_us=outgoing.time_us[first:stop],
        counts=outgoing.counts[first:stop],
        instrument=outgoing.instrument[begin:end],
        status=outgoing.status[begin:end],
        values={
            name: Vector(vector.values[begin:end], vector.valid[begin:end]) for name, vector in outgoing.values.items()
        },
    )


def _starts(rows: Rows, stream: Stream) -> Int64s:
    if stream.readings is None:
        return np.arange(len(rows))
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = False
    for column in (rows.source, rows.run, rows.trigger, rows.time_us):
        begins[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(begins)


def _outgoing(rows: Rows, starts: Int64s) -> Outgoing:
    return Outgoing(
        source=rows.source[starts].tolist(),
        run=rows.run[starts],
        trigger=rows.trigger[starts],
        time_us=rows.time_us[starts],
        counts=np.diff(np.append(starts, len(rows))),
        instrument=rows.instrument.tolist() if rows.instrument.dtype == object else rows.instrument,
        status=rows.status,
        values=rows.values,
    )
