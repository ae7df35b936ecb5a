"""Migrations happen once, also when two start at the same time, and tables follow from schemas."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sink_database import Databases, fresh_database, tank_avro, tank_stream

from schemas.settings import Settings
from schemas.stream import Stream, build_stream, load_streams
from sinks import ddl
from sinks.migrate import Migration, load_migrations, migrate
from sinks.tables import View, ViewSchemaError, latest_table, raw_table, view_of, view_table
from sinks.timescale import DatabaseSetupError, connect

WINDOW = {"type": "long", "logicalType": "timestamp-micros"}
VIEW_SCHEMA: dict[str, Any] = {
    "type": "record", "name": "tanks_1s", "doc": "Levels by the second.",
    "strobe": {"view": "tanks_1s", "stream": "tanks", "generation": 1, "fingerprint": "f", "group": ["instrument_id"],
               "pane_us": 1_000_000, "size_us": 1_000_000, "hop_us": 1_000_000, "lateness_us": 600_000_000},
    "fields": [
        {"name": "generation", "type": "int"}, {"name": "revision", "type": "long"},
        {"name": "closed", "type": "boolean"}, {"name": "live", "type": "boolean"},
        {"name": "mark_partition", "type": ["null", "int"]}, {"name": "mark_offset", "type": ["null", "long"]},
        {"name": "window_start", "type": WINDOW}, {"name": "window_end", "type": WINDOW},
        {"name": "instrument_id", "type": "string", "strobe": {"meaning": "the tank"}},
        {"name": "count", "type": "long", "strobe": {"meaning": "readings"}},
        {"name": "level_mean", "type": ["null", "double"], "strobe": {"unit": "m", "meaning": "mean of the level"}},
    ],
}  # fmt: skip


def view_with(*outputs: str, **about: Any) -> View:
    fields = VIEW_SCHEMA["fields"] + [{"name": name, "type": ["null", "double"]} for name in outputs]
    view = view_of(VIEW_SCHEMA | {"fields": fields, "strobe": VIEW_SCHEMA["strobe"] | about}, "tanks_1s-value")
    assert view is not None
    return view


@pytest.fixture
def database(stack: Any) -> Iterator[Databases]:
    with fresh_database(stack) as databases:
        yield databases


def run(database: Databases, *streams: Stream, views: tuple[View, ...] = (), role: str = "owner") -> list[str]:
    connection = connect(database.url(role), "test", relaxed=False)
    try:
        return list(migrate(connection, load_migrations(), streams, views))
    finally:
        connection.close()


def columns(database: Databases, table: str) -> list[str]:
    found = database.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position", table
    )
    return [name for (name,) in found]


def test_numbers_of_files_have_no_gap(tmp_path: Path) -> None:
    for name in ("001_a.sql", "003_c.sql"):
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(DatabaseSetupError, match=r"003_c\.sql: number 2 was expected"):
        load_migrations(tmp_path)


def test_a_schema_that_is_not_a_views_is_none_and_a_crooked_one_is_told() -> None:
    assert view_of(tank_avro(), "tanks.v1-value") is None
    crooked = {name: value for name, value in VIEW_SCHEMA["strobe"].items() if name != "hop_us"}
    with pytest.raises(ViewSchemaError, match="subject s: the schema of a view lacks or misstates 'hop_us'"):
        view_of(VIEW_SCHEMA | {"strobe": crooked}, "s")


def test_names_that_are_words_of_sql_and_meanings_with_quotes_are_written_safely() -> None:
    table = replace(raw_table(tank_stream()), name='order"s', comment="it's \\ odd")
    assert ddl.create(table)[0].startswith('CREATE TABLE "public"."order""s" ("time" timestamp with time zone NOT NULL')
    assert ddl.comments(table)[0].endswith("IS E'it''s \\\\ odd'")


@pytest.mark.stack
def test_a_second_time_there_is_nothing_to_do(database: Databases) -> None:
    streams = load_streams(Settings().streams).values()
    first = run(database, *streams, views=(view_with(),))
    assert {"applied 001_positions.sql", "made public.bpm", "made public.bpm_latest"} <= set(first)
    assert run(database, *streams, views=(view_with(),)) == []


@pytest.mark.stack
def test_two_at_once_do_everything_once(database: Databases) -> None:
    lines: list[str] = []
    threads = [threading.Thread(target=lambda: lines.extend(run(database, tank_stream()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [f"applied {migration.name}" for migration in load_migrations()]
    assert sorted(lines) == sorted([*expected, "made public.tanks", "made public.tanks_latest"])


@pytest.mark.stack
def test_a_changed_file_is_refused_with_one_line(database: Databases) -> None:
    connection = connect(database.url(), "test", relaxed=False)
    list(migrate(connection, [Migration(1, "001_a.sql", "CREATE TABLE a ()")], [], []))
    with pytest.raises(DatabaseSetupError, match=r"^001_b\.sql was changed after it was applied \(as 001_a\.sql\)"):
        list(migrate(connection, [Migration(1, "001_b.sql", "CREATE TABLE b ()")], [], []))
    connection.close()


@pytest.mark.stack
def test_a_file_that_fails_leaves_nothing_and_lets_the_next_one_in(database: Databases) -> None:
    connection = connect(database.url(), "test", relaxed=False)
    broken = Migration(1, "001_a.sql", "CREATE TABLE a (); SELECT 1 / 0")
    with pytest.raises(psycopg2.errors.DivisionByZero):
        list(migrate(connection, [broken], [], []))
    assert database.value("SELECT to_regclass('a')") is None
    assert list(migrate(connection, [Migration(1, "001_a.sql", "CREATE TABLE a ()")], [], [])) == ["applied 001_a.sql"]
    connection.close()


@pytest.mark.stack
def test_columns_carry_unit_and_meaning_and_tables_are_hypertables(database: Databases) -> None:
    run(database, tank_stream(), views=(view_with(),))
    comment = (
        "SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = 'tanks'::regclass AND attname ="
    )
    assert database.value(f"{comment} 'level'") == "the level [m]"
    assert database.value("SELECT obj_description('tanks'::regclass)") == "Levels of the tanks."
    hypertables = database.rows("SELECT hypertable_name FROM timescaledb_information.hypertables ORDER BY 1")
    assert hypertables == [("tanks",), ("tanks_1s_rows",)]
    uncommented = database.rows(
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relname IN ('tanks', 'tanks_latest', 'tanks_1s', 'tanks_1s_rows') AND a.attnum > 0"
        " AND a.attname IN ('level', 'tank', 'window_start', 'count', 'level_mean', 'closed', 'revision',"
        " 'kafka_offset') AND col_description(c.oid, a.attnum) IS NULL"
    )
    assert uncommented == []


@pytest.mark.stack
def test_a_new_optional_field_adds_a_column_and_old_rows_read_null(database: Databases) -> None:
    run(database, tank_stream(values=("level",)))
    with database.open() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO tanks SELECT now(), 'tank1', 'hall', 1, 1, 2.5, 0, 0, 0, 1")
    lines = run(database, tank_stream(values=("level", "flow")))
    assert lines == [
        'public.tanks: ADD COLUMN "flow" double precision', 'public.tanks_latest: ADD COLUMN "flow" double precision'
    ]  # fmt: skip
    assert database.rows("SELECT level, flow FROM tanks") == [(2.5, None)]


@pytest.mark.stack
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE tanks ALTER COLUMN level TYPE text", "column level is text, the schema says double precision"),
        ("ALTER TABLE tanks DROP COLUMN kafka_offset", "has no column kafka_offset"),
        ("ALTER TABLE tanks ADD COLUMN more integer NOT NULL", "column more is NOT NULL"),
        ("DROP TABLE tanks; CREATE VIEW tanks AS SELECT 1 AS one", "exists and is not a table"),
        ("ALTER TABLE tanks RENAME TO t; CREATE TABLE tanks (LIKE t)", "is not a hypertable"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_one_line(database: Databases, change: str, words: str) -> None:
    run(database, tank_stream())
    with database.open() as connection, connection.cursor() as cursor:
        cursor.execute(change)
    with pytest.raises(ddl.TableError, match=words) as refused:
        run(database, tank_stream())
    assert "\n" not in str(refused.value)


@pytest.mark.stack
def test_another_type_of_a_field_is_refused(database: Databases) -> None:
    run(database, tank_stream(instrument="string"))
    with pytest.raises(
        ddl.TableError, match="column tank is text, the schema says bigint; give the field another name"
    ):
        run(database, tank_stream(instrument="long"))


@pytest.mark.stack
def test_a_view_gets_new_outputs_before_the_columns_that_come_last(database: Databases) -> None:
    run(database, views=(view_with(),))
    assert run(database, views=(view_with("level_max", generation=2),)) == [
        'strobe.tanks_1s_rows: ADD COLUMN "level_max" double precision', "made the view public.tanks_1s"
    ]  # fmt: skip
    assert columns(database, "tanks_1s") == [
        "instrument_id", "window_start", "window_end", "count", "level_mean", "level_max", "closed", "revision",
    ]  # fmt: skip
    assert database.rows("SELECT generation FROM strobe.views ORDER BY 1") == [(1,), (2,)]
    with database.open() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE VIEW mine AS SELECT level_mean FROM tanks_1s")
    with pytest.raises(ddl.TableError, match=r"something is built on it \(view mine depends on view tanks_1s\)"):
        run(database, views=(view_with("level_max", "level_min"),))


@pytest.mark.stack
def test_the_reader_reads_what_is_public_and_writes_nothing(database: Databases) -> None:
    run(database, tank_stream(), views=(view_with(),))
    public = ["tanks", "tanks_latest", "tanks_1s", "dead_letters", "dirty_windows", "pipeline_health", "stage_health"]
    for name in public:
        database.rows(f"SELECT * FROM {name}", role="reader")
    for statement in (
        "INSERT INTO dead_letters SELECT * FROM dead_letters",
        "UPDATE tanks SET level = 0",
        "DELETE FROM tanks_latest",
        "TRUNCATE tanks",
        "INSERT INTO tanks_1s (count) VALUES (1)",
        "CREATE TABLE mine ()",
        "CREATE TEMPORARY TABLE mine ()",
        "SELECT * FROM strobe.positions",
        "SELECT strobe.drop_old_chunks(1)",
    ):
        with database.open("reader") as connection, connection.cursor() as cursor:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(statement)
            connection.rollback()


@pytest.mark.stack
def test_the_writer_fills_tables_and_changes_none(database: Databases) -> None:
    run(database, tank_stream(), views=(view_with(),))
    with database.open("writer") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO tanks SELECT now(), 'tank1', 'hall', 1, 1, 2.5, NULL, 0, 0, 0, 1")
        cursor.execute("DELETE FROM strobe.tanks_1s_rows")
    for statement in ("DROP TABLE tanks", "ALTER TABLE tanks ADD COLUMN a int", "DELETE FROM strobe.migrations"):
        with database.open("writer") as connection, connection.cursor() as cursor:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(statement)
            connection.rollback()
    with pytest.raises(DatabaseSetupError, match=r"works as strobe_owner, not as strobe_writer|permission denied"):
        run(database, role="writer")


@pytest.mark.stack
def test_chunks_are_dropped_by_the_writer_by_age_on_disk_within_the_bound(database: Databases) -> None:
    run(database, tank_stream())
    with database.open("writer") as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tanks SELECT now() - k * interval '1 day', 'tank1', 'hall', 1, k, 2.5, NULL, 0, k, 0, 1"
            " FROM generate_series(0, 19) AS k"
        )
    assert database.value("SELECT strobe.drop_old_chunks(5)", role="writer") == 0  # old events, written just now
    with database.open() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE strobe.retention SET keep = interval '1 microsecond'")
    dropped = [database.value("SELECT strobe.drop_old_chunks(5)", role="writer") for _ in range(5)]
    assert dropped == [5, 5, 5, 5, 0]
    assert database.rows("SELECT count(*) FROM tanks") == [(0,)]


@pytest.mark.stack
def test_an_operators_retention_is_kept(database: Databases) -> None:
    run(database, tank_stream())
    with database.open() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE strobe.retention SET keep = interval '90 days'")
    run(database, tank_stream())
    assert database.value("SELECT keep = interval '90 days' FROM strobe.retention") is True


@pytest.mark.stack
def test_a_database_without_timescaledb_is_refused_with_the_command(stack: Any) -> None:
    refusal = "has no TimescaleDB; in it, as a superuser: CREATE EXTENSION"
    with fresh_database(stack, extension=False) as plain, pytest.raises(DatabaseSetupError, match=refusal):
        run(plain)


@pytest.mark.stack
def test_a_wrong_password_ends_in_one_line_and_shows_none(stack: Any) -> None:
    url = stack.database("owner").split("@")[1]
    ended = subprocess.run(
        [sys.executable, "-m", "sinks", "raw"],
        env=stack.environ() | {"STROBE_DATABASE": f"postgresql://strobe_owner:sesame@{url}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode in (1, 2)
    assert len(ended.stderr.splitlines()) == 1
    assert "sesame" not in ended.stderr


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({"STROBE_STREAMS": "/nowhere"}, 2, "/nowhere"),
        ({"STROBE_MAX_SKEW_S": "long"}, 2, "STROBE_MAX_SKEW_S='long'"),
    ],
)
def test_a_wrong_setting_ends_in_one_line(environ: dict[str, str], code: int, words: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STROBE_")}
    ended = subprocess.run(
        [sys.executable, "-m", "sinks", "raw"],
        env=inherited | environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == code
    (line,) = ended.stderr.splitlines()
    assert words in line


def test_each_table_has_the_columns_of_its_stream_in_one_order() -> None:
    stream = build_stream(tank_avro(), "tanks.avsc")
    assert raw_table(stream).names == [
        "time", "tank", "source", "run", "shot", "level", "flow",
        "kafka_partition", "kafka_offset", "reading_index", "incarnation",
    ]  # fmt: skip
    assert latest_table(stream).columns == raw_table(stream).columns
    assert view_table(view_with()).key == ("instrument_id", "window_start")
