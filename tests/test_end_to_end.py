"""From the producer's command to SQL, on real servers: every row equals what SQL makes of the topic itself."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2.extras
import pytest
from pipeline_runner import Pipeline
from topic_oracle import QUANTITIES, SECOND_US, TopicOracle, schema_id_of

from schemas.settings import Settings

pytestmark = pytest.mark.stack

BPM_SCHEMA = Path(__file__).parent.parent / "schemas" / "streams" / "bpm.avsc"
LATENESS_US = 600 * SECOND_US
FAULTS = [
    "--grid", "--duplicates=0.02", "--disorder=0.02", "--late=0.01", "--late-by=4s", "--missing=0.01",
    "--damaged=0.005", "--dropouts=0.01", "--stuck=0.005", "--restarts=0.001",
]  # fmt: skip
SAMPLED = [f"bpm{number:03}" for number in range(1, 121, 17)]  # instruments of which rolling deviations are compared


def view_rows(oracle: TopicOracle, view: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of a view by (instrument, start in µs), as an operator reads them."""
    sql = f"SELECT *, (extract(epoch FROM window_start) * 1000000)::bigint AS start_us FROM {view}"
    with oracle.connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
        cursor.execute(sql)
        return {(row["instrument_id"], row["start_us"]): dict(row) for row in cursor.fetchall()}


def differences(expected: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    """Counts, extremes and means of amplitudes exactly; deviations and positions within 1e-12 of the largest value."""
    if (row["count"], row["revision"], row["closed"]) != (expected["count"], expected["count"], expected["closed"]):
        yield f"count {row['count']}/{expected['count']} revision {row['revision']} closed {row['closed']}"
    for quantity in QUANTITIES:
        bound = 1e-12 * (expected[f"{quantity}_largest"] or 0.0)
        for aggregate in ("min", "max", "mean", "stddev"):
            name = f"{quantity}_{aggregate}"
            ours, theirs = row[name], expected[name]
            exact = aggregate in ("min", "max") or (aggregate == "mean" and quantity not in ("x", "y"))
            if ours != theirs and (exact or ours is None or theirs is None or abs(ours - theirs) > bound):
                yield f"{name} {ours!r}/{theirs!r}"


def assert_tables_equal_the_topic(settings: Settings, oracle: TopicOracle) -> None:
    """Raw rows, dead letters, marks and every view row."""
    oracle.load(settings.kafka, "bpm.v1", BPM_SCHEMA, schema_id_of(settings.registry, "bpm.v1-value"))
    assert oracle.value("SELECT count(*) FROM oracle.stored") > 0
    columns = "instrument_id, status, top_in, bot_in, bot_out, top_out"
    time_us = "(extract(epoch FROM time) * 1000000)::bigint"
    raw = f"SELECT kafka_partition, kafka_offset, reading_index, run, trigger_id, {time_us}, {columns} FROM bpm"
    topic = f"SELECT p, o, i, run, trigger_id, time_us, {columns} FROM oracle.stored"
    assert oracle.rows(f"({raw}) EXCEPT ALL ({topic})") == []
    assert oracle.rows(f"({topic}) EXCEPT ALL ({raw})") == []

    letters = "SELECT partition, \"offset\", index FROM dead_letters WHERE stream = 'bpm'"
    dead = "SELECT p, o, -1 FROM oracle.letter UNION ALL SELECT p, o, i FROM oracle.dead"
    assert sorted(oracle.rows(letters)) == sorted(oracle.rows(dead))

    for view, size_us, hop_us in (("bpm_1s", 1, 1), ("bpm_1m", 60, 60), ("bpm_rolling_1m", 60, 1)):
        compare_view(oracle, view, size_us * SECOND_US, hop_us * SECOND_US)


def compare_view(oracle: TopicOracle, view: str, size_us: int, hop_us: int) -> None:
    late = oracle.late(hop_us, LATENESS_US)
    start_us = "(extract(epoch FROM window_start) * 1000000)::bigint"
    marks = oracle.rows(f"SELECT instrument_id, {start_us} FROM dirty_windows WHERE view = %(view)s", view=view)
    left_out = {(i, pane - back) for i, pane in late for back in range(0, size_us, hop_us)}
    assert {(i, int(start)) for i, start in marks} == left_out
    instruments = SAMPLED if hop_us < size_us else None
    expected = oracle.windows(size_us, hop_us, instruments)
    rows = view_rows(oracle, view)
    if instruments:
        rows = {key: row for key, row in rows.items() if key[0] in instruments}
    wrong = [
        (key, found)
        for key, row in expected.items()
        if key not in left_out and (found := list(differences(row, rows[key])) if key in rows else ["missing"])
    ]
    assert wrong[:5] == [], f"{len(wrong)} of {len(expected)} rows of {view} are wrong"
    assert set(rows) - set(expected) - left_out == set()


@pytest.fixture
def pipeline(own_stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    """The stages on the real servers, set up and not yet started."""
    pipeline = Pipeline(own_stack, tmp_path)
    pipeline.setup()
    yield pipeline
    pipeline.stop_all()


def test_two_thousand_triggers_with_every_fault_end_in_the_rows_of_the_oracle(
    own_stack: Any, pipeline: Pipeline
) -> None:
    for stage in ("processors", "raw-sink", "view-sink"):
        pipeline.start(stage)
    pipeline.run_producer(
        "ring", "--instruments=120", "--sources=4", "--rate=0", "--triggers=2000", "--seed=7", *FAULTS
    )
    pipeline.drain(timeout_s=120)
    assert_tables_equal_the_topic(own_stack.settings("owner"), TopicOracle(own_stack.database("owner")))


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled_when_every_stage_is_killed(own_stack: Any, pipeline: Pipeline, seed: int) -> None:
    """SIGKILL of producer, workers and sinks at random moments, several times each."""
    rng = random.Random(seed)
    stages = ["processors", "raw-sink", "view-sink"]
    for stage in stages:
        pipeline.start(stage)
    producer = ["ring", "--instruments=120", "--sources=4", "--rate=50", "--seed=3", *FAULTS]
    pipeline.start("producer", *producer)
    for _ in range(9):
        time.sleep(rng.uniform(1, 4))
        victim = rng.choice([*stages, "producer"])
        pipeline.kill(victim)
        time.sleep(rng.uniform(0, 2))
        pipeline.start(victim, *(producer if victim == "producer" else []))
    time.sleep(3)
    pipeline.stop("producer")
    pipeline.drain(timeout_s=180)
    assert_tables_equal_the_topic(own_stack.settings("owner"), TopicOracle(own_stack.database("owner")))
