"""Kernels are compiled at setup, for every kind of stream, and by no stage that comes after it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENDED_S_MAX = 300

SETUP = """
from processors.__main__ import compile_kernels
from processors.plan import load_views
from schemas.settings import Settings
from schemas.stream import load_streams

streams = load_streams(Settings().streams)
compile_kernels(streams, load_views(Settings().views, streams))
"""

STAGES = """
import numpy as np
from strategies import EVERY_TYPE, FLAT, encoded, raw_batch
from test_follow_one_trigger import test_one_trigger_from_the_instrument_to_the_row

from processors.warm_up import warm_up
from schemas.codec import Codec

test_one_trigger_from_the_instrument_to_the_row()
record = {"source": "s", "run": 1, "trigger": 2, "time": 3, "level": None, "count": 1}
codec = Codec(FLAT, {1: FLAT.avro}.__getitem__)
columns, letters = codec.decode(raw_batch([encoded(FLAT.avro, {**record, "instrument": i}) for i in range(600)]))
assert (len(columns), letters, len(codec.instruments)) == (600, [], 600)
warm_up({"flat": FLAT, "every": EVERY_TYPE}, {})  # numbered instruments, one reading a record, values of every type
"""


def in_child(script: str, cache: Path) -> str:
    environ = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=ENDED_S_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def files(cache: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in cache.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_after_setup_no_stage_compiles_anything(tmp_path: Path) -> None:
    said = in_child(SETUP, tmp_path)
    assert said.startswith("compiling kernels, once: ")
    assert len(said.splitlines()) == 1
    compiled = files(tmp_path)
    assert {"read_records", "write_records", "find_values", "judge_in_sequence", "rehash"} <= {
        Path(name).name.split(".")[1].split("-")[0] for name in compiled
    }
    in_child(STAGES, tmp_path)
    assert files(tmp_path) == compiled
