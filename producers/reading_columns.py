"""Readings given by field name, as one record of columns, with a clear word where a field is wrong. Does no I/O."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from producers.nearest import nearest
from schemas.batch import Vector
from schemas.encoder import Outgoing
from schemas.stream import NUMPY_TYPES, Field, Stream


class FieldError(ValueError):
    """A reading that does not fit its stream: which field, why, and what it may be."""


def record_outgoing(
    stream: Stream,
    source: str,
    run: int,
    trigger: int,
    time: datetime | float,
    readings: list[dict[str, Any]],
    values: dict[str, Any],
) -> Outgoing:
    """Make one record; `values` are fields of the record itself, which count for each of its readings."""
    if stream.readings is None and len(readings) != 1:
        raise FieldError(
            f"stream {stream.name} takes one reading in a record, not {len(readings)}; send one record each"
        )
    rows = [{**values, **reading} for reading in readings]
    known = {field.name for field in (stream.instrument, *stream.values)}
    if stream.status is not None:
        known.add(stream.status.name)
    for row in rows:
        for name in row:
            if name not in known:
                raise FieldError(f"{name} is no field of stream {stream.name}; {nearest(name, known)}")
        if stream.instrument.name not in row:
            raise FieldError(f"a reading of stream {stream.name} lacks {stream.instrument.name}; name the instrument")
    instruments = [row[stream.instrument.name] for row in rows]
    textual = stream.instrument.type == "string"
    for instrument in instruments:
        if not isinstance(instrument, str if textual else int | np.integer):
            raise FieldError(
                f"{stream.instrument.name}={instrument!r} is not {'text' if textual else 'a whole number'}"
            )
    status = [0 if stream.status is None else row.get(stream.status.name, 0) for row in rows]
    one = np.ones(1, np.int64)
    return Outgoing(
        source=[source],
        run=one * _whole(stream.run, run),
        trigger=one * _whole(stream.trigger, trigger),
        time_us=one * _time_us(time),
        counts=one * len(rows),
        instrument=instruments if textual else np.array(instruments, np.int64),
        status=np.array(status, np.int32),
        values={field.name: _vector(field, rows) for field in stream.values},
    )


def check_names(stream: Stream, outgoing: Outgoing) -> None:
    """Refuse value columns that the stream does not have, with the nearest name that it has."""
    known = {field.name for field in stream.values}
    for name in outgoing.values:
        if name not in known:
            raise FieldError(f"{name} is no value of stream {stream.name}; {nearest(name, known)}")


def _whole(field: Field, value: object) -> int:
    least = -(2 ** (31 if field.type == "int" else 63))
    if not isinstance(value, int | np.integer) or not least <= value < -least:
        raise FieldError(f"{field.name}={value!r} is not a whole number that fits {field.type}")
    return int(value)


def _time_us(time: datetime | float) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise FieldError(f"time={time}: has no zone; give datetime.now(UTC), or seconds since 1970")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    # Seconds since 1970 as float64 are 0.24 µs apart: a quarter more, so that whole µs are not floored away.
    return math.floor(time * 1e6 + 0.25)


def _vector(field: Field, rows: list[dict[str, Any]]) -> Vector:
    given = [row.get(field.name) for row in rows]
    valid = np.array([value is not None for value in given], np.bool_)
    if not field.nullable and not valid.all():
        raise FieldError(f"a reading lacks {field.name} ({field.meaning}), which cannot be null")
    try:
        values = np.array([0 if value is None else value for value in given], NUMPY_TYPES[field.type])
    except (TypeError, ValueError, OverflowError):
        raise FieldError(f"{field.name}={given!r} is not {field.type}") from None
    return Vector(values, valid)
