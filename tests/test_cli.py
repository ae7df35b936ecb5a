"""The command line as a person meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli.checks import Check, Outcome, checks, last_line, report

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


def test_the_fast_checks_leave_out_what_needs_servers() -> None:
    tests = next(check for check in checks(fast=True, long=False) if check.name == "tests")
    assert tests.command[-2:] == ("-m", "not stack and not long")


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


@pytest.mark.parametrize("command", ["test"])
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    done = strobe(command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout


def test_an_unknown_command_is_a_mistake_without_a_trace() -> None:
    done = strobe("frobnicate")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
