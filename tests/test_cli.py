"""The command line as a person meets it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from cli.checks import Check, Outcome, checks, last_line, report
from cli.home import Home
from cli.overview import Overview, Rate, read_overview, stage_view
from cli.pipeline import Ring, one_shots, stages
from cli.psql import psql_environ
from cli.screen import stage_line
from cli.servers import ROLES, Addresses, as_role, read_addresses, without_password
from cli.shards import shards, summary
from cli.up import Wanted
from deploy.local.home import default_home
from schemas.status import Status

ROOT = Path(__file__).resolve().parent.parent


def strobe(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
    )


def test_the_fast_checks_leave_out_what_needs_servers_and_forget_no_file() -> None:
    tests = [check.command for check in checks(fast=True, long=False) if check.name.startswith("tests")]
    assert all("not stack and not long" in command for command in tests)
    files = [word for command in tests for word in command if word.endswith(".py")]
    assert sorted(files) == sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("tests/test_*.py"))


def test_two_summaries_become_one() -> None:
    lines = ["1 failed, 400 passed, 2 deselected in 9.1s", "501 passed, 1 skipped, 3 warnings in 8.88s (0:00:08)"]
    assert summary(lines) == "1 failed, 901 passed, 1 skipped, 2 deselected, 3 warnings"
    assert summary(["no tests ran in 0.1s"]) == "no tests ran in 0.1s"
    assert summary(["1 passed in 1s", "ERROR: usage"]) == "1 passed, ERROR: usage"


def test_shards_hold_every_file_once_and_about_as_much() -> None:
    made = shards({"a": 5, "b": 4, "c": 3, "d": 3, "e": 1}, 2)
    assert made == [["a", "d"], ["b", "c", "e"]]
    assert shards({"a": 5}, 2) == [["a"]]


def test_arguments_for_pytest_come_last_so_that_they_win() -> None:
    tests = next(
        check for check in checks(fast=False, long=False, pytest_arguments=["-m", "stack"]) if check.name == "tests"
    )
    assert tests.command[-4:] == ("-m", "not long", "-m", "stack")


def test_a_failed_check_shows_its_output_and_a_good_one_does_not() -> None:
    said: list[str] = []
    outcomes = [
        Outcome(Check("lint", ("ruff",)), 1, 0.1, "E501 too long\n"),
        Outcome(Check("tests", ("pytest",)), 0, 2.0, "....\n=== 4 passed in 2.00s ===\n"),
    ]
    assert report(iter(outcomes), said.append) == 1
    assert "E501 too long" in "\n".join(said)
    assert "...." not in "\n".join(said)
    assert last_line("\n".join(said)) == "tests: 4 passed in 2.00s"


COMMANDS = ["up", "down", "status", "logs", "psql", "verify", "doctor", "test"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    done = strobe(command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout


def test_help_names_every_command() -> None:
    for done in (strobe(), strobe("--help")):
        assert done.returncode == 0
        assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["up", "--frobnicate"], "--frobnicate"),
        (["up", "--rate", "fast"], "--rate"),
        (["up", "--rate", "0"], "--rate 0"),
        (["up", "--instruments", "2", "--sources", "3"], "--sources"),
        (["up", "--for", "-1"], "--for -1"),
        (["up", "--json"], "--for SECONDS"),
        (["up", "--kafka", "broker"], "broker:9092"),
        (["up", "--database", "lab"], "postgresql://"),
        (["up", "--registry", "lab"], "http://"),
        (["down"], "./strobe up"),
        (["logs", "nobody"], "nobody"),
        (["psql", "-c", "SELECT 1"], "./strobe up"),
        (["psql", "--role", "god"], "reader"),
        (["verify"], "./strobe up"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = strobe(*arguments, STROBE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_folder_that_cannot_be_written_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = strobe("up", STROBE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert "STROBE_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_status_says_in_json_that_nothing_runs(tmp_path: Path) -> None:
    done = strobe("status", "--json", STROBE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout)["phase"] == "down"


def test_the_log_is_shown_from_its_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raw-sink.log").write_text("".join(f"line {number}\n" for number in range(100)))
    done = strobe("logs", "raw-sink", "-n", "2", STROBE_HOME=str(tmp_path))
    assert done.stdout == "line 98\nline 99\n"


def test_the_doctor_names_a_taken_port_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = strobe("doctor", "--json", STROBE_HOME=str(tmp_path), STROBE_KAFKA_PORT=str(port))
    assert done.returncode == 1
    (ports,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "ports"]
    assert str(port) in ports["remedy"]
    assert "STROBE_KAFKA_PORT" in ports["remedy"]


def test_a_background_run_is_asked_for_what_was_asked() -> None:
    wanted = Wanted(kafka="k:1", ring=Ring(instruments=8, rate_hz=2.5, sources=2, seed=7))
    assert wanted.arguments() == ["--instruments", "8", "--rate", "2.5", "--sources", "2", "--seed", "7"]
    assert wanted.named() == {"STROBE_KAFKA": "k:1"}
    assert Wanted(ring=None).arguments() == ["--no-producer"]


ADDRESSES = Addresses("k:1", "http://r:2", {role: f"postgresql://strobe_{role}:secret@d:3/lab" for role in ROLES})


def test_each_stage_gets_only_what_it_needs(tmp_path: Path) -> None:
    made = {stage.name: stage for stage in stages(Home(tmp_path), ADDRESSES, {"STROBE_DATABASE": "else"}, Ring())}
    assert list(made) == ["producer", "processors", "raw-sink", "view-sink"]
    assert "STROBE_DATABASE" not in made["producer"].environ
    assert "STROBE_DATABASE" not in made["processors"].environ
    assert made["raw-sink"].environ["STROBE_DATABASE"] == ADDRESSES.databases["writer"]
    assert made["view-sink"].environ["STROBE_STATUS_FILE"] == str(tmp_path / "run" / "view-sink.json")
    assert one_shots(ADDRESSES, {})[-1].environ["STROBE_DATABASE"] == ADDRESSES.databases["owner"]


def test_a_named_database_is_used_with_the_rights_of_each_role() -> None:
    assert as_role("postgresql://me@db/lab", "owner") == "postgresql://me@db/lab"
    assert parse_dsn(as_role("postgresql://me@db/lab?sslmode=require", "reader")) == {
        "user": "me",
        "host": "db",
        "dbname": "lab",
        "sslmode": "require",
        "options": "-c role=strobe_reader",
    }


def test_passwords_are_neither_shown_nor_among_the_arguments_of_psql() -> None:
    assert without_password("postgresql://me:secret@db:3/lab") == "postgresql://me@db:3/lab"
    environ = psql_environ("postgresql://me:secret@db:3/lab", {"PGUSER": "other", "HOME": "/h"})
    assert (environ["PGPASSWORD"], environ["PGUSER"], environ["HOME"]) == ("secret", "me", "/h")


def test_addresses_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    ADDRESSES.write(tmp_path / "servers.json")
    assert (tmp_path / "servers.json").stat().st_mode & 0o777 == 0o600
    assert read_addresses(tmp_path / "servers.json") == ADDRESSES


def test_an_overview_survives_its_file(tmp_path: Path) -> None:
    status = Status("raw-sink", pid=7, readings=100, lag=3, counters={"letters": 1}, updated=1000.0)
    view = stage_view("raw-sink", "running", status, 12.5, 1001.0, pid=7, restarts=2)
    overview = Overview(1, "running", 1001.0, 900.0, "/h", stages=(view,))
    overview.write(tmp_path / "o.json")
    assert read_overview(tmp_path / "o.json") == overview
    assert "lag 3" in stage_line(view)
    assert "restarts 2" in stage_line(view)
    assert stage_view("raw-sink", "running", status, None, 1060.0).note == "silent for 60 s"


def test_a_rate_is_taken_over_a_few_seconds_and_never_across_a_restart() -> None:
    rate = Rate()
    assert rate.add(Status("raw-sink", pid=7, readings=0, updated=100.0)) is None
    assert rate.add(Status("raw-sink", pid=7, readings=10, updated=101.0)) == 10.0
    for second in range(2, 20):
        last = rate.add(Status("raw-sink", pid=7, readings=10 * second * second, updated=100.0 + second))
    assert last == 10 * (19 * 19 - 14 * 14) / 5
    assert rate.add(Status("raw-sink", pid=8, readings=0, updated=121.0)) is None
    assert rate.add(None) is None


@pytest.mark.stack
def test_up_for_some_seconds_ends_with_a_proof() -> None:
    """The whole command on servers of its own: everything that was sent is there once, and nothing stays behind."""
    home = Path(tempfile.mkdtemp(prefix="strobe-up-"))
    home.chmod(0o755)
    programs = default_home(os.environ, os.geteuid()) / "servers"
    (home / "servers").symlink_to(programs)
    ports = {f"STROBE_{name}_PORT": "0" for name in ("KAFKA", "CONTROLLER", "DATABASE", "REGISTRY")}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STROBE_HOME": str(home), **ports}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "up", "--for", "5", "--json", "--instruments", "12", "--sources", "2"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=environ,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["lost"], found["duplicated"], found["dead_letters"]) == (0, 0, 0)
        assert found["readings_stored"] == found["readings_produced"] == 12 * found["triggers_produced"]
        assert found["triggers_produced"] >= 50
        assert found["views"]["bpm_1s"]["compared"] >= 12 * 5
        assert found["freshness_readings"] > 0
        assert {name: stage["restarts"] for name, stage in found["stages"].items()} == dict.fromkeys(
            ("producer", "processors", "raw-sink", "view-sink"), 0
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
