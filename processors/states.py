"""The state of one view's group: which words of a row each aggregate keeps, shared where it can be.

Knows neither SQL nor windows: it is given aggregates and the number of each one's argument.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from processors.aggregates.shape import Aggregate, State
from schemas.batch import Bools, Floats, Int64s, Vector

ALL_READINGS = -1  # the argument of count(*)
NO_VALUES = np.empty(0, np.float64)


class Slot(NamedTuple):
    """One state of one argument, and where in the row it begins."""

    state: State
    argument: int
    at: int


class StateLayout:
    """What a row of a view's state table holds: `words` words of 8 bytes, int64 or float64 by slot.

    For example::

        layout = StateLayout([(AGGREGATES["avg"], 0), (AGGREGATES["count"], ALL_READINGS)], arguments=1)
        table = np.empty((groups, layout.words), np.int64)
        layout.init(table, np.arange(groups))
        layout.absorb(table, rows, [Vector(values, valid)])
        mean, count = layout.finish(table, np.arange(groups))

    Equal states of equal arguments are kept once, so avg, sum and count of one column cost two words.
    """

    def __init__(self, outputs: Sequence[tuple[Aggregate, int]], arguments: int) -> None:
        if any(not ALL_READINGS <= argument < arguments for _, argument in outputs):
            raise ValueError("an aggregate has an argument that is not there")
        self.arguments = arguments
        self.slots: list[Slot] = []
        wanted = [(argument, state) for aggregate, argument in outputs for state in aggregate.states]
        implied = {(argument, state.stands_for) for argument, state in wanted if state.stands_for}
        at: dict[tuple[int, str], int] = {}
        words = 0
        for argument, state in wanted:
            key = (argument, state.name)
            if key in at or key in implied:
                continue
            at[key] = words
            if state.stands_for:
                at[argument, state.stands_for] = words
            self.slots.append(Slot(state, argument, words))
            words += state.words
        self.words = words
        self._outputs = [
            (aggregate, np.array([at[argument, state.name] for state in aggregate.states], np.int64))
            for aggregate, argument in outputs
        ]

    @property
    def signature(self) -> str:
        """What the words mean, as text: two layouts with equal signatures read each other's rows."""
        return " ".join(f"{slot.state.name}({slot.argument})" for slot in self.slots)

    def init(self, table: Int64s, rows: Int64s) -> None:
        """Make rows empty: no reading absorbed."""
        rows = self._checked(table, rows)
        floats = table.view(np.float64)
        for state, _, at in self.slots:
            state.init(table, floats, at, rows)

    def absorb(self, table: Int64s, rows: Int64s, inputs: list[Vector]) -> None:
        """Take reading i into table row `rows[i]`, one reading after the other."""
        rows = self._checked(table, rows)
        floats = table.view(np.float64)
        if len(inputs) != self.arguments:
            raise ValueError(f"{len(inputs)} inputs for {self.arguments} arguments")
        arguments = [_input(vector, len(rows)) for vector in inputs]
        arguments.append((NO_VALUES, np.ones(len(rows), np.bool_)))  # at [ALL_READINGS]
        for state, argument, at in self.slots:
            state.absorb(table, floats, at, rows, *arguments[argument])

    def fold(self, into: Int64s, into_rows: Int64s, other: Int64s, other_rows: Int64s) -> None:
        """Fold row `other_rows[k]` of `other` into row `into_rows[k]`, which is the left operand.

        `into_rows` must be distinct, and an empty row changes nothing.
        """
        into_rows, other_rows = self._checked(into, into_rows), self._checked(other, other_rows)
        if len(into_rows) != len(other_rows):
            raise ValueError(f"{len(other_rows)} rows to fold into {len(into_rows)}")
        floats, other_floats = into.view(np.float64), other.view(np.float64)
        for state, _, at in self.slots:
            state.fold(into, floats, at, into_rows, other, other_floats, other_rows)

    def finish(self, table: Int64s, rows: Int64s) -> list[Vector]:
        """Compute what the view shows of each row: one vector per output."""
        rows = self._checked(table, rows)
        floats = table.view(np.float64)
        finished = []
        for aggregate, at in self._outputs:
            kind = np.int64 if aggregate.pg_type == "bigint" else np.float64
            values, valid = np.zeros(len(rows), kind), np.zeros(len(rows), np.bool_)
            aggregate.finish(table, floats, at, rows, values, valid)
            finished.append(Vector(values, valid))
        return finished

    def _checked(self, table: Int64s, rows: Int64s) -> Int64s:
        """Check, once for all kernels, that every row is in the table; they trust it."""
        if table.dtype != np.int64 or table.ndim != 2 or table.shape[1] != self.words or not table.flags.c_contiguous:
            raise ValueError(f"a state table is int64[rows, {self.words}], C-contiguous")
        if rows.ndim != 1 or (len(rows) and not (rows.min() >= 0 and rows.max() < len(table))):
            raise IndexError(f"a row lies outside the table of {len(table)}")
        return _plain(rows, np.int64)


def _input(vector: Vector, count: int) -> tuple[Floats, Bools]:
    if len(vector.values) != count or len(vector.valid) != count:
        raise ValueError(f"an input of {len(vector.values)} values for {count} readings")
    return _plain(vector.values, np.float64), _plain(vector.valid, np.bool_)


def _plain(array: NDArray[Any], kind: type) -> NDArray[Any]:
    """Return the array contiguous and writable: each other kind would have numba compile the kernels anew."""
    array = np.ascontiguousarray(array, kind)
    return array if array.flags.writeable else array.copy()
