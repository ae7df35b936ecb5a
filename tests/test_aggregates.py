"""Each aggregate against an independent computation, and against PostgreSQL itself."""

import math
import random
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import psycopg2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.aggregates import AGGREGATES
from processors.states import StateLayout
from schemas.batch import Int64s, Vector

NAMES = list(AGGREGATES)
FINITE = st.lists(st.none() | st.floats(-1e9, 1e9), max_size=30)
GRID = st.lists(st.none() | st.integers(-(2**20), 2**20).map(lambda n: n / 4096), max_size=60)  # multiples of 2^-12
ANY = st.lists(st.none() | st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]), max_size=20)
Values = list[float | None]


def absorbed(layout: StateLayout, *groups: Values) -> Int64s:
    """A table with one row for each group."""
    table = np.empty((len(groups), layout.words), np.int64)
    layout.init(table, np.arange(len(groups)))
    for row, values in enumerate(groups):
        there = np.array([value is not None for value in values], np.bool_)
        numbers = np.array([0.0 if value is None else value for value in values], np.float64)
        layout.absorb(table, np.full(len(values), row), [Vector(numbers, there)])
    return table


def finished(layout: StateLayout, table: Int64s, row: int = 0) -> dict[str, float | None]:
    vectors = layout.finish(table, np.array([row]))
    return {
        name: vector.values[0].item() if vector.valid[0] else None for name, vector in zip(NAMES, vectors, strict=True)
    }


def layout_of_all() -> StateLayout:
    return StateLayout([(aggregate, 0) for aggregate in AGGREGATES.values()], 1)


def aggregate_all(values: Values) -> dict[str, float | None]:
    layout = layout_of_all()
    return finished(layout, absorbed(layout, values))


def same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def test_without_values_all_is_null_but_the_count() -> None:
    for values in ([], [None, None]):
        assert aggregate_all(values) == {name: 0 if name == "count" else None for name in NAMES}


def test_one_value_has_no_deviation() -> None:
    of_one = aggregate_all([None, 4.25])
    deviations = {"stddev", "stddev_samp", "variance", "var_samp"}
    assert of_one == {name: None if name in deviations else 1 if name == "count" else 4.25 for name in NAMES}


def test_an_example() -> None:
    assert aggregate_all([2.0, 4.0, None, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx(
        {
            "count": 8,
            "sum": 40.0,
            "avg": 5.0,
            "min": 2.0,
            "max": 9.0,
            "stddev": math.sqrt(32 / 7),
            "stddev_samp": math.sqrt(32 / 7),
            "variance": 32 / 7,
            "var_samp": 32 / 7,
        }
    )


@given(GRID)
def test_on_a_binary_grid_sums_are_exact_in_any_order(values: Values) -> None:
    there = [value for value in values if value is not None]
    result = aggregate_all(values)
    assert result["count"] == len(there)
    assert result["sum"] == (math.fsum(there) if there else None)
    assert result["avg"] == (math.fsum(there) / len(there) if there else None)
    assert aggregate_all(values[::-1])["sum"] == result["sum"]


@given(FINITE)
def test_sums_and_deviations_stay_within_their_bounds(values: Values) -> None:
    there = [value for value in values if value is not None]
    result, n = aggregate_all(values), len(there)
    if n:
        terms = math.fsum(map(abs, there))
        assert result["sum"] == pytest.approx(math.fsum(there), rel=0, abs=(n - 1) * 2**-53 * terms)
        assert result["min"] == min(there)
        assert result["max"] == max(there)
    if n > 1:
        exact = statistics.variance(map(Fraction, there))
        largest = max(map(abs, there))
        assert result["variance"] == pytest.approx(
            float(exact), rel=1e-12, abs=1e-12 * largest * math.sqrt(float(exact))
        )


def test_a_small_spread_on_a_large_offset_is_not_lost() -> None:
    numbers = random.Random(1)
    values = [1e8 + numbers.gauss(0, 1) for _ in range(10_000)]
    exact = float(statistics.variance(map(Fraction, values)))
    assert aggregate_all(values)["variance"] == pytest.approx(exact, rel=1e-7)  # sum of squares: 0.0


def test_nan_is_the_greatest_value() -> None:
    assert aggregate_all([math.nan, 1.0])["min"] == 1.0
    assert aggregate_all([1.0, math.nan])["min"] == 1.0
    for values in ([math.nan, math.inf], [math.inf, math.nan]):
        assert math.isnan(aggregate_all(values)["max"] or 0.0)
        assert aggregate_all(values)["min"] == math.inf
    assert math.isnan(aggregate_all([math.nan])["min"] or 0.0)


def test_the_sign_of_zero_is_kept() -> None:
    for name in ("sum", "avg", "min", "max"):
        result = aggregate_all([-0.0])[name]
        assert result is not None
        assert math.copysign(1, result) == -1


@given(ANY, ANY)
def test_folded_counts_and_extremes_are_those_of_all_values(left: Values, right: Values) -> None:
    layout = layout_of_all()
    table = absorbed(layout, left, right, left + right)
    layout.fold(table, np.array([0]), table.copy(), np.array([1]))
    folded, direct = finished(layout, table, 0), finished(layout, table, 2)
    assert all(same(folded[name], direct[name]) for name in ("count", "min", "max"))


@given(GRID, GRID)
def test_folded_sums_on_a_binary_grid_are_those_of_all_values(left: Values, right: Values) -> None:
    layout = layout_of_all()
    table = absorbed(layout, left, right, left + right)
    layout.fold(table, np.array([0]), table.copy(), np.array([1]))
    folded, direct = finished(layout, table, 0), finished(layout, table, 2)
    assert (folded["sum"], folded["avg"]) == (direct["sum"], direct["avg"])
    assert (folded["variance"] is None) == (direct["variance"] is None)
    assert folded["variance"] is None or folded["variance"] == pytest.approx(direct["variance"], rel=1e-11, abs=1e-11)


def test_fold_takes_its_operands_as_named() -> None:
    """Chan's formula, term by term: the left operand's mean moves towards the right one's."""
    layout = StateLayout([(AGGREGATES["variance"], 0)], 1)
    table = absorbed(layout, [0.1, 0.7, 0.4], [1e3, 1.3e3])
    floats = table.view(np.float64)
    (left_mean, left_squares), (right_mean, right_squares) = floats[:, 1:].tolist()
    layout.fold(table, np.array([0]), table.copy(), np.array([1]))
    apart = right_mean - left_mean
    assert table[0, 0] == 5
    assert floats[0, 1] == left_mean + apart * (2 / 5)
    assert floats[0, 2] == left_squares + right_squares + apart * apart * (3 * (2 / 5))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan]


def generated(seed: int) -> list[tuple[int, float | None]]:
    """Groups of several kinds: ordinary values, a few with NULL, with special ones, and empty ones."""
    numbers = random.Random(seed)
    rows: list[tuple[int, float | None]] = []
    for group in range(400):
        for _ in range(numbers.choice([1, 2, 3, 10, 30])):
            value: float | None = numbers.gauss(numbers.choice([0, 1e6]), numbers.choice([1e-3, 1.0, 1e9]))
            if group % 4 == 1 and numbers.random() < 0.5:
                value = None
            if group % 4 == 2 and numbers.random() < 0.3:
                value = numbers.choice(SPECIAL[:5] if group % 8 == 2 else SPECIAL)
            rows.append((group, value))
    numbers.shuffle(rows)
    return rows


@pytest.mark.stack
@pytest.mark.parametrize("kind", ["double precision", "real"])
def test_postgresql_computes_the_same(stack: Any, kind: str) -> None:
    rows = generated(seed=7)
    if kind == "real":
        rows = [(g, None if v is None else float(np.float32(v))) for g, v in rows if v is None or not abs(v) >= 1e30]
    else:
        rows = [(g, v) for g, v in rows if v is None or abs(v) != 1e300]  # where PostgreSQL's sums overflow: an error
    layout = layout_of_all()
    groups = sorted({group for group, _ in rows})
    table = absorbed(layout, *([value for other, value in rows if other == group] for group in groups))
    # sum(real) is real in PostgreSQL, ours is always double precision; of the others only how they are shown differs.
    exact = {"sum": "sum(v::double precision)", "min": "min(v)::double precision", "max": "max(v)::double precision"}
    functions = ", ".join(exact.get(name, f"{name}(v)") for name in NAMES)
    with psycopg2.connect(stack.database("owner")) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE readings (i serial, g int, v {kind})")
        for row in rows:
            cursor.execute("INSERT INTO readings (g, v) VALUES (%s, %s)", row)
        # In the order of arrival: then even the rounding of sums is the same.
        cursor.execute(f"SELECT {functions} FROM (SELECT * FROM readings ORDER BY i) r GROUP BY g ORDER BY g")
        theirs = cursor.fetchall()
    assert len(theirs) == len(groups) > 300
    for row, expected in enumerate(theirs):
        ours = finished(layout, table, row)
        for name, value in zip(NAMES, expected, strict=True):
            if name in ("count", "sum", "avg", "min", "max") or value is None or math.isnan(value):
                assert same(ours[name], value), (groups[row], name, ours[name], value)
            else:
                values = [abs(v) for g, v in rows if g == groups[row] and v is not None]
                bound = 1e-12 * max(values) * (max(values) if name.startswith("var") else 1)
                assert ours[name] == pytest.approx(value, rel=1e-12, abs=bound)
    connection.close()
