"""Reduces rows of a view to the newest of each window, and marks to the farthest of each pane. Knows no I/O.

A row's version is (generation, revision, closed). Joining two rows of one window keeps the columns of the higher
(generation, revision); within a generation `closed` is true once it was true. So it is idempotent, commutative and
associative: any order, repetition or cut of deliveries ends in the same rows. `sinks/view_store.py` does the same
join in SQL.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Bools, Int64s, Vector

Rows = dict[str, Vector]  # by column; all of equal length


class Mark(NamedTuple):
    """A pane that a reading reached too late. `offset`: the greatest such in that source partition."""

    generation: int
    group: tuple[str, ...]
    pane_start_us: int
    partition: int
    offset: int


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Rows proper, and marks."""
    marks = rows["mark_partition"].valid
    return chosen(rows, np.flatnonzero(~marks)), chosen(rows, np.flatnonzero(marks))


def chosen(rows: Rows, indices: Int64s) -> Rows:
    return {name: Vector(vector.values[indices], vector.valid[indices]) for name, vector in rows.items()}


def newest_rows(rows: Rows, group: Sequence[str]) -> Rows:
    """One row for each window of each group, as if all had been joined one after the other."""
    count = len(rows["revision"].values)
    if not count:
        return rows
    generation, revision = _ints(rows, "generation"), _ints(rows, "revision")
    closed = np.asarray(rows["closed"].values, np.bool_)
    codes = _codes(rows, group)
    start = _ints(rows, "window_start")
    order = np.lexsort((closed, revision, generation, start, codes))
    first = np.ones(count, np.bool_)  # of its window, in that order
    first[1:] = (codes[order][1:] != codes[order][:-1]) | (start[order][1:] != start[order][:-1])
    begins = np.flatnonzero(first)
    last = order[np.append(begins[1:], count) - 1]  # the highest version of each window
    window = np.cumsum(first) - 1
    same_generation = generation[order] == generation[last][window]
    ever_closed: Bools = np.logical_or.reduceat(closed[order] & same_generation, begins)
    newest = chosen(rows, last)
    newest["closed"] = Vector(ever_closed, np.ones(len(last), np.bool_))
    return newest


def farthest_marks(marks: Rows, group: Sequence[str]) -> list[Mark]:
    """One mark for each pane, group and source partition. There are few: they are lists."""
    columns = [[str(value) for value in marks[name].values.tolist()] for name in group]
    farthest: dict[tuple[int, tuple[str, ...], int, int], int] = {}
    for i, (generation, start, partition, offset) in enumerate(
        zip(
            _ints(marks, "generation").tolist(),
            _ints(marks, "window_start").tolist(),
            _ints(marks, "mark_partition").tolist(),
            _ints(marks, "mark_offset").tolist(),
            strict=True,
        )
    ):
        key = (generation, tuple(column[i] for column in columns), start, partition)
        farthest[key] = max(offset, farthest.get(key, offset))
    return [Mark(*key, offset) for key, offset in sorted(farthest.items())]


def _codes(rows: Mapping[str, Vector], group: Sequence[str]) -> Int64s:
    """A number for each distinct group."""
    numbers: dict[object, int] = {}
    columns = [rows[name].values.tolist() for name in group]
    values = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _ints(rows: Mapping[str, Vector], name: str) -> NDArray[np.int64]:
    return np.asarray(rows[name].values, np.int64)
