"""Measured files: every value exact, every time floored, the mapping's mistakes named in one line, memory bounded."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from doros_file import MONITORS, make_doros_file

from producers.file_source import PART_ROWS, FileError, FileSource
from producers.mapping import MappingError, build_mapping, load_mapping
from producers.rows import RowsError, sliced
from schemas.batch import Vector
from schemas.encoder import Outgoing
from schemas.stream import load_stream

STREAMS = Path(__file__).parents[1] / "schemas" / "streams"
BPM = load_stream(STREAMS / "bpm.avsc")
DOROS = load_stream(STREAMS / "doros.avsc")
BPM_FIELDS: dict[str, Any] = {
    "source": {"value": "crate1"},
    "run": {"value": 7},
    "trigger_id": {"column": "shot"},
    "time": {"column": "t", "unit": "s"},
    "instrument_id": {"column": "monitor"},
    "top_in": {"column": "a"},
    "bot_in": {"column": "b"},
}
ROWS = {
    "shot": [1, 1, 2, 2, 3],
    "t": [1727573829.040156, 1727573829.040156, 1727573829.140156, 1727573829.140156, 1727573829.240156],
    "monitor": ["bpm1", "bpm2", "bpm1", "bpm2", "bpm1"],
    "a": [0.1, 0.2, None, 0.4, 0.5],
    "b": [1.5, 2.5, 3.5, 4.5, 5.5],
}


def everything(parts: Iterator[Outgoing]) -> dict[str, list[Any]]:
    """All records as lists, values None where null."""
    gathered: dict[str, list[Any]] = {}
    for part in parts:
        columns = {"source": part.source, "instrument": part.instrument} | {
            name: getattr(part, name) for name in ("run", "trigger", "time_us", "counts", "status")
        }
        for name, column in columns.items():
            gathered.setdefault(name, []).extend(np.asarray(column).tolist())
        for name, vector in part.values.items():
            values = vector.values.astype(object)
            values[~vector.valid] = None
            gathered.setdefault(name, []).extend(values.tolist())
    return gathered


def source(path: Path, kind: str = "csv", **fields: Any) -> FileSource:
    merged = {name: about for name, about in (BPM_FIELDS | fields).items() if about is not None}
    return FileSource(path, BPM, build_mapping({"format": kind, "fields": merged}, "m.toml", BPM))


def write(path: Path, rows: dict[str, Any] = ROWS) -> Path:
    table = pa.table(rows)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=max(2, table.num_rows // 7))
    return path


def test_every_sample_of_a_doros_file_becomes_one_record_of_its_monitor(tmp_path: Path) -> None:
    made = make_doros_file(tmp_path / "doros.h5", turns=9_999)
    read = FileSource(made.path, DOROS, load_mapping("lhc-doros", DOROS))
    assert read.total_rows() == 3 * made.turns
    got = everything(read.records())
    assert len(got["source"]) == len(got["instrument"]) == 3 * made.turns
    assert got["source"] == got["instrument"]
    assert set(got["counts"]) == {1}
    assert (np.diff(got["time_us"]) >= 0).all()
    monitors = np.array(got["instrument"])
    for monitor in MONITORS:
        at = np.flatnonzero(monitors == monitor)
        turns = np.arange(made.turns)
        assert np.array(got["trigger"])[at].tolist() == turns.tolist()
        assert np.array(got["time_us"])[at].tolist() == [
            made.starts_us[monitor] + turn * 889_246 // 10_000 for turn in range(made.turns)
        ]
        assert set(np.array(got["run"])[at].tolist()) == {made.starts_us[monitor]}
        for electrode, name in enumerate(("hor_v1", "hor_v2", "ver_v1", "ver_v2")):
            assert np.array_equal(np.array(got[name], np.float32)[at], made.amplitudes[monitor][electrode])


def test_positions_recomputed_from_what_is_sent_equal_the_recorded_ones(tmp_path: Path) -> None:
    made = make_doros_file(tmp_path / "doros.h5", turns=5000)
    got = everything(FileSource(made.path, DOROS, load_mapping("lhc-doros", DOROS)).records())
    monitors = np.array(got["instrument"])
    for monitor in MONITORS:
        for plane, name in enumerate(("hor", "ver")):
            first, second = (np.array(got[f"{name}_v{number}"])[monitors == monitor] for number in (1, 2))
            assert np.array_equal(
                ((first - second) / (first + second)).astype(np.float32), made.positions[monitor][plane]
            )


def test_monitors_that_start_apart_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    made = make_doros_file(tmp_path / "doros.h5", turns=PART_ROWS * 2 + 5, apart_us=123_457)
    got = everything(FileSource(made.path, DOROS, load_mapping("lhc-doros", DOROS)).records())
    assert len(got["time_us"]) == 3 * made.turns
    assert (np.diff(got["time_us"]) >= 0).all()
    assert len(set(got["run"])) == 3


def test_the_shipped_mapping_says_what_it_assumes() -> None:
    assumption = load_mapping("lhc-doros", DOROS).assumption
    assert assumption is not None
    assert "88.9246" in assumption


def test_the_measured_file_is_read_exactly() -> None:
    path = os.environ.get("STROBE_DOROS_FILE")
    if not path:
        pytest.skip("STROBE_DOROS_FILE does not name the measured file; the made one stands in for it")
    read = FileSource(Path(path), DOROS, load_mapping("lhc-doros", DOROS))
    got = everything(read.records())
    assert len(got["source"]) == 150_000
    assert len({time_us // 1_000_000 for time_us in got["time_us"]}) == 5
    monitors = np.array(got["instrument"])
    with h5py.File(path) as file:
        for monitor in MONITORS:
            for plane in ("hor", "ver"):
                first, second = (np.array(got[f"{plane}_v{number}"])[monitors == monitor] for number in (1, 2))
                recorded = file[monitor][f"{plane}Positions"][:]
                assert np.array_equal(((first - second) / (first + second)).astype(np.float32), recorded)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(turns: int) -> int:
        made = make_doros_file(tmp_path / f"{turns}.h5", turns=turns)
        read = FileSource(made.path, DOROS, load_mapping("lhc-doros", DOROS))
        tracemalloc.start()
        for _ in read.records():
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(100)  # whatever is set up once
    assert peak(PART_ROWS * 16) < 1.5 * peak(PART_ROWS * 4)


@pytest.mark.parametrize("name", ["shots.csv", "shots.parquet"])
def test_rows_of_one_trigger_become_one_record(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    got = everything(source(path, path.suffix[1:]).records())
    assert got["trigger"] == [1, 2, 3]
    assert got["counts"] == [2, 2, 1]
    assert got["time_us"] == [1727573829040156, 1727573829140156, 1727573829240156]
    assert got["instrument"] == ROWS["monitor"]
    assert got["source"] == ["crate1"] * 3
    assert got["run"] == [7] * 3
    assert got["top_in"] == [None if a is None else float(np.float32(a)) for a in ROWS["a"]]
    assert got["bot_in"] == ROWS["b"]
    assert got["top_out"] == [None] * 5
    assert got["status"] == [0] * 5


@pytest.mark.parametrize("name", ["shots.csv", "shots.parquet"])
def test_a_record_that_the_file_s_parts_cut_stays_whole(tmp_path: Path, name: str) -> None:
    count = 3 * 40_000
    rows = {
        "shot": [row // 3 for row in range(count)],
        "t": [1_700_000_000 + row // 3 for row in range(count)],
        "monitor": [f"bpm{row % 3}" for row in range(count)],
        "a": [float(row) for row in range(count)],
        "b": [0.5] * count,
    }
    got = everything(source(write(tmp_path / name, rows), Path(name).suffix[1:]).records())
    assert got["trigger"] == list(range(40_000))
    assert set(got["counts"]) == {3}
    assert got["top_in"] == rows["a"]


def test_date_and_time_columns_need_no_unit_and_are_floored(tmp_path: Path) -> None:
    path = tmp_path / "shots.csv"
    path.write_text(
        "shot,t,monitor,a,b\n1,2024-09-29 01:37:09.040156999,bpm1,1,2\n2,1969-12-31 23:59:59.999999500,bpm1,1,2\n"
    )
    assert everything(source(path, time={"column": "t"}).records())["time_us"] == [1727573829040156, -1]
    stamps = pa.array([1727573829040156999, -500], pa.timestamp("ns", tz="Europe/Zurich"))
    other = write(tmp_path / "shots.parquet", {**{k: v[:2] for k, v in ROWS.items()}, "t": stamps})
    assert everything(source(other, "parquet", time={"column": "t"}).records())["time_us"] == [1727573829040156, -1]


@pytest.mark.parametrize(
    ("unit", "value", "time_us"),
    [
        ("ns", 1727573829040156999, 1727573829040156),
        ("ms", 1727573829040, 1727573829040000),
        ("us", 5, 5),
        ("ns", -1, -1),
    ],
)
def test_whole_numbers_of_any_unit_are_floored_exactly(tmp_path: Path, unit: str, value: int, time_us: int) -> None:
    path = write(tmp_path / "one.parquet", {**{k: v[:1] for k, v in ROWS.items()}, "t": [value]})
    assert everything(source(path, "parquet", time={"column": "t", "unit": unit}).records())["time_us"] == [time_us]


def test_values_given_as_float32_stay_bit_for_bit_also_when_not_finite(tmp_path: Path) -> None:
    values = np.array([np.nan, np.inf, -0.0, 1e-45, 3.4e38], np.float32)
    path = write(tmp_path / "shots.parquet", {**ROWS, "a": values})
    parts = list(source(path, "parquet").records())
    got = np.concatenate([part.values["top_in"].values for part in parts])
    assert got.dtype == np.float32
    assert got.tobytes() == values.tobytes()
    assert all(part.values["top_in"].valid.all() for part in parts)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"top_im": {"column": "a"}}, "top_im is no field of stream bpm; the nearest is top_in"),
        ({"time": None}, "says nothing of time"),
        ({"time": {"column": "t", "value": 1}}, "time: give exactly one of"),
        ({"time": {"colum": "t"}}, "unknown key 'colum'; the nearest is column"),
        ({"time": {"column": "t", "unit": "h"}}, "time: unit='h'; only times have one"),
        ({"top_in": {"column": "a", "unit": "s"}}, "top_in: unit='s'; only times have one"),
        ({"source": {"group": True}}, "source: there are no groups"),
    ],
)
def test_a_mistake_in_a_mapping_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(MappingError) as raised:
        source(Path("none.csv"), **change)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("rows", "fields", "says"),
    [
        (ROWS, {"top_in": {"column": "aa"}}, "has no column aa for top_in; the nearest is a"),
        (ROWS, {"time": {"column": "t"}}, 'time: holds neither date and time nor a number with a unit; say unit = "s"'),
        ({**ROWS, "shot": [1, None, 2, 2, 3]}, {}, "row 1: trigger_id is empty"),
        ({**ROWS, "shot": [1.0, 1.0, 2.5, 2.0, 3.0]}, {}, "row 2: trigger_id=2.5 is no long"),
        (ROWS, {"run": {"scalar": "x"}}, "run: only HDF5 has scalars"),
    ],
)
def test_a_file_that_does_not_fit_its_mapping_is_named(
    tmp_path: Path, rows: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    path = write(tmp_path / "shots.parquet", rows)
    with pytest.raises((FileError, RowsError)) as raised:
        everything(source(path, "parquet", **fields).records())
    assert says in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_a_file_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "not.h5"
    path.write_text("hello")
    for read in (
        FileSource(path, DOROS, load_mapping("lhc-doros", DOROS)),
        source(path, "parquet"),
        source(path, "csv"),
    ):
        with pytest.raises(FileError) as raised:
            everything(read.records())
        assert "\n" not in str(raised.value)


def test_doros_files_without_a_dataset_or_a_monitor_are_refused(tmp_path: Path) -> None:
    made = make_doros_file(tmp_path / "doros.h5", turns=10)
    read = FileSource(made.path, DOROS, load_mapping("lhc-doros", DOROS))
    with h5py.File(made.path, "a") as file:
        del file[MONITORS[1]]["verOrbitRawV2"]
    with pytest.raises(FileError, match="has no one-dimensional dataset verOrbitRawV2 for ver_v2"):
        everything(read.records())
    with h5py.File(made.path, "a") as file:
        for monitor in MONITORS:
            del file[monitor]
    with pytest.raises(FileError, match="has no group"):
        everything(read.records())


def test_an_unknown_mapping_names_the_shipped_ones() -> None:
    with pytest.raises(MappingError, match="lhc-doros"):
        load_mapping("nonsense", DOROS)


def test_a_mapping_for_another_stream_says_which() -> None:
    with pytest.raises(MappingError, match="give --stream doros"):
        load_mapping("lhc-doros", BPM)


def test_an_outgoing_can_be_cut_between_records() -> None:
    whole = Outgoing(
        source=["a", "b", "c"],
        run=np.array([1, 1, 1]),
        trigger=np.array([1, 2, 3]),
        time_us=np.array([10, 20, 30]),
        counts=np.array([2, 0, 1]),
        instrument=["i", "j", "k"],
        status=np.zeros(3, np.int32),
        values={"top_in": Vector(np.array([1.0, 2.0, 3.0], np.float32), np.array([True, False, True]))},
    )
    assert everything(iter([sliced(whole, 0, 1), sliced(whole, 1, 3)])) == everything(iter([whole]))
