"""What the README shows is run: its commands, its queries, its instrument, its stream and its view."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
import typer.main
from pipeline_runner import Pipeline
from rich.console import Console

from cli.__main__ import app
from cli.overview import Overview
from cli.screen import whole
from processors.plan import build_plan
from schemas.settings import Settings
from schemas.stream import Stream, build_stream, load_streams
from sinks.migrate import COMMANDS as COMMANDS_OF_MIGRATE

if TYPE_CHECKING:
    import click
    from conftest import Stack

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
VISIBLE_WITHIN_S = 60.0  # compiles on the first run
SENT_BY_THE_README = 20  # readings of its instrument


def blocks(language: str, *, beginning: str = "") -> list[str]:
    """Fenced blocks of a language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return [block for block in found if block.startswith(beginning)]


QUERIES = blocks("sql", beginning="SELECT")
COMMANDS = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()]
COMMANDS += re.findall(r"`(\./strobe [^`]+)`", README)


def shown_stream() -> Stream:
    (text,) = blocks("json")
    return build_stream(json.loads(text), "cryo.avsc")


def test_there_are_five_questions() -> None:
    assert len(QUERIES) == 5


def test_one_sends_from_ones_own_instrument_in_ten_lines() -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("./strobe")])
def test_every_command_and_option_that_is_shown_is_one_of_the_command_lines(command: str) -> None:
    group: Any = typer.main.get_command(app)
    _, name, *rest = shlex.split(command)
    assert name in group.commands
    known: click.Command = group.commands[name]
    options = {option for parameter in known.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= options


def test_the_screen_that_is_shown_has_the_columns_of_the_real_one() -> None:
    (shown,) = blocks("text")
    console = Console(width=100, file=StringIO())
    console.print(whole(Overview(pid=1, phase="running", at=0.0, began=0.0, home="")))
    real = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    heading = next(line for line in shown.splitlines() if line.startswith("stage"))
    assert heading.split() in [line.split() for line in real]
    assert next(line for line in shown.splitlines() if line.startswith("./strobe")) in real
    assert shown.splitlines()[-1] in real


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(".venv/bin/python")])
def test_every_module_that_is_shown_can_be_run(command: str) -> None:
    _, *arguments = shlex.split(command)
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_stream_that_is_shown_is_one() -> None:
    stream = shown_stream()
    assert [(field.name, field.unit) for field in stream.values] == [("temperature", "K")]
    assert stream.name not in load_streams(Settings().streams)


def test_the_view_that_is_shown_is_one_and_so_is_its_hopping_sister() -> None:
    (text,) = blocks("sql", beginning="CREATE MATERIALIZED")
    streams = {"cryo": shown_stream()}
    assert build_plan(text, "cryo_1m.sql", streams).size_us == 60_000_000
    (hop,) = re.findall(r"`(HOP\([^`]*\))`", README)
    sister = build_plan(re.sub(r"TUMBLE\([^\n]*\)", hop, text), "cryo_1m.sql", streams)
    assert (sister.hop_us, sister.size_us) == (1_000_000, 60_000_000)


@pytest.fixture
def pipeline(stack: "Stack", tmp_path: Path) -> Iterator[Pipeline]:
    """All stages, with a ring that also sends what nobody can decode."""
    pipeline = Pipeline(stack, tmp_path)
    pipeline.setup()
    for stage in ("processors", "raw-sink", "view-sink"):
        pipeline.start(stage)
    pipeline.start("producer", "ring", "--instruments=12", "--sources=4", "--damaged=0.05")
    yield pipeline
    pipeline.stop_all()


@pytest.mark.stack
def test_every_question_has_an_answer_and_ones_own_instrument_arrives(stack: "Stack", pipeline: Pipeline) -> None:
    (code,) = blocks("python")
    ended = subprocess.run(
        [sys.executable, "-c", code], env=stack.environ(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with closing(psycopg2.connect(stack.database("reader"))) as connection:
        connection.autocommit = True
        for query in QUERIES:
            assert rows_within(connection, query, VISIBLE_WITHIN_S), f"no rows: {query}"
        own = "SELECT count(*) FROM bpm WHERE instrument_id = 'lab001' HAVING count(*) >= 20"
        assert rows_within(connection, own, VISIBLE_WITHIN_S) == [(SENT_BY_THE_README,)]
        for name in ("dirty_windows", "stage_health", "dead_letters", "bpm_rolling_1m", "doros_1s"):
            rows_within(connection, f"SELECT * FROM {name} LIMIT 1", 0)
    pipeline.stop("producer")


def rows_within(connection: Any, query: str, limit_s: float) -> list[tuple[Any, ...]]:
    """The rows of a query, asked again until there are some."""
    until = time.monotonic() + limit_s
    with connection.cursor() as cursor:
        while True:
            cursor.execute(query)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            if rows or time.monotonic() > until:
                return rows
            time.sleep(0.2)


@pytest.mark.stack
def test_the_short_run_that_is_shown_ends_with_nothing_lost_or_doubled(own_stack: "Stack", tmp_path: Path) -> None:
    command = "./strobe up --for 60 --json"
    assert command in COMMANDS
    with (
        closing(psycopg2.connect(own_stack.database("superuser"))) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(next(line for line in COMMANDS_OF_MIGRATE.splitlines() if "GRANT" in line))
    servers = ["--kafka", own_stack.settings().kafka, "--registry", own_stack.settings().registry]
    servers += ["--database", own_stack.database("owner")]
    shorter = shlex.split(command.replace("60", "5"))
    ended = subprocess.run(
        [*shorter, *servers],
        env=os.environ | {"STROBE_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert result["readings_stored"] > 0
