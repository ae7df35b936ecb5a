"""Measured LHC data through the running pipeline: the file checks itself, as it carries positions and amplitudes.

STROBE_DOROS_FILE names a measured DOROS file; a file of the same layout that the test makes is always taken.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psycopg2
import pytest
from doros_file import make_doros_file
from pipeline_runner import Pipeline

pytestmark = pytest.mark.stack

SECOND_US = 1_000_000
WINDOWS = 5  # 50,000 turns of 88.9246 µs are 4.45 s, and begin within a second


@pytest.fixture(params=["made", "measured"])
def doros_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "made":
        return make_doros_file(tmp_path / "doros.h5").path
    measured = os.environ.get("STROBE_DOROS_FILE")
    if not measured:
        pytest.skip("STROBE_DOROS_FILE names no measured file")
    return Path(measured)


@pytest.fixture
def pipeline(own_stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(own_stack, tmp_path)
    pipeline.setup()
    for stage in ("processors", "raw-sink", "view-sink"):
        pipeline.start(stage)
    yield pipeline
    pipeline.stop_all()


def test_every_turn_is_stored_and_every_position_is_the_recorded_one(
    own_stack: Any,
    pipeline: Pipeline,
    doros_path: Path,
) -> None:
    pipeline.run_producer("file", str(doros_path), "--stream=doros", "--mapping=lhc-doros", "--pace=max")
    pipeline.drain(timeout_s=120)
    connection = psycopg2.connect(own_stack.database("reader"))
    with h5py.File(doros_path) as file, connection, connection.cursor() as cursor:
        monitors = [name for name in file if name.startswith("LHC.BPM")]
        cursor.execute("SELECT count(*), count(DISTINCT instrument_id) FROM doros")
        assert cursor.fetchone() == (sum(len(file[name]["horPositions"]) for name in monitors), len(monitors))
        cursor.execute("SELECT count(*) FROM doros_1s")
        assert cursor.fetchone() == (WINDOWS * len(monitors),)
        for monitor in monitors:
            check_monitor(cursor, monitor, file[monitor])
    connection.close()


def check_monitor(cursor: Any, monitor: str, recorded: Any) -> None:
    for plane in ("hor", "ver"):
        positions = np.asarray(recorded[f"{plane}Positions"], np.float32)
        cursor.execute(
            f"SELECT {plane}_v1::float8, {plane}_v2::float8, (extract(epoch FROM time) * 1000000)::bigint"
            " FROM doros WHERE instrument_id = %s ORDER BY trigger_id",
            (monitor,),
        )
        first, second, times_us = (np.array(column) for column in zip(*cursor.fetchall(), strict=True))
        assert np.array_equal(((first - second) / (first + second)).astype(np.float32), positions)

        cursor.execute(
            f"SELECT (extract(epoch FROM window_start) * 1000000)::bigint, count,"
            f" {plane}_min, {plane}_max, {plane}_mean"
            " FROM doros_1s WHERE instrument_id = %s",
            (monitor,),
        )
        rows = cursor.fetchall()
        assert len(rows) == WINDOWS
        for start_us, count, least, greatest, mean in rows:
            inside = positions[times_us // SECOND_US * SECOND_US == start_us]
            assert count == len(inside)
            assert (np.float32(least), np.float32(greatest)) == (inside.min(), inside.max())
            assert abs(mean - inside.astype(np.float64).mean()) <= 2**-24 * np.abs(inside).max()
