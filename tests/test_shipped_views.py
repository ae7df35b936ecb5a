"""The shipped views, run as they stand by PostgreSQL over the same readings, and over measured positions."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

from processors.plan import Plan, load_views
from schemas.batch import Columns, Vector
from schemas.stream import Stream, load_streams

ROOT = Path(__file__).parent.parent
STREAMS = load_streams(ROOT / "schemas" / "streams")
VIEWS = load_views(ROOT / "processors" / "views", STREAMS)
INSTRUMENTS = ["BPM.1", "BPM.2", "BPM.3"]
START_US = 1_700_000_000_000_000 // 60_000_000 * 60_000_000
SECONDS = 130


def generated(stream: Stream, seed: int, count: int = 1500) -> Columns:
    """Readings in the order of arrival, some amplitudes NULL, and some monitors dark."""
    numbers = np.random.default_rng(seed)
    index = np.arange(count)
    dark = numbers.random(count) < 0.02
    values = {}
    for field in stream.values:
        amplitudes = numbers.normal(1.0, 0.2, count).astype(np.float32)
        amplitudes[dark] = 0.0
        values[field.name] = Vector(amplitudes, numbers.random(count) > 0.05)
    time_us = START_US + numbers.integers(0, SECONDS * 1_000_000, count)
    codes, zeros = numbers.integers(0, len(INSTRUMENTS), count).astype(np.int32), np.zeros(count, np.int32)
    return Columns(
        stream.name, 0, index, zeros, index, zeros, index, index, time_us, codes, zeros, values, INSTRUMENTS, ["crate"]
    )


def ours(plan: Plan, columns: Columns) -> dict[tuple[str, int], list[float | None]]:
    """Each window absorbed by itself from all its readings; the sum of panes is another test's subject."""
    rows: dict[tuple[str, int], list[float | None]] = {}
    evaluated = plan.evaluate(columns, np.arange(len(columns)))
    assert evaluated.failed == 0
    panes = columns.time_us[evaluated.rows] // plan.hop_us
    for start in range(int(panes.min()) - plan.size_us // plan.hop_us + 1, int(panes.max()) + 1):
        inside = (panes >= start) & (panes < start + plan.size_us // plan.hop_us)
        codes = columns.instrument[evaluated.rows[inside]].astype(np.int64)
        table = np.empty((len(INSTRUMENTS), plan.layout.words), np.int64)
        plan.layout.init(table, np.arange(len(INSTRUMENTS)))
        plan.layout.absorb(table, codes, [Vector(v.values[inside], v.valid[inside]) for v in evaluated.inputs])
        shown = plan.layout.finish(table, np.arange(len(INSTRUMENTS)))
        for code in np.unique(codes).tolist():
            row = [vector.values[code].item() if vector.valid[code] else None for vector in shown]
            rows[INSTRUMENTS[code], start * plan.hop_us] = row
    return rows


def in_postgresql(sql: str, plan: Plan) -> str:
    """The view's text with its window function written out; nothing else of it is touched."""
    windows = f"""(
      SELECT r.*, w.bound AS window_start, w.bound + {plan.size_us} AS window_end
      FROM (SELECT * FROM \\1) r, LATERAL (
        SELECT (r.time / {plan.hop_us} - n) * {plan.hop_us} AS bound
        FROM generate_series(0, {plan.size_us // plan.hop_us - 1}) n) w) windows"""
    select, replaced = re.subn(r"(?:TUMBLE|HOP)\((\w+), time[^)]*\)", windows, sql)
    assert replaced == 1
    return select[select.index(" AS\n") + 4 :].rstrip().rstrip(";")


@pytest.mark.stack
@pytest.mark.parametrize("plan", VIEWS.values(), ids=lambda plan: plan.name)
def test_postgresql_gives_the_same_rows(stack: Any, plan: Plan) -> None:
    stream = STREAMS[plan.stream]
    columns = generated(stream, seed=random.Random(plan.name).randrange(1000))
    sql = (ROOT / "processors" / "views" / f"{plan.name}.sql").read_text()
    with psycopg2.connect(stack.database("owner")) as connection, connection.cursor() as cursor:
        amplitudes = "".join(f", {field.name} real" for field in stream.values)
        cursor.execute(f"CREATE TEMPORARY TABLE {stream.name} (instrument_id text, time bigint{amplitudes})")
        for i in range(len(columns)):
            vectors = columns.values.values()
            row = [vector.values[i].item() if vector.valid[i] else None for vector in vectors]
            name, time_us = INSTRUMENTS[columns.instrument[i]], columns.time_us[i].item()
            cursor.execute(f"INSERT INTO {stream.name} VALUES (%s, %s{', %s' * len(row)})", (name, time_us, *row))
        cursor.execute(in_postgresql(sql, plan))
        theirs = {
            (name, start): list(row) for name, start, end, *row in cursor.fetchall() if end - start == plan.size_us
        }
    connection.close()
    rows = ours(plan, columns)
    assert rows.keys() == theirs.keys()
    assert len(rows) >= len(INSTRUMENTS) * 3
    for key, row in rows.items():
        for output, value, expected in zip(plan.outputs, row, theirs[key], strict=True):
            if output.name == "count" or output.name.endswith(("_min", "_max")) or expected is None:
                assert value == expected, (key, output.name)
            else:
                assert value == pytest.approx(expected, rel=1e-12, abs=1e-12), (key, output.name)
