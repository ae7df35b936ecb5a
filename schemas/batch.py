"""The two shapes in which readings travel: a raw batch of payloads, and columns. Knows neither Kafka nor Avro."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

WHOLE_RECORD = -1  # the index of a letter that stands for a record of which no reading could be decoded


class RawBatch(NamedTuple):
    """Payloads of one partition, in offset order: what a fetch brought, before anything is decoded.

    `first` is the offset that was asked for and `next` one past the last offset that the fetch covers, so that
    two batches follow each other exactly when `a.next == b.first`. Offsets between may be missing (compaction,
    control records). Payload i is `data[starts[i] : starts[i] + sizes[i]]`; a size of -1 is a null value.
    """

    topic: str
    partition: int
    first: int
    next: int
    data: NDArray[np.uint8]
    starts: Int64s
    sizes: Int64s
    offsets: Int64s
    append_us: Int64s  # the broker's log append time, in µs since 1970


class Vector(NamedTuple):
    """Values of one column, and which of them are there. `valid` is False where SQL would show NULL."""

    values: NDArray[np.generic]
    valid: Bools


@dataclass(frozen=True, slots=True)
class Letter:
    """A record (`index` = WHOLE_RECORD) or a reading that cannot be taken in, and why."""

    offset: int
    index: int
    reason: str  # a class from schemas.judge.REASONS or schemas.codec.REASONS, a word or two
    message: str  # what exactly, for a person
    payload: bytes


@dataclass(frozen=True, slots=True)
class Columns:
    """Readings of one partition as columns of equal length, in the order (offset, index).

    For example::

        decoded = codec.decode(raw)           # schemas.codec
        verdicts = judge(decoded.columns, …)  # schemas.judge

    `instrument` holds codes: reading i is of `instruments[instrument[i]]`. The list is shared with the codec
    that made it and only ever grows, so a code keeps its meaning for the life of the codec; so do `sources`.
    """

    stream: str
    partition: int
    offset: Int64s
    index: Int32s  # of the reading within its record
    append_us: Int64s
    source: Int32s  # codes into `sources`
    run: Int64s
    trigger: Int64s
    time_us: Int64s  # event time, µs since 1970, floored
    instrument: Int32s
    status: Int32s
    values: dict[str, Vector]  # by field name, in the order of the schema
    instruments: list[str] | list[int]
    sources: list[str]

    def __len__(self) -> int:
        return len(self.offset)


class Decoded(NamedTuple):
    """What a raw batch holds: the readings that could be decoded, and the records that could not."""

    columns: Columns
    letters: list[Letter]
