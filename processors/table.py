"""Rows of state by (pane, group), in arrays that kernels can work on. Knows no aggregate and no Kafka."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Bools, Int64s

MISSING = -1
_ROWS_AT_FIRST = 64


class Layout(Protocol):
    """What a table must know of its states: how many 8-byte words, and how an empty one looks."""

    words: int

    def init(self, table: NDArray[np.int64], rows: Int64s) -> None: ...


class RowTable:
    """States of one view, a row each, with how many readings are in them and up to which offset.

    Rows are found by pane number and group number and keep their place until their pane is dropped; a dropped row's
    place is used again. `changed` is the user's to set and clear.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.state = np.empty((0, layout.words), np.int64)
        self.absorbed: Int64s = np.empty(0, np.int64)  # one past the offset of the last reading in the row
        self.n: Int64s = np.empty(0, np.int64)  # readings in the row
        self.pane: Int64s = np.empty(0, np.int64)
        self.group: Int64s = np.empty(0, np.int64)
        self.changed: Bools = np.empty(0, np.bool_)
        self._free: list[int] = []
        self._rows_of: dict[int, Int64s] = {}  # by pane: row by group number, or MISSING

    def __len__(self) -> int:
        return len(self.n) - len(self._free)

    @property
    def panes(self) -> list[int]:
        return list(self._rows_of)

    def find(self, pane: int, groups: Int64s) -> Int64s:
        """The row of each group in a pane, MISSING where there is none."""
        known = self._rows_of.get(pane)
        if known is None:
            return np.full(len(groups), MISSING, np.int64)
        inside = groups < len(known)
        return np.where(inside, known[np.where(inside, groups, 0)], MISSING)

    def find_or_make(self, panes: Int64s, groups: Int64s) -> Int64s:
        """The row of each (pane, group), new and empty ones made where missing."""
        rows = np.empty(len(panes), np.int64)
        for pane in np.unique(panes).tolist():
            here = panes == pane
            found = self.find(pane, groups[here])
            missing = np.unique(groups[here][found == MISSING])
            if len(missing):
                self._make(pane, missing)
                found = self.find(pane, groups[here])
            rows[here] = found
        return rows

    def groups_of(self, pane: int) -> Int64s:
        """Groups with a row in a pane, ascending."""
        known = self._rows_of.get(pane)
        return np.flatnonzero(known != MISSING) if known is not None else np.empty(0, np.int64)

    def drop(self, pane: int) -> None:
        """Forget all rows of a pane."""
        known = self._rows_of.pop(pane)
        rows = known[known != MISSING]
        self.changed[rows] = False
        self._free += rows.tolist()

    def _make(self, pane: int, groups: Int64s) -> None:
        while len(self._free) < len(groups):
            self._grow()
        rows = np.array([self._free.pop() for _ in range(len(groups))], np.int64)
        known = self._rows_of.get(pane, np.empty(0, np.int64))
        if groups[-1] >= len(known):
            grown = np.full(int(groups[-1]) + 1, MISSING, np.int64)
            grown[: len(known)] = known
            known = self._rows_of[pane] = grown
        known[groups] = rows
        self._layout.init(self.state, rows)
        self.absorbed[rows] = self.n[rows] = 0
        self.pane[rows], self.group[rows], self.changed[rows] = pane, groups, False

    def _grow(self) -> None:
        old = len(self.n)
        new = max(_ROWS_AT_FIRST, 2 * old)
        for name in ("state", "absorbed", "n", "pane", "group", "changed"):
            array = getattr(self, name)
            grown = np.zeros((new, *array.shape[1:]), array.dtype)
            grown[:old] = array
            setattr(self, name, grown)
        self._free += range(new - 1, old - 1, -1)
