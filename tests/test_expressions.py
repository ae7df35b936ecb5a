"""Expressions over columns give what PostgreSQL gives: types, NULL, three-valued logic, NaN, and its errors."""

import itertools
import random
from typing import Any

import numpy as np
import psycopg2
import pytest

from processors.arithmetic import Column
from processors.expressions import Expression, Program, as_doubles
from processors.relations import Relations
from processors.sql import parse_view
from processors.syntax import Place, ViewError
from schemas.batch import Columns, Vector
from schemas.stream import Stream, build_stream

KINDS = {"real": "float", "double precision": "double", "integer": "int", "bigint": "long", "boolean": "boolean"}
COLUMNS = {"r": "real", "s": "real", "d": "double precision", "e": "double precision", "i": "integer", "j": "integer"}
COLUMNS |= {"k": "bigint", "l": "bigint", "p": "boolean", "q": "boolean"}
DTYPES = {
    "real": np.float32,
    "double precision": np.float64,
    "integer": np.int32,
    "bigint": np.int64,
    "boolean": np.bool_,
}
Row = dict[str, Any]


def stream() -> Stream:
    about = {"stream": "numbers", "topic": "numbers.v1"}
    fields: list[dict[str, Any]] = [
        {"name": role, "type": kind, "strobe": {"role": role}}
        for role, kind in (("source", "string"), ("run", "long"), ("trigger", "long"), ("instrument", "string"))
    ]
    fields.append(
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}, "strobe": {"role": "time"}}
    )
    fields.append({"name": "status", "type": "int", "strobe": {"role": "status"}})
    fields += [
        {"name": name, "type": ["null", KINDS[kind]], "strobe": {"role": "value"}} for name, kind in COLUMNS.items()
    ]
    return build_stream({"type": "record", "name": "Numbers", "fields": fields, "strobe": about}, "numbers.avsc")


NUMBERS = stream()


def bound(text: str) -> Expression:
    """The expression as a view's sub-select would compute it."""
    sql = f"CREATE MATERIALIZED VIEW v AS SELECT {text} AS v FROM numbers"
    select = parse_view(sql, "v.sql").query
    return Relations(Place("v.sql", sql), {"numbers": NUMBERS}).select(select).columns["v"]


def columns_of(rows: list[Row]) -> Columns:
    count = np.arange(len(rows))
    values = {}
    for name, kind in COLUMNS.items():
        there = np.array([row.get(name) is not None for row in rows], np.bool_)
        numbers = np.array([row.get(name) or 0 for row in rows], DTYPES[kind])
        values[name] = Vector(numbers, there)
    code, status = count.astype(np.int32) % 2, count.astype(np.int32)
    return Columns(
        "numbers", 0, count, status, count, code, count, count, count, code, status, values, ["one", "two"], ["a", "b"]
    )


def evaluated(text: str, rows: list[Row]) -> tuple[str, list[Any]]:
    """The type, and for each row its value, None for NULL, "failed" for an error."""
    expression, count = bound(text), len(rows)
    (column,) = Program([expression]).run(columns_of(rows), np.arange(count))
    values, valid, failed = (
        np.broadcast_to(part, count)
        for part in (column.values, column.valid, np.False_ if column.failed is None else column.failed)
    )
    shown = [
        "failed" if bad else value if there else None for value, there, bad in zip(values, valid, failed, strict=True)
    ]
    return expression.type, shown


def of(text: str, **row: Any) -> Any:
    return evaluated(text, [row])[1][0]


def test_null_spreads_through_arithmetic() -> None:
    assert of("d + e", d=1.0) is None
    assert of("-d") is None
    assert of("d / e", d=1.0) is None
    assert of("NULLIF(d, e)", d=2.0) == 2.0
    assert of("NULLIF(d, 2)", d=2.0) is None


def test_logic_has_three_values() -> None:
    truth = {True: "true", False: "false", None: "NULL"}
    for left, right in itertools.product(truth, truth):
        both = False if left is False or right is False else None if None in (left, right) else True
        either = True if left is True or right is True else None if None in (left, right) else False
        assert of("p AND q", p=left, q=right) == both
        assert of("p OR q", p=left, q=right) == either
    assert of("NOT p") is None
    assert of("p IS NULL")
    assert not of("p IS NOT NULL")


def test_types_are_those_of_postgresql() -> None:
    kinds = {"r + s": "real", "r + d": "double precision", "r + i": "double precision", "i + j": "integer"}
    kinds |= {"i + k": "bigint", "r * 2.5": "double precision", "d + 1": "double precision", "NULLIF(r, 0.0)": "real"}
    kinds |= {"NULLIF(i, d)": "double precision", "NULLIF(i, k)": "integer", "sqrt(r)": "double precision"}
    assert {text: bound(text).type for text in kinds} == kinds


def test_a_sum_of_reals_is_a_real() -> None:
    assert of("r + s", r=16777216.0, s=1.0) == 16777216.0
    assert of("r::double precision + s", r=16777216.0, s=1.0) == 16777217.0


def test_division_by_zero_fails_the_reading_and_nullif_spares_it() -> None:
    rows = [{"d": 1.0, "e": 0.0}, {"d": 1.0, "e": 2.0}, {"d": 1.0}]
    assert evaluated("d / e", rows)[1] == ["failed", 0.5, None]
    assert evaluated("d / NULLIF(e, 0)", rows)[1] == [None, 0.5, None]
    assert evaluated("e = 0 OR d / e > 0", rows)[1] == [True, True, None]


def test_integers_divide_towards_zero_and_do_not_wrap() -> None:
    assert [of("i / j", i=i, j=j) for i, j in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [3, -3, -3, 3]
    low, high = -(2**31), 2**31 - 1
    assert of("i + 1", i=high) == of("i - 1", i=low) == of("i * 2", i=high) == of("-i", i=low) == "failed"
    assert of("i / j", i=low, j=-1) == of("abs(i)", i=low) == of("k + 1", k=2**63 - 1) == "failed"
    assert of("k * l", k=-(2**63), l=-1) == of("k * l", k=2**62, l=2) == "failed"
    assert of("k * l", k=2**31, l=2**31) == 2**62


def test_nan_equals_itself_and_is_greater_than_any_number() -> None:
    nan, infinite = float("nan"), float("inf")
    assert of("d = e", d=nan, e=nan)
    assert of("d > e", d=nan, e=infinite)
    assert of("d >= e", d=nan, e=nan)
    assert not of("d < e", d=nan, e=1.0)
    assert of("NULLIF(d, e)", d=nan, e=nan) is None


def test_texts_are_compared_with_quoted_ones() -> None:
    rows: list[Row] = [{}, {}, {}]
    assert evaluated("instrument = 'two'", rows)[1] == [False, True, False]
    assert evaluated("instrument <> 'two' AND source IS NOT NULL", rows)[1] == [True, False, True]
    assert evaluated("NULLIF(instrument, 'two')", rows)[1] == ["one", None, "one"]


def test_no_readings_give_no_values() -> None:
    for text in ("r + s", "instrument = 'one'", "1 + 1", "NULL::real", "p AND q"):
        assert evaluated(text, [])[1] == []


def test_what_several_expressions_share_is_computed_once() -> None:
    program = Program([bound("(r + s) / NULLIF(r + s, 0)"), bound("r + s"), bound("r - s")])
    assert len(program._steps) == 9  # r, s, r + s, 0 and its cast, r + s cast (that is compared), NULLIF, /, r - s


def test_doubles_for_aggregates_are_one_per_reading() -> None:
    constant = Column(np.array([2.5], np.float32), np.array([True]))
    assert as_doubles(constant, "real", 3).values.tolist() == [2.5, 2.5, 2.5]
    text = Column(np.array(["a", "b"]), np.array([True, False]))
    assert as_doubles(text, "text", 2).valid.tolist() == [True, False]


FLOATS = [0.0, -0.0, 1.0, -2.5, 0.1, 1e-40, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 16777217.0]
VALUES: dict[str, list[Any]] = {
    "real": FLOATS,
    "double precision": [*FLOATS, 1e308, -1e308, 5e-324, 1e-200, 2147483647.5, -2147483648.5, 9.3e18, 0.5, 1.5, 1e39],
    "integer": [0, 1, -1, 2, -7, 3, 2**31 - 1, -(2**31), 65536],
    "bigint": [0, 1, -1, 2, -7, 2**31, 2**62, 2**63 - 1, -(2**63), 3037000500],
    "boolean": [True, False],
}


def generated_rows(numbers: random.Random, count: int) -> list[Row]:
    return [
        {name: None if numbers.random() < 0.15 else numbers.choice(VALUES[kind]) for name, kind in COLUMNS.items()}
        for _ in range(count)
    ]


def generated_number(numbers: random.Random, depth: int) -> str:
    """Text of a numeric expression. On the left of each operator stands no constant: PostgreSQL would fold it."""
    if depth == 0:
        return numbers.choice([name for name, kind in COLUMNS.items() if kind != "boolean"])
    left = generated_number(numbers, depth - 1)
    kind = numbers.randrange(8)
    if kind < 4:
        constants = ["0", "2", "-3", "2147483648", "2.5::real", "1e-300::double precision", "'NaN'::double precision"]
        right = numbers.choice(constants) if numbers.random() < 0.2 else generated_number(numbers, depth - 1)
        return f"({left} {numbers.choice('+-*/')} {right})"
    if kind == 4:
        return f"NULLIF({left}, {generated_number(numbers, depth - 1)})"
    if kind == 5:
        return f"({left})::{numbers.choice(list(VALUES)[:4])}"
    return f"{numbers.choice(['-', 'abs', 'sqrt'])}({left})"


def generated_condition(numbers: random.Random, depth: int) -> str:
    kind = numbers.randrange(6)
    if depth == 0 or kind == 0:
        return numbers.choice(["p", "q"])
    if kind == 1:
        return f"({generated_condition(numbers, depth - 1)} AND {generated_condition(numbers, depth - 1)})"
    if kind == 2:
        return f"({generated_condition(numbers, depth - 1)} OR {generated_condition(numbers, depth - 1)})"
    if kind == 3:
        return f"(NOT {generated_condition(numbers, depth - 1)})"
    if kind == 4:
        return f"({generated_number(numbers, depth - 1)} IS {numbers.choice(['', 'NOT '])}NULL)"
    operator = numbers.choice(["=", "<>", "<", "<=", ">", ">="])
    return f"({generated_number(numbers, depth - 1)} {operator} {generated_number(numbers, depth - 1)})"


THEIRS = """
CREATE FUNCTION pg_temp.computed(expression text, row_number int, OUT kind text, OUT value text) AS $$
BEGIN
  EXECUTE format('SELECT pg_typeof(%s)::text, (%s)::text FROM numbers WHERE id = %s',
                 expression, expression, row_number) INTO kind, value;
EXCEPTION WHEN numeric_value_out_of_range OR division_by_zero OR invalid_argument_for_power_function THEN
  value := 'failed';
END $$ LANGUAGE plpgsql
"""


def agrees(kind: str, ours: Any, theirs: str | None) -> bool:
    if ours is None or theirs is None or theirs == "failed" or isinstance(ours, str):
        return ours is theirs or ours == theirs
    if kind == "boolean":
        return bool(ours) == (theirs == "true")
    expected = DTYPES[kind](theirs)  # PostgreSQL writes floats so that they are read back exactly
    if np.isnan(expected):
        return bool(np.isnan(ours))
    return bool(ours == expected and np.signbit(ours) == np.signbit(expected))


@pytest.mark.stack
@pytest.mark.parametrize("seed", range(4))
def test_postgresql_computes_the_same(stack: Any, seed: int) -> None:
    numbers = random.Random(seed)
    rows = generated_rows(numbers, 25)
    texts = [generated_number(numbers, 1 + n % 3) for n in range(120)]
    texts += [generated_condition(numbers, 1 + n % 3) for n in range(60)]
    compared = fails = 0
    with psycopg2.connect(stack.database("owner")) as connection, connection.cursor() as cursor:
        cursor.execute(THEIRS)
        cursor.execute(f"CREATE TEMPORARY TABLE numbers (id int, {', '.join(map(' '.join, COLUMNS.items()))})")
        for number, row in enumerate(rows):
            cursor.execute(
                f"INSERT INTO numbers VALUES (%s{', %s' * len(COLUMNS)})", (number, *(row[name] for name in COLUMNS))
            )
        for text in texts:
            try:
                kind, ours = evaluated(text, rows)
            except ViewError as error:
                assert "numeric" in str(error), (text, error)  # noqa: PT017 - what we do not compute in
                continue
            cursor.execute(
                "SELECT c.kind, c.value FROM generate_series(0, %s) n, pg_temp.computed(%s, n) c ORDER BY n",
                (len(rows) - 1, text),
            )
            for row, value, (their_kind, theirs) in zip(rows, ours, cursor.fetchall(), strict=True):
                assert their_kind in (kind, None), (text, kind, their_kind)
                assert agrees(kind, value, theirs), (text, row, value, theirs)
                compared += 1
                fails += theirs == "failed"
    connection.close()
    assert compared > 4000
    assert fails > 200
