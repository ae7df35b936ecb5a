"""The state table of a view: shared words, bounds, and the same bits wherever a batch is cut."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.aggregates import AGGREGATES
from processors.states import ALL_READINGS, StateLayout
from schemas.batch import Int64s, Vector

GROUPS = 3
EVERYTHING = [(AGGREGATES["count"], ALL_READINGS), *((aggregate, 0) for aggregate in AGGREGATES.values())]
VALUES = st.one_of(
    st.floats(), st.floats(-10, 10, width=32), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])
)
READINGS = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.none() | VALUES), max_size=40)
Reading = tuple[int, float | None]


def whole_layout() -> StateLayout:
    return StateLayout(EVERYTHING, arguments=1)


def empty_table(layout: StateLayout, rows: int = GROUPS) -> Int64s:
    table = np.full((rows, layout.words), -1, np.int64)
    layout.init(table, np.arange(rows))
    return table


def absorb(layout: StateLayout, table: Int64s, readings: list[Reading]) -> None:
    rows = np.array([row for row, _ in readings], np.int64)
    values = np.array([math.nan if value is None else value for _, value in readings], np.float64)
    layout.absorb(table, rows, [Vector(values, np.array([value is not None for _, value in readings], np.bool_))])


@given(READINGS, st.lists(st.integers(0, 40), max_size=5))
def test_where_a_batch_is_cut_changes_no_bit(readings: list[Reading], cuts: list[int]) -> None:
    layout = whole_layout()
    whole, pieces = empty_table(layout), empty_table(layout)
    absorb(layout, whole, readings)
    edges = [0, *sorted(min(cut, len(readings)) for cut in cuts), len(readings)]
    for start, end in itertools.pairwise(edges):
        absorb(layout, pieces, readings[start:end])
    assert whole.tobytes() == pieces.tobytes()


@given(READINGS)
def test_readings_of_other_groups_change_no_bit(readings: list[Reading]) -> None:
    layout = whole_layout()
    together, alone = empty_table(layout), empty_table(layout)
    absorb(layout, together, readings)
    for group in range(GROUPS):
        absorb(layout, alone, [reading for reading in readings if reading[0] == group])
    assert together.tobytes() == alone.tobytes()


@given(READINGS)
def test_folding_an_empty_state_changes_no_bit_and_into_an_empty_state_copies(readings: list[Reading]) -> None:
    layout = whole_layout()
    table, empty = empty_table(layout), empty_table(layout)
    absorb(layout, table, readings)
    before, rows = table.tobytes(), np.arange(GROUPS)
    layout.fold(table, rows, empty, rows)
    assert table.tobytes() == before
    layout.fold(empty, rows, table, rows)
    assert empty.tobytes() == before


@given(READINGS, READINGS)
def test_fold_is_a_function_of_left_and_right_alone(left: list[Reading], right: list[Reading]) -> None:
    layout = whole_layout()
    one, other = empty_table(layout), empty_table(layout, GROUPS + 2)
    absorb(layout, one, left)
    absorb(layout, other, right)
    untouched = other.tobytes()
    at_once, singly = one.copy(), one.copy()
    layout.fold(at_once, np.array([2, 0, 1]), other, np.array([2, 0, 1]))
    for row in range(GROUPS):
        layout.fold(singly, np.array([row]), other, np.array([row]))
    assert at_once.tobytes() == singly.tobytes()
    assert other.tobytes() == untouched


def test_one_row_may_be_folded_into_several() -> None:
    layout = whole_layout()
    one, other = empty_table(layout), empty_table(layout)
    absorb(layout, other, [(1, 2.5)])
    layout.fold(one, np.array([0, 2]), other, np.array([1, 1]))
    assert layout.finish(one, np.arange(GROUPS))[0].values.tolist() == [1, 0, 1]


def test_equal_states_of_equal_arguments_are_kept_once() -> None:
    mean, spread, least = AGGREGATES["avg"], AGGREGATES["stddev"], AGGREGATES["min"]
    assert StateLayout([(mean, 0), (AGGREGATES["sum"], 0), (AGGREGATES["count"], 0)], 1).words == 2
    assert StateLayout([(mean, 0), (spread, 0), (AGGREGATES["variance"], 0), (least, 0)], 1).words == 5
    assert StateLayout([(mean, 0), (mean, 1)], 2).words == 4


def test_a_count_taken_from_the_moments_does_not_depend_on_the_order_of_columns() -> None:
    names = ["avg", "stddev", "count", "min"]
    table_of = {}
    for order in (names, names[::-1]):
        layout = StateLayout([(AGGREGATES[name], 0) for name in order], 1)
        table = empty_table(layout)
        absorb(layout, table, [(0, 1.0), (0, None), (0, 4.0), (2, 7.0)])
        finished = dict(zip(order, layout.finish(table, np.arange(GROUPS)), strict=True))
        table_of[order[0]] = {name: (finished[name].values.tolist(), finished[name].valid.tolist()) for name in names}
    assert table_of["avg"] == table_of["min"]
    assert table_of["avg"]["count"] == ([2, 0, 1], [True, True, True])


@pytest.mark.parametrize("row", [-1, GROUPS, 2**62])
def test_a_row_outside_the_table_is_refused_before_any_kernel(row: int) -> None:
    layout = whole_layout()
    table = empty_table(layout)
    before, rows, good = table.tobytes(), np.array([0, row]), np.array([0, 1])
    inputs = [Vector(np.ones(2), np.ones(2, np.bool_))]
    with pytest.raises(IndexError):
        layout.init(table, rows)
    with pytest.raises(IndexError):
        layout.absorb(table, rows, inputs)
    with pytest.raises(IndexError):
        layout.fold(table, rows, table.copy(), good)
    with pytest.raises(IndexError):
        layout.fold(table, good, table.copy(), rows)
    with pytest.raises(IndexError):
        layout.finish(table, rows)
    assert table.tobytes() == before


def test_lengths_and_shapes_that_do_not_fit_are_refused() -> None:
    layout = whole_layout()
    table, rows = empty_table(layout), np.arange(2)
    for values, valid in ((3, 2), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match="2 readings"):
            layout.absorb(table, rows, [Vector(np.ones(values), np.ones(valid, np.bool_))])
    with pytest.raises(ValueError, match="0 inputs for 1"):
        layout.absorb(table, rows, [])
    with pytest.raises(ValueError, match="1 rows to fold into 2"):
        layout.fold(table, rows, table.copy(), rows[:1])
    for wrong in (table[:, 1:], table.astype(np.float64), np.asfortranarray(table), table.ravel()):
        with pytest.raises(ValueError, match="state table"):
            layout.init(wrong, rows)  # type: ignore[arg-type]


def test_arrays_of_other_kinds_are_taken_without_compiling_anew() -> None:
    layout = whole_layout()
    table, expected = empty_table(layout), empty_table(layout)
    values = np.array([1.0, 9.0, 2.0, 9.0], np.float32)
    valid = np.frombuffer(b"\1\1", np.bool_)
    compiled = len(AGGREGATES["stddev"].states[0].absorb.signatures)  # type: ignore[attr-defined]
    layout.absorb(table, np.array([0, 1], np.int32), [Vector(values[::2], valid)])
    absorb(layout, expected, [(0, 1.0), (1, 2.0)])
    assert table.tobytes() == expected.tobytes()
    assert len(AGGREGATES["stddev"].states[0].absorb.signatures) <= max(compiled, 1)  # type: ignore[attr-defined]


def test_no_reading_at_all_is_no_trouble() -> None:
    layout = whole_layout()
    table = empty_table(layout)
    before = table.tobytes()
    absorb(layout, table, [])
    layout.fold(table, np.arange(0), table.copy(), np.arange(0))
    assert table.tobytes() == before
    assert [len(vector.values) for vector in layout.finish(table, np.arange(0))] == [0] * len(EVERYTHING)
