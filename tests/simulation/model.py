"""A view, a codec and inputs small enough for the simulation, in which a state names every reading it holds."""

import json
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Columns, Decoded, Int64s, RawBatch, Vector

SECOND_US = 1_000_000


class Reading(NamedTuple):
    """One reading of the input; `bit` names it, so that a state is the set of the readings in it."""

    bit: int
    instrument: str
    trigger: int
    time_us: int


Record = list[Reading]


class SetLayout:
    """A state of two words: how many readings were absorbed or folded in, and which. Twice the same one shows."""

    words = 2

    def init(self, table: NDArray[np.int64], rows: Int64s) -> None:
        table[rows] = 0

    def absorb(self, table: NDArray[np.int64], rows: Int64s, inputs: list[Vector]) -> None:
        for row, bit in zip(rows.tolist(), inputs[0].values.tolist(), strict=True):
            table[row, 0] += 1
            table[row, 1] |= 1 << int(bit)

    def fold(self, into: NDArray[np.int64], into_rows: Int64s, other: NDArray[np.int64], other_rows: Int64s) -> None:
        into[into_rows, 0] += other[other_rows, 0]
        into[into_rows, 1] |= other[other_rows, 1]

    def finish(self, table: NDArray[np.int64], rows: Int64s) -> list[Vector]:
        there = np.ones(len(rows), np.bool_)
        return [Vector(table[rows, 0].copy(), there), Vector(table[rows, 1].copy(), there)]


class Named(NamedTuple):
    name: str


class Evaluated(NamedTuple):
    rows: Int64s
    inputs: list[Vector]
    failed: int


@dataclass(frozen=True)
class SetView:
    """Stands for processors.plan.Plan: the set of readings per instrument and window."""

    name: str
    pane_us: int
    size_us: int
    lateness_us: int
    generation: int = 1
    layout: SetLayout = field(default_factory=SetLayout)
    outputs: tuple[Named, ...] = (Named("count"), Named("bits"))
    group: tuple[Named, ...] = (Named("instrument"),)

    def evaluate(self, columns: Columns, keep: Int64s) -> Evaluated:
        bits = columns.values["bit"]
        return Evaluated(keep, [Vector(bits.values[keep], bits.valid[keep])], 0)


class JsonCodec:
    """Stands for schemas.codec.Codec: a record is a JSON list of readings."""

    def __init__(self) -> None:
        self.instruments: list[str] = []

    def decode(self, raw: RawBatch) -> Decoded:
        rows = []
        for start, size, offset in zip(raw.starts.tolist(), raw.sizes.tolist(), raw.offsets.tolist(), strict=True):
            for index, reading in enumerate(json.loads(raw.data[start : start + size].tobytes())):
                rows.append((offset, index, *reading))
        for row in rows:
            if row[3] not in self.instruments:
                self.instruments.append(row[3])
        n = len(rows)

        def column(at: int, kind: Any = np.int64) -> Any:
            return np.array([row[at] for row in rows], kind)

        codes = np.array([self.instruments.index(row[3]) for row in rows], np.int32)
        zeros = np.zeros(n, np.int32)
        values = {"bit": Vector(column(2), np.ones(n, np.bool_))}
        columns = Columns(
            "s", raw.partition, column(0), column(1, np.int32), column(5), zeros, np.zeros(n, np.int64), column(4),
            column(5), codes, zeros, values, self.instruments, ["x"],
        )  # fmt: skip
        return Decoded(columns, [])


class JsonRows:
    """Stands for schemas.flat.FlatCodec."""

    def encode(self, columns: dict[str, Vector]) -> list[bytes]:
        n = len(columns["generation"].values)
        return [
            json.dumps({k: v.values[i].item() if hasattr(v.values[i], "item") else v.values[i]
                        if v.valid[i] else None for k, v in columns.items()}
                       | {k: None for k, v in columns.items() if not v.valid[i]}).encode()
            for i in range(n)
        ]  # fmt: skip


def raw_batch(
    topic: str,
    partition: int,
    first: int,
    records: list[tuple[int, bytes | None]],
    after: int,
    append_us: list[int] | None = None,
) -> RawBatch:
    """Records with their offsets as a raw batch up to the offset `after`."""
    sizes = np.array([-1 if value is None else len(value) for _, value in records], np.int64)
    lengths = np.maximum(sizes, 0)
    data = np.frombuffer(b"".join(value or b"" for _, value in records), np.uint8)
    offsets = np.array([offset for offset, _ in records], np.int64)
    starts = np.cumsum(lengths) - lengths
    appended = np.array(append_us or [0] * len(records), np.int64)
    return RawBatch(topic, partition, first, after, data, starts, sizes, offsets, appended)


def random_input(rng: random.Random, partitions: int, records: int, instruments: int) -> list[list[Record]]:
    """Records of each source partition: mostly in order, some late, some repeated, some of several readings."""
    logs: list[list[Record]] = []
    bit = 0
    for p in range(partitions):
        time_s, log = rng.randint(0, 3), []
        triggers = dict.fromkeys(range(instruments), 0)
        for _ in range(records):
            if log and rng.random() < 0.2:
                log.append(list(rng.choice(log)))  # a duplicate
                continue
            time_s += rng.choice([0, 1, 1, 2, 3])
            record = []
            for instrument in rng.sample(range(instruments), rng.randint(1, instruments)):
                triggers[instrument] += rng.choice([1, 1, 1, 2])
                late_s = rng.choice([0, 0, 0, 1, 3, 9])
                reading_us = max(0, time_s - late_s) * SECOND_US
                record.append(Reading(bit, f"i{p}.{instrument}", triggers[instrument], reading_us))
                bit += 1
            log.append(record)
        logs.append(log)
    assert bit <= 62
    return logs
