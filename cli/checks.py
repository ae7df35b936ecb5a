"""`./strobe test`: every check that a change must pass, side by side, one line each."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cli.shards import shards, summary

ROOT = Path(__file__).resolve().parent.parent

TESTS = "tests"
SIDE_BY_SIDE = 2  # checks at once: the tests and one more, on the two cores of a small CI machine
CHECK_S_MAX = 3_000.0  # a check that hangs longer is killed and counts as failed
STILL_RUNNING_S = 60.0  # how often a log learns that a long check is alive


@dataclass(frozen=True)
class Check:
    """One command of the checks, by the name that its line shows."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    check: Check
    code: int
    took_s: float
    output: str


def checks(*, fast: bool, long: bool, pytest_arguments: Sequence[str] = ()) -> list[Check]:
    """The longest first, so that the short ones fill the second core meanwhile."""
    left_out = [mark for mark, out in (("stack", fast), ("long", not long)) if out]
    chosen = " and ".join(f"not {mark}" for mark in left_out)
    python = (sys.executable, "-m")
    pytest = (*python, "pytest", "-q", *(("-m", chosen) if chosen else ()))
    tests = [(TESTS, (*pytest, *pytest_arguments))]
    if fast and not pytest_arguments:  # others share one set of servers, and it is not started twice
        sizes = {str(file.relative_to(ROOT)): file.stat().st_size for file in ROOT.glob("tests/test_*.py")}
        tests = [
            (f"{TESTS} {number}", (*pytest, "-p", "no:cacheprovider", *files))
            for number, files in enumerate(shards(sizes, SIDE_BY_SIDE), 1)
        ]
    return [
        *(Check(name, command) for name, command in tests),
        Check("types", (*python, "mypy")),
        Check("imports", (str(Path(sys.executable).parent / "lint-imports"),)),
        Check("lint", (*python, "ruff", "check", ".")),
        Check("format", (*python, "ruff", "format", "--check", ".")),
    ]


def last_line(output: str) -> str:
    """The last line that says anything: where pytest writes its summary."""
    return next((line for line in reversed(output.splitlines()) if line.strip()), "")


def run(check: Check, *, alive: Callable[[str], None]) -> Outcome:
    """Run one check to its end; `alive` is told its latest line now and then."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="strobe-check-") as folder:
        path = Path(folder) / "output"
        with path.open("wb") as output:
            child = subprocess.Popen(
                check.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
            code: int | None = None
            while code is None:
                try:
                    code = child.wait(STILL_RUNNING_S)
                except subprocess.TimeoutExpired:
                    took_s = time.monotonic() - began
                    alive(f"   … {check.name} {took_s:.0f} s: {last_line(path.read_text(errors='replace'))[:150]}")
                    if took_s > CHECK_S_MAX:
                        child.kill()
        return Outcome(check, code, time.monotonic() - began, path.read_text(errors="replace"))


def run_all(todo: Sequence[Check], *, alive: Callable[[str], None]) -> Iterator[Outcome]:
    """Outcomes in the order in which they come."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for future in as_completed([pool.submit(run, check, alive=alive) for check in todo]):
            yield future.result()


def report(outcomes: Iterator[Outcome], say: Callable[[str], None]) -> int:
    """One line for each outcome, the output of the failed ones, pytest's summary last; the exit code."""
    began = time.monotonic()
    failed: list[str] = []
    summaries: list[str] = []
    for outcome in outcomes:
        word = "ok" if outcome.code == 0 else "FAILED"
        say(f"{word:6} {outcome.check.name:8} {outcome.took_s:6.1f} s")
        if outcome.code != 0:
            failed.append(outcome.check.name)
            say(f"$ {' '.join(outcome.check.command)}\n{outcome.output.rstrip()}\n")
        if outcome.check.name.startswith(TESTS):
            summaries.append(last_line(outcome.output).strip("= "))
    verdict = f"failed: {', '.join(failed)}" if failed else "all checks passed"
    say(f"{verdict} in {time.monotonic() - began:.1f} s\ntests: {summary(summaries)}")
    return 1 if failed else 0


def test(*, fast: bool, long: bool, pytest_arguments: Sequence[str]) -> int:
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            print(text, flush=True)

    return report(run_all(checks(fast=fast, long=long, pytest_arguments=pytest_arguments), alive=say), say)
