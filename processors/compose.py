"""The one order in which partials become a window's state. Live rows, recomputation and oracles all use this file.

Floating-point folding is not associative, so the order is part of the definition: within a pane source partitions
ascending; panes around the block boundary of `Windows.split`. An empty state is the fold's neutral element.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from processors.table import MISSING, Layout, RowTable
from processors.windows import Windows
from schemas.batch import Int64s

States = NDArray[np.int64]


class Foldable(Layout, Protocol):
    """A layout whose states can be folded: the left operand is replaced by the result."""

    def fold(self, into: States, into_rows: Int64s, other: States, other_rows: Int64s) -> None: ...


def compose(
    layout: Foldable, tables: Mapping[int, RowTable], windows: Windows, window: int, groups: Int64s
) -> tuple[Int64s, States]:
    """For each group the number of readings in the window, and its state; one row a group, in the order given."""
    n = np.zeros(len(groups), np.int64)
    rows = np.arange(len(groups))
    split = windows.split(window)
    panes = windows.panes(window)

    before = _empty(layout, len(groups))
    for pane in reversed(range(panes.start, split)):
        state = _pane(layout, tables, pane, groups, n)
        layout.fold(state, rows, before, rows)
        before = state
    after = _empty(layout, len(groups))
    for pane in range(split, panes.stop):
        layout.fold(after, rows, _pane(layout, tables, pane, groups, n), rows)
    layout.fold(before, rows, after, rows)
    return n, before


def _pane(layout: Foldable, tables: Mapping[int, RowTable], pane: int, groups: Int64s, n: Int64s) -> States:
    """One pane's state of each group, folded over source partitions; adds its readings to `n`."""
    state = _empty(layout, len(groups))
    for p in sorted(tables):
        table = tables[p]
        found = table.find(pane, groups)
        here = np.flatnonzero(found != MISSING)
        if len(here):
            layout.fold(state, here, table.state, found[here])
            n[here] += table.n[found[here]]
    return state


def _empty(layout: Layout, count: int) -> States:
    state = np.zeros((count, layout.words), np.int64)
    layout.init(state, np.arange(count))
    return state
