"""From SQL to plans: the shipped views load, what is not supported is refused in a sentence with its place."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processors.expressions import Constant
from processors.plan import GroupColumn, Plan, ViewError, build_plan, load_views
from processors.spans import SpanError, span_us
from schemas.batch import Columns, Vector
from schemas.stream import load_streams

ROOT = Path(__file__).parent.parent
STREAMS = load_streams(ROOT / "schemas" / "streams")
VIEWS = load_views(ROOT / "processors" / "views", STREAMS)
STATISTICS = ("mean", "stddev", "min", "max")
GROUP = "instrument_id, window_start, window_end"


def view(
    select: str = "count(*) AS count",
    source: str = "TUMBLE(bpm, time, INTERVAL '1 second')",
    where: str = "",
    group: str = f"GROUP BY {GROUP}",
    *,
    options: str = "",
    tables: str = "",
) -> str:
    """A view of four lines; line 2 holds the SELECT list, 3 FROM, 4 the rest."""
    return f"CREATE MATERIALIZED VIEW v {options} AS {tables}\nSELECT {GROUP}, {select}\nFROM {source}\n{where} {group}"


def plan_of(*parts: str, **more: str) -> Plan:
    return build_plan(view(*parts, **more), "v.sql", STREAMS)


def readings(**values: list[float | None]) -> Columns:
    """Readings of `bpm` whose amplitudes are given; those not named are 1 V."""
    count = len(next(iter(values.values())))
    index = np.arange(count)
    amplitudes = {}
    for field in STREAMS["bpm"].values:
        numbers = values.get(field.name, [1.0] * count)
        there = np.array([number is not None for number in numbers], np.bool_)
        amplitudes[field.name] = Vector(np.array([number or 0.0 for number in numbers], np.float32), there)
    code = index.astype(np.int32)
    names = [f"BPM.{n}" for n in range(count)]
    return Columns(
        "bpm", 0, index, code, index, 0 * code, index, index, index, code, code % 2, amplitudes, names, ["crate"]
    )


def test_the_shipped_views_load_with_the_columns_that_operators_know() -> None:
    assert list(VIEWS) == ["bpm_1m", "bpm_1s", "bpm_rolling_1m", "doros_1s"]
    quantities = ("top_in", "bot_in", "bot_out", "top_out", "x", "y")
    names = ["count", *(f"{quantity}_{statistic}" for quantity in quantities for statistic in STATISTICS)]
    for name in ("bpm_1s", "bpm_1m", "bpm_rolling_1m"):
        assert [output.name for output in VIEWS[name].outputs] == names
        assert VIEWS[name].group == (GroupColumn("instrument_id", "text", "instrument_id"),)
    positions = ["count", *(f"{plane}_{statistic}" for plane in ("hor", "ver") for statistic in STATISTICS)]
    assert [output.name for output in VIEWS["doros_1s"].outputs] == positions
    assert {plan.lateness_us for plan in VIEWS.values()} == {600_000_000}
    assert {plan.emit_every_us for plan in VIEWS.values()} == {250_000}


def test_panes_are_hops() -> None:
    second, minute = 1_000_000, 60_000_000
    windows = {name: (plan.pane_us, plan.hop_us, plan.size_us) for name, plan in VIEWS.items()}
    assert windows == {
        "bpm_1s": (second, second, second),
        "bpm_1m": (minute, minute, minute),
        "bpm_rolling_1m": (second, second, minute),
        "doros_1s": (second, second, second),
    }


def test_units_and_meanings_come_from_the_stream() -> None:
    outputs = {output.name: (output.pg_type, output.unit, output.meaning) for output in VIEWS["bpm_1s"].outputs}
    assert outputs["count"] == ("bigint", "1", "number of readings")
    assert outputs["top_in_mean"] == ("double precision", "V", "mean of amplitude, top inner button")
    sum_of_all = "NULLIF(top_in + bot_in + bot_out + top_out, 0)"
    x = f"(top_out + bot_out - (top_in + bot_in)) / {sum_of_all}"
    assert outputs["x_max"] == ("double precision", "1", f"greatest of {x}")
    variance = plan_of("variance(top_in) AS v").outputs[0]
    assert (variance.unit, variance.meaning) == ("V^2", "variance of amplitude, top inner button")


def test_positions_are_computed_in_double_precision() -> None:
    amplitudes = {"top_in": [0.1, 1.0], "bot_in": [0.7, None], "bot_out": [0.2, 1.0], "top_out": [0.4, 1.0]}
    evaluated = VIEWS["bpm_1s"].evaluate(readings(**amplitudes), np.arange(2))
    ti, bi, bo, to = (float(np.float32(amplitudes[name][0])) for name in amplitudes)  # type: ignore[arg-type]
    x, y = evaluated.inputs[4:]
    assert x.values[0] == ((to + bo) - (ti + bi)) / (ti + bi + bo + to)
    assert y.values[0] == ((ti + to) - (bi + bo)) / (ti + bi + bo + to)
    assert [vector.valid.tolist() for vector in evaluated.inputs[1:]] == [
        [True, False], [True, True], [True, True], [True, False], [True, False],
    ]  # fmt: skip
    assert (evaluated.rows.tolist(), evaluated.failed) == ([0, 1], 0)


def test_four_dark_buttons_have_no_position_and_are_counted_all_the_same() -> None:
    dark = readings(top_in=[0.0], bot_in=[0.0], bot_out=[0.0], top_out=[0.0])
    evaluated = VIEWS["bpm_1s"].evaluate(dark, np.arange(1))
    assert evaluated.rows.tolist() == [0]
    assert [bool(vector.valid[0]) for vector in evaluated.inputs] == [True] * 4 + [False] * 2


def test_where_filters_in_every_sub_select_and_null_does_not_pass() -> None:
    plan = plan_of(
        "max(v) AS v",
        "TUMBLE(good, time, INTERVAL '1 second')",
        "WHERE v < 8",
        tables="WITH good AS (SELECT instrument_id, time, top_in AS v FROM bpm WHERE top_in > 2)",
    )
    columns = readings(top_in=[1.0, 3.0, None, 5.0, 7.0, 9.0])
    evaluated = plan.evaluate(columns, np.array([0, 1, 2, 4, 5]))
    assert evaluated.rows.tolist() == [1, 4]
    assert evaluated.inputs[0].values.tolist() == [3.0, 7.0]
    assert evaluated.failed == 0


def test_a_reading_on_which_an_expression_fails_is_left_out_and_counted() -> None:
    plan = plan_of("avg(1::real / top_in) AS a, avg(bot_in) AS b", where="WHERE bot_in IS NULL OR 1::real / bot_in > 0")
    columns = readings(top_in=[1.0, 0.0, 2.0, 4.0, None], bot_in=[1.0, 1.0, 0.0, None, 1.0])
    evaluated = plan.evaluate(columns, np.arange(5))
    assert evaluated.rows.tolist() == [0, 3, 4]
    assert evaluated.failed == 2
    assert [vector.valid.tolist() for vector in evaluated.inputs] == [[True, True, False], [True, False, True]]


def test_what_a_condition_filters_out_cannot_fail_later() -> None:
    plan = plan_of(where="WHERE top_in <> 0 AND 1::real / top_in > 0")
    evaluated = plan.evaluate(readings(top_in=[0.0, None, 1.0]), np.arange(3))
    assert (evaluated.rows.tolist(), evaluated.failed) == ([2], 0)


def test_no_readings_are_no_trouble() -> None:
    for plan in VIEWS.values():
        if plan.stream == "bpm":
            evaluated = plan.evaluate(readings(top_in=[]), np.arange(0))
            assert len(evaluated.rows) == 0
            assert [len(vector.values) for vector in evaluated.inputs] == [0] * 6


def test_equal_arguments_are_evaluated_and_kept_once() -> None:
    plan = plan_of("avg(top_in) AS a, stddev(top_in) AS s, min(bpm.top_in) AS m, count(*) AS c")
    assert len(plan.arguments) == 1
    assert plan.layout.words == 6  # sum; n, mean, squares; min; count(*)


def test_the_fingerprint_tells_definitions_apart_and_not_their_writing() -> None:
    one = plan_of("avg(top_in) AS a")
    same = view("avg( TOP_IN ) AS a -- a comment", options="WITH (emit_every = '1 s', generation = 2)")
    assert build_plan(same, "other.sql", STREAMS).fingerprint == one.fingerprint
    through = "WITH t AS (SELECT instrument_id, time, top_in AS u FROM bpm)"
    assert plan_of("avg(u) AS a", "TUMBLE(t, time, INTERVAL '1000 ms')", tables=through).fingerprint == one.fingerprint
    others = [
        plan_of("avg(top_in) AS b"),
        plan_of("avg(bot_in) AS a"),
        plan_of("avg(top_in::double precision) AS a"),
        plan_of("sum(top_in) AS a"),
        plan_of("avg(top_in) AS a", where="WHERE top_in > 0"),
        plan_of("avg(top_in) AS a", "TUMBLE(bpm, time, INTERVAL '2 seconds')"),
        plan_of("avg(top_in) AS a", "HOP(bpm, time, INTERVAL '1 second', INTERVAL '2 seconds')"),
        plan_of("avg(top_in) AS a", options="WITH (lateness = '1 minute')"),
    ]
    assert len({plan.fingerprint for plan in [one, *others]}) == 1 + len(others)


def test_options_are_taken() -> None:
    plan = plan_of(options="WITH (lateness = '1 minute 30 seconds', emit_every = '20 ms', generation = 7)")
    assert (plan.lateness_us, plan.emit_every_us, plan.generation) == (90_000_000, 20_000, 7)


def test_forms_that_mean_the_same_are_taken() -> None:
    for source in (
        "TUMBLE((SELECT instrument_id, time FROM bpm), time, INTERVAL '1 second') AS w",
        "TUMBLE(bpm, bpm.time, '00:00:01'::interval)",
        "TUMBLE(bpm, time, CAST('1 s' AS interval))",
        "HOP(bpm, time, INTERVAL '1 second', INTERVAL '1 second')",
    ):
        plan = plan_of(source=source)
        assert (plan.pane_us, plan.size_us) == (1_000_000, 1_000_000)
    sub_select = "WITH t AS (SELECT a.instrument_id, a.time FROM (SELECT * , 1 AS b FROM bpm) AS a)"
    with pytest.raises(ViewError, match=r"\* is not supported"):
        plan_of(source="TUMBLE(t, time, INTERVAL '1 second')", tables=sub_select)
    plan_of(
        source="TUMBLE(t, time, INTERVAL '1 second')", tables=sub_select.replace("* , 1 AS b", "instrument_id, time")
    )


REFUSED = [  # the statement, where, what its author is told
    ("", "1:1", "the file holds no statements; write one: CREATE MATERIALIZED VIEW"),
    ("-- nothing yet\nSELECT 1", "2:1", "creates no materialized view; write CREATE MATERIALIZED VIEW"),
    ("CREATE MATERIALIZED VIEW v AS SELEC 1", "1:31", 'syntax error at or near "SELEC"; write CREATE'),
    (view() + ";\nSELECT 2", "5:1", "holds 2 statements"),
    (view().replace(" v ", " bpm "), "1:26", "the view has the name of the stream bpm; give it another"),
    (view().replace(" v ", ' "V" '), "1:26", "'V' is no name of a view; use a-z"),
    (view().replace(" v ", " IF NOT EXISTS v "), "1:26", "IF NOT EXISTS is not supported; leave it out"),
    (view() + " WITH NO DATA", "4:56", "WITH NO DATA is not supported; leave it out"),
    (view(source="bpm"), "3:6", "FROM is without a window; write TUMBLE("),
    (view(source="bpm JOIN doros ON true"), "3:10", "JOIN is not supported; a view reads one stream"),
    (view(source="bpm, doros"), "3:1", "more than one relation is not supported; a view reads one stream"),
    (view(source="SESSION(bpm, time, INTERVAL '1 s')"), "3:6", "SESSION is not supported; session windows"),
    (view(source="TUMBEL(bpm, time, INTERVAL '1 s')"), "3:6", "tumbel in FROM is not supported; write TUMBLE("),
    (view(source="TUMBLE(bmp, time, INTERVAL '1 s')"), "3:13", "unknown stream bmp; did you mean bpm?"),
    (view(source="TUMBLE(bpm, tme, INTERVAL '1 s')"), "3:18", "unknown column tme; did you mean time?"),
    (view(source="TUMBLE(bpm, run, INTERVAL '1 s')"), "3:18", "the stream's time, not run; write time"),
    (view(source="TUMBLE(bpm, time)"), "3:6", "TUMBLE does not take 2 arguments; write TUMBLE("),
    (view(source="TUMBLE(bpm, time, INTERVAL '1 month')"), "3:33", "month has no fixed length, or is unknown; write"),
    (view(source="TUMBLE(bpm, time, INTERVAL '1 us')"), "3:33", "1 µs is too short; use at least 1000"),
    (
        view(source="HOP(bpm, time, INTERVAL '7 s', INTERVAL '1 minute')"),
        "3:46",
        "the size '1 minute' is no multiple of the hop '7 s'; write HOP(stream, time, hop, size)",
    ),
    (view(source="HOP(bpm, time, INTERVAL '1 ms', INTERVAL '1 h')"), "3:30", "3600000 hops is too long; use at most"),
    (view(group=f"GROUP BY {GROUP} HAVING count(*) > 1"), "4:51", "HAVING is not supported; leave it out and filter"),
    (view(group=f"GROUP BY {GROUP} UNION SELECT 1"), "4:51", "UNION is not supported; write one view for each SELECT"),
    (view(group=f"GROUP BY {GROUP} ORDER BY 1"), "4:51", "ORDER BY is not supported; leave it out and order"),
    (view().replace("SELECT", "SELECT DISTINCT"), "2:8", "DISTINCT is not supported; leave it out"),
    (view("avg(top_in) OVER () AS m"), "2:49", "avg(…) OVER is not supported; take the windows from TUMBLE or HOP"),
    (view("count(DISTINCT top_in) AS m"), "2:49", "count(DISTINCT …) is not supported; leave DISTINCT out"),
    (view("count(*) FILTER (WHERE top_in > 0) AS m"), "2:49", "FILTER is not supported; filter with WHERE"),
    (view("avg(top_im) AS m"), "2:53", "unknown column top_im; did you mean top_in or top_out"),
    (view("avg(doros.hor_v1) AS m"), "2:53", "unknown relation doros; there are bpm"),
    (view("median(top_in) AS m"), "2:49", "median is no aggregate of views; use one of count, sum, avg"),
    (view("avg(cbrt(top_in)) AS m"), "2:53", "unknown function cbrt; there are abs, sqrt, nullif"),
    (view("avg(status) AS m"), "2:49", "avg(integer) is not supported; cast the argument to double precision"),
    (view("avg(top_in + source) AS m"), "2:60", "the operator + does not take real and text; cast one side"),
    (view("avg(status * 1.5) AS m"), "2:60", "the operator * does not take integer and numeric; cast one side"),
    (view("avg(top_in::numeric) AS m"), "2:59", "a cast to numeric is not supported; cast to one of real"),
    (view("avg(top_in + random()) AS m"), "2:62", "random() is not supported; a view is a function of the record"),
    (view("max(top_in) - min(top_in) AS m"), "2:61", "is no aggregate is not supported; write the aggregate alone"),
    (view("avg(avg(top_in)) AS m"), "2:53", "the aggregate avg cannot stand here"),
    (view("top_in"), "2:49", "top_in stands neither in GROUP BY nor in an aggregate; write avg(top_in)"),
    (view("*"), "2:49", "* is not supported; name the columns"),
    (view("count(*) AS closed"), "2:49", "the column name closed is taken by the engine; give it another name"),
    (view("count(*) AS c, avg(top_in) AS c"), "2:64", "there is another column c; give it another name with AS"),
    (view("avg(coalesce(top_in, 0)) AS m"), "2:53", "COALESCE is not supported; leave it out"),
    (view("avg(" + " + ".join(["top_in"] * 200) + ") AS m"), "1:1", "nested too deeply; name parts of it in a WITH"),
    (view(where="WHERE time < now()"), "4:14", "now() is not supported; a view is a function of the record"),
    (view(where="WHERE time < current_timestamp"), "4:14", "CURRENT_TIMESTAMP, CURRENT_USER or the like is not"),
    (view(where="WHERE top_in"), "4:7", "WHERE wants boolean, not real; write a condition"),
    (view(where="WHERE status = 'bad'"), "4:14", "'bad' is no integer; write a value that integer can hold"),
    (view(where="WHERE status IN (0, 1)"), "4:14", "IN is not supported; write value = first OR value = second"),
    (view(where="WHERE instrument_id < 'a'"), "4:21", "the order of texts, <, is not supported; compare with ="),
    (view(where="WHERE EXISTS (SELECT 1)"), "4:7", "a sub-query in an expression is not supported"),
    (view(where="WHERE CASE WHEN true THEN true END"), "4:7", "CASE is not supported; filter with WHERE"),
    (view(group=""), "2:8", "GROUP BY is without the instrument; write GROUP BY instrument_id, window_start"),
    (view(group="GROUP BY instrument_id"), "4:11", "GROUP BY is without the window; write GROUP BY"),
    (view(group=f"GROUP BY status, {GROUP}"), "4:11", "GROUP BY status is not supported; write GROUP BY instrument_id"),
    (view(group="GROUP BY ROLLUP(instrument_id)"), "4:11", "GROUPING SETS, ROLLUP or CUBE is not supported"),
    (view(options="WITH (latenes = '1 s')"), "1:34", "unknown option latenes; did you mean lateness?"),
    (view(options="WITH (lateness = '600')"), "1:34", "lateness: '600' is no span of time; write lateness ="),
    (view(options="WITH (generation = 0)"), "1:34", "generation cannot be 0; use 1 to 2147483647"),
    (view(tables="WITH a AS (SELECT top_in + 1 FROM bpm)"), "1:50", "the column has no name; add AS and a name"),
    (view(tables="WITH a AS (SELECT count(*) AS n FROM bpm)"), "1:50", "the aggregate count cannot stand here"),
    (view(tables="WITH RECURSIVE a AS (SELECT run FROM bpm)"), "1:37", "WITH RECURSIVE is not supported"),
    (view("avg(top_im) AS m", tables="/* größer als 1 µs */"), "2:53", "unknown column top_im"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "where", "told"), REFUSED)
def test_what_is_not_supported_is_refused_in_one_line_with_place_and_remedy(sql: str, where: str, told: str) -> None:
    with pytest.raises(ViewError) as refusal:
        build_plan(sql, "views/v.sql", STREAMS)
    message = str(refusal.value)
    assert message.startswith(f"views/v.sql:{where}: ")
    assert told in message
    assert "; " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("constant", "kind", "value"),
    [
        ("7", "integer", 7),
        ("2147483648", "bigint", 2**31),
        ("000000000002147483648", "bigint", 2**31),
        ("0xFFFFFFFFF", "bigint", 2**36 - 1),
        ("1_000", "integer", 1000),
        ("2.5::integer", "integer", 3),
        ("1e2::real", "real", 100.0),
        ("'-Infinity'::real", "real", float("-inf")),
        ("9223372036854775808::double precision", "double precision", 2.0**63),
    ],
)
def test_constants_are_read_as_postgresql_reads_them(constant: str, kind: str, value: float) -> None:
    assert plan_of(f"count({constant}) AS c").arguments == (Constant(value, kind),)


@pytest.mark.parametrize(
    "constant", ["1e39::real", "1e-50::real", "1e400::real", "3e9::integer", "'x'::real", "9" * 5000]
)
def test_constants_out_of_range_are_refused(constant: str) -> None:
    with pytest.raises(ViewError, match=r"v\.sql:2:\d+: .{,160}; "):
        plan_of(f"avg(top_in + status + {constant}) AS c")


def test_two_files_with_one_view_are_refused(tmp_path: Path) -> None:
    for name in ("a.sql", "b.sql"):
        (tmp_path / name).write_text(view())
    with pytest.raises(ViewError, match=r"b\.sql: the view v is also that of another file here; rename one"):
        load_views(tmp_path, STREAMS)


def test_a_file_that_is_no_text_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_bytes(b"\xff")
    with pytest.raises(ViewError, match=r"a\.sql: byte 0 is not UTF-8"):
        load_views(tmp_path, STREAMS)
    with pytest.raises(ViewError, match="is no folder"):
        load_views(tmp_path / "nowhere", STREAMS)


@pytest.mark.parametrize(
    ("text", "us"),
    [("1 second", 1_000_000), ("1.5s", 1_500_000), ("1 day 2 hours", 93_600_000_000), ("00:01:30.25", 90_250_000)],
)
def test_spans_of_time(text: str, us: int) -> None:
    assert span_us(text) == us


@pytest.mark.parametrize("text", ["", "second", "-1 s", "1 fortnight", "1 year", "0.1 us", "9999999999 days", "1 s 2"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(SpanError):
        span_us(text)


def test_loading_the_views_compiles_nothing() -> None:
    """Kernels are compiled, or taken from the cache, when the first readings come: a check of SQL stays quick."""
    program = """
from pathlib import Path
from processors.plan import load_views
from processors.aggregates import AGGREGATES
from schemas.stream import load_streams
plans = load_views(Path("processors/views"), load_streams(Path("schemas/streams")))
kernels = [k for a in AGGREGATES.values() for s in a.states for k in (a.finish, s.init, s.absorb, s.fold)]
print(len(plans), sum(len(kernel.signatures) for kernel in kernels))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "0"]


def absorbed(plan: Plan, columns: Columns) -> list[Any]:
    """What the view shows of all these readings as one window of one instrument."""
    table = np.empty((1, plan.layout.words), np.int64)
    plan.layout.init(table, np.arange(1))
    evaluated = plan.evaluate(columns, np.arange(len(columns)))
    plan.layout.absorb(table, np.zeros(len(evaluated.rows), np.int64), evaluated.inputs)
    return [v.values[0].item() if v.valid[0] else None for v in plan.layout.finish(table, np.arange(1))]


def test_one_window_from_readings_to_columns() -> None:
    columns = readings(top_in=[1.0, 3.0, None], bot_in=[1.0, 1.0, 1.0], bot_out=[1.0] * 3, top_out=[1.0, 1.0, 1.0])
    names = [output.name for output in VIEWS["bpm_1s"].outputs]
    shown = dict(zip(names, absorbed(VIEWS["bpm_1s"], columns), strict=True))
    assert shown["count"] == 3
    assert [shown[f"top_in_{statistic}"] for statistic in STATISTICS] == [2.0, 2**0.5, 1.0, 3.0]
    assert [shown[f"x_{statistic}"] for statistic in ("mean", "min", "max")] == [-1 / 6, -1 / 3, 0.0]
    assert [shown[f"y_{statistic}"] for statistic in ("mean", "min", "max")] == [1 / 6, 0.0, 1 / 3]
