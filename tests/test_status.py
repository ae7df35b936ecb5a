"""A stage's status file is whole at every moment, and gone or broken ones are not an error."""

import json
import threading
import time
from pathlib import Path

import pytest

from schemas.status import Status, read_status


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    status = Status(stage="raw-sink", records=3, waiting_for="database", freshness_s=0.25, counters={"letters": 1})
    before = time.time()
    status.write(tmp_path / "raw-sink.json")
    found = read_status(tmp_path / "raw-sink.json")
    assert found == status
    assert found is not None
    assert before <= found.updated <= time.time()


def test_without_a_path_nothing_is_written() -> None:
    Status(stage="producer").write(None)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"stage": "a", "unknown": 1}', "{}"])
def test_a_file_that_is_no_status_reads_as_none_yet(tmp_path: Path, text: str) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    path.write_text(text)
    assert read_status(path) is None


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = Status(stage="processors", counters={f"counter_{n}": n for n in range(500)})
    status.write(path)
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            status.write(path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert len(json.loads(path.read_text())["counters"]) == 500
    finally:
        stopped.set()
        writer.join()


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    Status(stage="view-sink").write(path)
    assert list(tmp_path.iterdir()) == [path]
