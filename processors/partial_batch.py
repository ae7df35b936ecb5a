"""A raw batch of <view>.partials as columns, so that joining them is not a loop over records. Knows no view."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processors.records import (
    FORMAT,
    HEARTBEAT,
    MARK,
    PARTIAL,
    PARTIAL_HEAD,
    Heartbeat,
    unpack,
)
from schemas.batch import Int64s, RawBatch
from schemas.triggers import FormatError

# PARTIAL_HEAD of processors.records, field by field, for NumPy.
_HEAD = np.dtype(
    [
        ("format", "u1"),
        ("kind", "u1"),
        ("generation", "<i4"),
        ("partition", "<i4"),
        ("pane", "<i8"),
        ("absorbed", "<i8"),
        ("n", "<i8"),
        ("writer", "V16"),
        ("group_bytes", "<u4"),
    ]
)


class PartialBatch(NamedTuple):
    """Partials and marks of a batch, in the order of their offsets; a mark has no state."""

    kind: NDArray[np.uint8]
    partition: Int64s
    pane: Int64s
    absorbed: Int64s
    n: Int64s
    writers: list[bytes]
    groups: list[bytes]
    data: NDArray[np.uint8]
    state_at: Int64s  # where in `data` each state begins

    def states(self, chosen: Int64s, words: int) -> NDArray[np.int64]:
        """The states of chosen partials, a row each."""
        rows: NDArray[np.int64] = self.data[self.state_at[chosen][:, None] + np.arange(8 * words)].view(np.int64)
        return rows


def read_partials(raw: RawBatch, generation: int, words: int) -> tuple[PartialBatch, list[tuple[Heartbeat, int]]]:
    """The partials and marks of one generation, and the heartbeats with their append times. Tombstones are passed over.

    Raises FormatError for a record that this version did not write, a state of another size included.
    """
    where = f"{raw.topic}/{raw.partition}"
    there = np.flatnonzero(raw.sizes >= 2)
    kinds = raw.data[raw.starts[there] + 1]
    known = (raw.data[raw.starts[there]] == FORMAT) & np.isin(kinds, (PARTIAL, MARK, HEARTBEAT))
    heartbeats = []
    for i in np.concatenate((np.flatnonzero((raw.sizes >= 0) & (raw.sizes < 2)), there[~known])).tolist():
        unpack(_value(raw, i), f"{where} offset {raw.offsets[i]}")  # raises, naming what is wrong
    for i in there[known & (kinds == HEARTBEAT)].tolist():
        heartbeat = unpack(_value(raw, i), where)
        if isinstance(heartbeat, Heartbeat) and heartbeat.generation == generation:
            heartbeats.append((heartbeat, int(raw.append_us[i])))

    rows = there[known & (kinds != HEARTBEAT)]
    heads = raw.data[raw.starts[rows][:, None] + np.arange(PARTIAL_HEAD.size)].view(_HEAD).ravel()
    current = heads["generation"] == generation
    rows, heads = rows[current], heads[current]
    group_at = raw.starts[rows] + PARTIAL_HEAD.size
    state_at = group_at + heads["group_bytes"]
    state_bytes = raw.starts[rows] + raw.sizes[rows] - state_at
    for i in np.flatnonzero(state_bytes != np.where(heads["kind"] == PARTIAL, 8 * words, 0)).tolist():
        raise FormatError(
            f"{where} offset {raw.offsets[rows[i]]}: a state of {state_bytes[i]} bytes instead of {8 * words}: this"
            " version computes the view in another way; give the view a new generation"
        )
    blob = raw.data.tobytes() if len(rows) else b""
    return (
        PartialBatch(
            heads["kind"],
            heads["partition"].astype(np.int64),
            heads["pane"].astype(np.int64),
            heads["absorbed"].astype(np.int64),
            heads["n"].astype(np.int64),
            [writer.tobytes() for writer in heads["writer"]],
            [blob[a:b] for a, b in zip(group_at.tolist(), state_at.tolist(), strict=True)],
            raw.data,
            state_at,
        ),
        heartbeats,
    )


def _value(raw: RawBatch, i: int) -> bytes:
    return raw.data[raw.starts[i] : raw.starts[i] + raw.sizes[i]].tobytes()
