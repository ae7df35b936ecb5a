"""`python -m producers`: every mistake ends in one line with a remedy and exit code 2."""

import argparse
import time
from pathlib import Path

import pytest

from producers.__main__ import main
from producers.durations import duration_s, point_us
from producers.options import build_parser, file_pace, ring_faults, ring_model, ring_start_us

MISTAKES = [
    ("", "required"),
    ("rung", "invalid choice"),
    ("ring --instruments x", "--instruments: invalid int value"),
    ("ring --instruments 0", "--instruments 0: give 1 to"),
    ("ring --sources 200", "--sources 200: give 1 to 120"),
    ("ring --rate fast", "--rate fast: give triggers per second"),
    ("ring --rate -1", "--rate -1: give 0, or"),
    ("ring --rate 0", "--start TIME, or how far with --triggers N"),
    ("ring --speed 5", "--start TIME, or how far with --triggers N"),
    ("ring --start yesterday", "write 2026-01-31T12:00:00Z"),
    ("ring --triggers 0", "--triggers 0: give at least 1"),
    ("ring --own 5", "'5' is no crate; write 1 to 4"),
    ("ring --own 3-2", "names no crate"),
    ("ring --late 2", "late=2: give a fraction from 0 to 1"),
    ("ring --late-by soon", "'soon' is no duration"),
    ("ring --wrong-clock crate9=3h", "'crate9' is no crate"),
    ("ring --wrong-clock crate2", "'' is no duration"),
    ("ring --stream bmp", "--stream bmp: no such stream; the nearest is bpm"),
    ("ring --stream doros", "has no top_in, which the ring's monitors send"),
    ("ring --seed -1", "--seed -1: give 0 to"),
    ("file /nowhere.h5 --stream doros --mapping lhc-doros", "/nowhere.h5: no such file"),
    ("file README --stream doros", "--mapping"),
    ("file {file} --stream doros --mapping lhc-dorus", "shipped mapping: lhc-doros"),
    ("file {file} --stream bpm --mapping lhc-doros", "give --stream doros"),
    ("file {file} --stream doros --mapping lhc-doros --pace fast", "--pace fast: give real, max"),
]


@pytest.mark.parametrize(("command", "says"), MISTAKES)
def test_a_mistake_ends_in_one_line_and_exit_code_2(
    command: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.h5").write_bytes(b"")
    code = main(command.format(file=tmp_path / "data.h5").split())
    shown = capsys.readouterr()
    assert code == 2
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("command", [["--help"], ["ring", "--help"], ["file", "--help"]])
def test_help_shows_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "python -m producers" in shown
    assert "examples:" in shown or command == ["--help"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("-3h", -10_800.0), ("+250ms", 0.25), ("1d", 86_400.0)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.000001", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, us: int) -> None:
    assert point_us(text) == us


@pytest.mark.parametrize(("text", "pace"), [("real", 1.0), ("max", 0.0), ("10", 10.0), ("0.5", 0.5)])
def test_paces(text: str, pace: float) -> None:
    assert file_pace(text) == pace


def asked(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["ring", *arguments])


def test_a_wrong_clock_is_one_crate_s() -> None:
    faults = ring_faults(asked("--wrong-clock=crate2=-3h"))
    assert (faults.clock_source, faults.clock_offset_s) == (1, -10_800.0)
    assert ring_faults(asked("--wrong-clock=2=+90s")).clock_offset_s == 90.0


def test_without_a_start_no_event_time_lies_ahead_of_the_clock() -> None:
    options = asked("--rate=0", "--triggers=1000")
    start_us = ring_start_us(options, ring_model(options))
    assert start_us is not None
    assert start_us + 1000 * 100_000 <= time.time_ns() // 1000
    plain = asked()
    assert ring_start_us(plain, ring_model(plain)) is None
