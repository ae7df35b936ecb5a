"""What a sink says of itself: lag, rate and freshness by partition; and that trouble in saying so is not trouble."""

import json
from pathlib import Path
from typing import Any

import pytest
from sink_database import fresh_database

from schemas.status import Status
from sinks.__main__ import connect_raw, connect_views
from sinks.health import Progress, Report
from sinks.migrate import load_migrations, migrate
from sinks.timescale import DatabaseAwayError, DatabaseSetupError, connect, connect_patiently, place

PLACE = ("tanks.v1", 0)
NOBODY = "postgresql://strobe_writer:sesame@127.0.0.1:1/strobe"  # a port where nobody listens


def test_rates_are_those_since_the_report_before() -> None:
    report = Report(Status("raw-sink"), None)
    report.progress = {PLACE: Progress(10, 10, 0.25), ("tanks.v1", 1): Progress(0)}
    assert report.rows({PLACE: 14}, 2.0) == [
        (*PLACE, 10, 14, 10, 5.0, 0.25, None),
        ("tanks.v1", 1, 0, 0, 0, 0.0, None, None),
    ]
    report.progress[PLACE].records = 40
    assert report.rows({PLACE: 5}, 1.0)[0] == (*PLACE, 10, 10, 40, 30.0, 0.25, None)
    report.progress[PLACE] = Progress(10, 3)  # taken over again: counts anew
    assert report.rows({}, 1.0)[0][5] == 0


def test_the_status_file_is_written_when_due_and_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    report = Report(Status("raw-sink"), file, {PLACE: Progress(3, 3)})
    report.write(None, {PLACE: 8})
    assert json.loads(file.read_text())["lag"] == 5
    report.write(None, {PLACE: 9})
    assert json.loads(file.read_text())["lag"] == 5, "not due yet"
    report.write(None, {PLACE: 9}, last=True)
    assert json.loads(file.read_text())["lag"] == 6


def test_a_folder_that_is_gone_does_not_stop_the_sink(tmp_path: Path) -> None:
    Report(Status("raw-sink"), tmp_path / "gone" / "status.json").write(None, {})


def test_a_database_that_is_away_is_told_in_one_line_without_the_password() -> None:
    with pytest.raises(DatabaseAwayError, match=r"the database 127\.0\.0\.1:1/strobe does not answer") as refused:
        connect(NOBODY, "test")
    assert "sesame" not in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(DatabaseAwayError, match=r"tried for 0\.1 s\); start it, or set STROBE_DATABASE"):
        connect_patiently(NOBODY, "test", wait_s=0.1)


def test_a_url_that_is_none_is_told_with_an_example() -> None:
    with pytest.raises(DatabaseSetupError, match="STROBE_DATABASE is no database URL"):
        connect("strobe at home", "test")
    assert place("postgresql://u:p@[::1/x") == "the database"


@pytest.mark.stack
def test_a_wrong_password_and_a_missing_database_are_not_waited_for(stack: Any) -> None:
    address = stack.database("writer").split("@")[1]
    for url in (f"postgresql://strobe_writer:sesame@{address}", f"{stack.database('writer')}_of_nobody"):
        with pytest.raises(DatabaseSetupError, match=r"refuses: .*; correct STROBE_DATABASE") as refused:
            connect_patiently(url, "test", wait_s=60)
        assert "sesame" not in str(refused.value)


@pytest.mark.stack
def test_each_partition_has_one_row_that_follows(stack: Any) -> None:
    with fresh_database(stack) as database:
        owner = connect(database.url(), "test", relaxed=False)
        list(migrate(owner, load_migrations(), [], []))
        owner.close()
        writer = connect(database.url("writer"), "test")
        for records in (3, 5):
            report = Report(Status("raw-sink", waiting_for="rain"), None, {PLACE: Progress(records, records, 0.5)})
            report.write(writer, {PLACE: 9})
        columns = "stage, topic, partition, next, log_end, lag, records, freshness_s, waiting_for"
        found = database.rows(f"SELECT {columns} FROM stage_health WHERE age_s < 60", role="reader")
        assert found == [("raw-sink", "tanks.v1", 0, 5, 9, 4, 5, 0.5, "rain")]
        with database.open("superuser") as superuser, superuser.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (writer.info.backend_pid,))
        Report(Status("raw-sink"), None, {PLACE: Progress(6)}).write(writer, {})
        assert writer.closed


@pytest.mark.stack
def test_an_instrument_that_was_seen_in_two_partitions_is_flagged(stack: Any) -> None:
    with fresh_database(stack) as database:
        owner = connect(database.url(), "test", relaxed=False)
        list(migrate(owner, load_migrations(), [], []))
        with owner.cursor() as cursor:
            cursor.execute("INSERT INTO strobe.incarnations VALUES ('tanks', 1, 't', 'x'), ('tanks', 2, 't', 'y')")
            cursor.execute(
                "INSERT INTO strobe.seen SELECT 'tanks', i, p, name, '', now() - interval '9 s', now() - interval '5 s'"
                " FROM (VALUES (1, 3, 'a'), (2, 0, 'a'), (2, 1, 'b'), (2, 2, 'b')) AS v (i, p, name)"
            )
        owner.commit()
        owner.close()
        found = database.rows(
            "SELECT instrument_id, partitions, in_two_partitions, silence_s >= 5, last_time < now()"
            " FROM pipeline_health ORDER BY 1", role="reader",
        )  # fmt: skip
        assert found == [("a", [0], False, True, True), ("b", [1, 2], True, True, True)]


@pytest.mark.stack
def test_only_the_sink_whose_position_moves_with_its_rows_commits_before_they_are_on_disk(stack: Any) -> None:
    for connect_, expected in ((connect_raw, "off"), (connect_views, "on")):
        connection = connect_(stack.database("writer"))
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == (expected,)
        connection.close()
