"""A window's state is folded in one order that event time alone decides, so its bits do not depend on deliveries."""

import random
import struct

import numpy as np
import pytest

from processors.aggregates import AGGREGATES
from processors.compose import compose
from processors.states import ALL_READINGS, StateLayout
from processors.table import RowTable
from processors.windows import Windows
from schemas.batch import Vector

LAYOUT = StateLayout([(AGGREGATES["count"], ALL_READINGS), (AGGREGATES["avg"], 0), (AGGREGATES["stddev"], 0)], 1)
Parts = dict[tuple[int, int, int], list[float]]  # (source partition, pane, group) -> values


def tables_of(parts: Parts, order: list[tuple[int, int, int]]) -> dict[int, RowTable]:
    tables: dict[int, RowTable] = {}
    for p, pane, group in order:
        table = tables.setdefault(p, RowTable(LAYOUT))
        values = np.array(parts[p, pane, group])
        rows = table.find_or_make(np.full(len(values), pane), np.full(len(values), group))
        LAYOUT.absorb(table.state, rows, [Vector(values, np.ones(len(values), np.bool_))])
        table.n[rows[:1]] += len(values)
    return tables


def random_parts(rng: random.Random, panes: range) -> Parts:
    keys = [(p, pane, group) for p in range(3) for pane in panes for group in range(4) if rng.random() < 0.6]
    return {key: [rng.gauss(0, 10 ** rng.randint(0, 6)) for _ in range(rng.randint(1, 5))] for key in keys}


def bits(states: np.ndarray) -> bytes:
    return states.tobytes()


@pytest.mark.parametrize("seed", range(20))
def test_a_window_has_the_same_bits_in_whatever_order_its_parts_arrived(seed: int) -> None:
    rng = random.Random(seed)
    parts, windows, groups = random_parts(rng, range(-5, 12)), Windows(1, rng.choice([1, 2, 5, 7]), 0), np.arange(4)
    order = list(parts)
    straight = tables_of(parts, order)
    rng.shuffle(order)
    shuffled = tables_of(parts, order)
    for window in range(-3, 12):
        n, states = compose(LAYOUT, straight, windows, window, groups)
        n_again, again = compose(LAYOUT, shuffled, windows, window, groups[::-1].copy())
        assert bits(states) == bits(again[::-1])
        assert n.tolist() == n_again[::-1].tolist()
        panes = windows.panes(window)
        expected = [
            sum(len(v) for (_, pane, g), v in parts.items() if g == group and pane in panes) for group in range(4)
        ]
        assert n.tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_panes_are_folded_around_the_block_boundary(seed: int) -> None:
    """The definition written out for sums, one addition after the other."""
    rng = random.Random(seed)
    parts, windows = random_parts(rng, range(-5, 12)), Windows(1, 5, 0)
    tables = tables_of(parts, list(parts))

    def total(values: list[float]) -> float | None:
        result = None
        for value in values:
            result = value if result is None else result + value
        return result

    def pane_sum(pane: int) -> float | None:
        sums = [total(parts[p, pane, 0]) for p in range(3) if (p, pane, 0) in parts]
        return total([s for s in sums if s is not None])

    for window in range(12):
        split = windows.split(window)
        before: float | None = None
        for pane in range(split - 1, windows.panes(window)[0] - 1, -1):
            left = pane_sum(pane)
            before = total([v for v in (left, before) if v is not None])
        after = total([s for pane in range(split, window + 1) if (s := pane_sum(pane)) is not None])
        expected = total([v for v in (before, after) if v is not None])
        n, states = compose(LAYOUT, tables, windows, window, np.array([0]))
        mean = LAYOUT.finish(states, np.array([0]))[1]
        assert mean.valid[0] == (expected is not None)
        if expected is not None:
            assert struct.pack("<d", mean.values[0]) == struct.pack("<d", expected / int(n[0]))
