"""A restore refuses positions that do not fit the logs: going on would lose or double readings in silence."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from model import SECOND_US, JsonCodec, JsonRows, Reading, SetView, raw_batch

from processors.combine import ViewPartition
from processors.combine_restore import CombineRestore
from processors.partial import PartialWorker, SourcePartition, TooManyLogsError
from processors.partial_restore import PartialRestore
from processors.records import MARK, PARTIAL, Checkpoint, LostDataError, Message, Partial, unpack
from schemas.triggers import FormatError

VIEW = SetView("a", SECOND_US, SECOND_US, 600 * SECOND_US)
SOURCE = SourcePartition("s", "id-1", 0, 2, 1 << 60, 2 * SECOND_US)
Logs = dict[tuple[str, int], list[Message]]


def restore(
    committed: tuple[int, str] | None, logs: Logs, *, source: SourcePartition = SOURCE, log: tuple[int, int] = (0, 9)
) -> PartialWorker:
    restore = PartialRestore(source, [VIEW], JsonCodec(), committed, *log)  # type: ignore[list-item]
    ends = {wanted: len(logs.get(wanted, [])) for wanted in restore.wanted()}
    for wanted, end in restore.begin(ends).items():
        for offset, message in enumerate(logs.get(wanted, [])[:end]):
            restore.take(*wanted, offset, message.value)
    return restore.finish(bytes(16))


def after_one_record() -> tuple[Checkpoint, Logs]:
    """What is committed and what is in the logs once a worker has taken in one record."""
    worker, logs = restore(None, {}), Logs()
    reading = Reading(0, "i", 1, 5 * SECOND_US)
    worker.take(raw_batch("s", 0, 0, [(0, json.dumps([reading]).encode())], 1))
    flush = worker.flush()
    assert flush is not None
    for message in flush.messages:
        logs.setdefault((message.topic, message.partition), []).append(message)
        flush.ends[message.topic, message.partition] = len(logs[message.topic, message.partition])
    return worker.acknowledged(flush), logs


def test_a_restored_worker_goes_on_where_its_predecessor_was_safe() -> None:
    checkpoint, logs = after_one_record()
    worker = restore(checkpoint, logs)
    assert (worker.position, worker.newest_us) == (1, 5 * SECOND_US)
    assert len(worker.tables[0]) == 1
    assert worker.flush() is None


def test_a_new_partition_commits_its_beginning_before_anything_else() -> None:
    flush = restore(None, {}).flush()
    assert flush is not None
    assert (flush.messages, flush.checkpoint.position) == ([], 0)


def test_rows_without_a_position_are_refused() -> None:
    _, logs = after_one_record()
    with pytest.raises(LostDataError, match="no committed position"):
        restore(None, logs)


def test_logs_that_end_before_what_was_acknowledged_are_refused() -> None:
    checkpoint, logs = after_one_record()
    for log in list(logs):
        with pytest.raises(LostDataError, match=rf"{log[0]}/{log[1]}: ends at 0, but 1 was acknowledged"):
            restore(checkpoint, {place: records for place, records in logs.items() if place != log})


def test_a_topic_of_another_id_is_refused() -> None:
    checkpoint, logs = after_one_record()
    with pytest.raises(LostDataError, match="created anew"):
        restore(checkpoint, logs, source=SourcePartition("s", "id-2", 0, 2, 1 << 60, 2 * SECOND_US))


@pytest.mark.parametrize("log", [(2, 9), (0, 0)])
def test_a_position_outside_the_log_is_refused(log: tuple[int, int]) -> None:
    checkpoint, logs = after_one_record()
    with pytest.raises(LostDataError, match="lies outside the log"):
        restore(checkpoint, logs, log=log)


def test_a_log_that_was_read_by_nobody_and_has_lost_its_beginning_is_refused() -> None:
    with pytest.raises(LostDataError, match="no position is committed and the log begins at 3"):
        restore(None, {}, log=(3, 9))


@pytest.mark.parametrize("metadata", ["{}", "nonsense", '{"format":99}', "[]"])
def test_metadata_of_an_unknown_format_is_refused(metadata: str) -> None:
    with pytest.raises(FormatError, match="this version cannot read"):
        restore((1, metadata), {})
    part = ViewPartition("a.partials", "id", 0, 1)
    with pytest.raises(FormatError, match="this version cannot read"):
        CombineRestore(part, VIEW, JsonRows(), (1, metadata), 1)  # type: ignore[arg-type]


def test_more_logs_than_a_position_can_speak_for_are_refused() -> None:
    worker = restore(None, {}, source=SourcePartition("s", "id", 0, 900, 1, 1))
    flush = worker.flush()
    assert flush is not None
    flush.ends = {("a.partials", q): 10**9 for q in range(900)}
    with pytest.raises(TooManyLogsError, match="1 views of 900 partitions"):
        worker.acknowledged(flush)


def test_a_view_that_the_position_does_not_know_begins_there_and_marks_what_came_before() -> None:
    checkpoint, logs = after_one_record()
    newer = SetView("a", SECOND_US, SECOND_US, 600 * SECOND_US, generation=2)
    restored = PartialRestore(SOURCE, [newer], JsonCodec(), checkpoint, 0, 9)  # type: ignore[list-item]
    for wanted in restored.wanted():
        for offset, message in enumerate(logs.get(wanted, [])):
            restored.take(*wanted, offset, message.value)
    worker = restored.finish(bytes(16))
    readings = [Reading(1, "i", 2, 5 * SECOND_US + 7), Reading(2, "i", 3, 6 * SECOND_US)]
    worker.take(raw_batch("s", 0, 1, [(1, json.dumps(readings).encode())], 2))
    flush = worker.flush()
    assert flush is not None
    found = [unpack(m.value or b"", "x") for m in flush.messages if m.topic == "a.partials"]
    assert {(r.kind, r.pane) for r in found if isinstance(r, Partial)} == {(MARK, 5), (PARTIAL, 6)}
    again = PartialRestore(SOURCE, [newer], JsonCodec(), worker.acknowledged(flush), 0, 9)  # type: ignore[list-item]
    assert again.finish(bytes(16))._starts_us == [5 * SECOND_US]


def test_a_combiner_s_position_beyond_its_log_is_refused() -> None:
    with pytest.raises(LostDataError, match="beyond the log's end"):
        CombineRestore(ViewPartition("a.partials", "id", 0, 1), VIEW, JsonRows(), (2, ""), 1)  # type: ignore[arg-type]
