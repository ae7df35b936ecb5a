"""What was asked on the command line, checked: the parser, and options made into models. Opens no data file."""

import argparse
import time
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from producers.durations import duration_s, point_us
from producers.faults import FRACTIONS, Faults
from producers.nearest import nearest
from producers.pickup import BUTTONS
from producers.ring import Ring
from schemas.settings import Settings
from schemas.stream import Stream, load_streams

INSTRUMENTS_MAX = 100_000
RATE_HZ_MAX = 1_000_000
NOMINAL_HZ = 10  # spacing of event times at --rate 0
FAULT_HELP = {
    "dropouts": "of readings: amplitudes null, status 3 (INVALID)",
    "stuck": "of readings: one button stays where it was, for 1024 triggers at a time",
    "duplicates": "of records: sent again, byte for byte, 1 to 8 triggers later",
    "disorder": "of records: overtaken by 1 to 4 successors",
    "late": "of records: sent --late-by after their time",
    "missing": "of records: never sent, so that their trigger numbers are missing",
    "restarts": "of triggers: the crate's trigger counter begins anew at 0, in a new run",
    "damaged": "of records: sent as bytes that nobody can decode",
}
RING_EXAMPLES = """examples:
  python -m producers ring --instruments 120 --sources 4 --rate 10 --seed 1
  python -m producers ring --start 2026-01-31T12:00:00Z --rate 0 --triggers 2000 --grid --duplicates 0.01 --late 0.01
  python -m producers ring --own 1-2        # crates 1 and 2; another process owns the others
  python -m producers ring --wrong-clock crate2=-3h

Event time is the scheduled time of a trigger. After a pause (broker away, process stopped) the ring catches up: at most
ten times the pace, and never more than one second's triggers in one burst."""
FILE_EXAMPLES = """examples:
  python -m producers file doros.h5 --stream doros --mapping lhc-doros
  python -m producers file shots.csv --stream bpm --mapping shots.toml --pace max --json

A mapping says which columns or datasets become which fields; producers/mapping.py describes it."""


class MistakeError(ValueError):
    """A mistake on the command line, with the remedy."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise MistakeError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m producers", description="Send instrument data to a stream's topic.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="ring|file", parser_class=_Parser)
    raw = argparse.RawDescriptionHelpFormatter
    ring = commands.add_parser("ring", help="a simulated storage ring", epilog=RING_EXAMPLES, formatter_class=raw)
    ring.add_argument("--instruments", type=int, default=120, help="beam position monitors (default 120)")
    ring.add_argument("--sources", type=int, default=4, help="crates that read them (default 4)")
    ring.add_argument(
        "--rate", default="10", help="triggers per second (default 10); 0: as fast as possible, 0.1 s apart"
    )
    ring.add_argument(
        "--speed", type=float, default=1.0, help="pace as a multiple of real time; 0: as fast as possible"
    )
    ring.add_argument("--seed", type=int, default=1, help="same seed and start, same bytes (default 1)")
    ring.add_argument("--start", help="event time of the first trigger (default now)")
    ring.add_argument("--triggers", type=int, help="stop after so many")
    ring.add_argument("--own", help="crates of this process, such as 1-2 or 1,3 (default all)")
    ring.add_argument("--run", type=int, help="name of the run (default µs since 1970 at the start)")
    ring.add_argument("--stream", default="bpm", help="stream to send to (default bpm)")
    ring.add_argument("--grid", action="store_true", help="amplitudes are multiples of 2^-12 V: their sums are exact")
    ring.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    faults = ring.add_argument_group("faults", "fractions from 0 to 1, all off by default, chosen by the seed")
    for name in FRACTIONS:
        faults.add_argument(f"--{name}", type=float, default=0.0, metavar="FRACTION", help=FAULT_HELP[name])
    faults.add_argument("--late-by", default="5s", help="delay of late records (default 5s)")
    faults.add_argument(
        "--wrong-clock", metavar="CRATE=OFFSET", help="this crate's clock is ahead (2m) or behind (-3h)"
    )
    file = commands.add_parser("file", help="measured data", epilog=FILE_EXAMPLES, formatter_class=raw)
    file.add_argument("path", type=Path, help="HDF5, CSV or Parquet file")
    file.add_argument("--stream", required=True, help="stream to send to")
    file.add_argument("--mapping", required=True, help="TOML file, or name of a shipped mapping (lhc-doros)")
    file.add_argument("--pace", default="real", help="real (default), a multiple of it such as 10, or max")
    file.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    return parser


def chosen_stream(settings: Settings, name: str) -> Stream:
    streams = load_streams(settings.streams)
    if name not in streams:
        raise MistakeError(f"--stream {name}: no such stream; {nearest(name, streams)}")
    return streams[name]


def require_buttons(stream: Stream) -> None:
    """Make sure that the simulated monitors' readings fit the stream."""
    names = {field.name for field in stream.values}
    lacking = [name for name in BUTTONS if name not in names]
    if lacking or stream.instrument.type != "string":
        what = f"no {lacking[0]}" if lacking else "no names for instruments"
        raise MistakeError(f"--stream {stream.name}: has {what}, which the ring's monitors send; use bpm")


def ring_model(options: argparse.Namespace) -> Ring:
    if not 1 <= options.instruments <= INSTRUMENTS_MAX:
        raise MistakeError(f"--instruments {options.instruments}: give 1 to {INSTRUMENTS_MAX}")
    if not 1 <= options.sources <= options.instruments:
        raise MistakeError(f"--sources {options.sources}: give 1 to {options.instruments}, the number of instruments")
    try:
        rate = Fraction(options.rate).limit_denominator(1000)
    except (ValueError, ZeroDivisionError):
        raise MistakeError(f"--rate {options.rate}: give triggers per second, such as 10") from None
    if rate < 0 or rate > RATE_HZ_MAX or (rate == 0) != (options.rate == "0"):
        raise MistakeError(f"--rate {options.rate}: give 0, or 0.001 to {RATE_HZ_MAX} triggers per second")
    if options.speed < 0 or options.speed > 1e6:
        raise MistakeError(f"--speed {options.speed:g}: give 0 (as fast as possible) to 1e6")
    if not 0 <= options.seed < 2**63:
        raise MistakeError(f"--seed {options.seed}: give 0 to 2^63 - 1")
    if options.triggers is not None and options.triggers < 1:
        raise MistakeError(f"--triggers {options.triggers}: give at least 1")
    if options.run is not None and not 0 <= options.run < 2**62:
        raise MistakeError(f"--run {options.run}: give 0 to 2^62")
    return Ring(options.instruments, options.sources, rate or Fraction(NOMINAL_HZ), options.seed, grid=options.grid)


def ring_faults(options: argparse.Namespace) -> Faults:
    source, offset_s = None, 0.0
    try:
        late_by_s = duration_s(options.late_by)
        if options.wrong_clock is not None:
            crate, _, offset = options.wrong_clock.partition("=")
            source, offset_s = crate_number(crate, options.sources), duration_s(offset)
    except ValueError as error:
        raise MistakeError(str(error)) from None
    fractions = {name: getattr(options, name) for name in FRACTIONS}
    return Faults(**fractions, late_by_s=late_by_s, clock_source=source, clock_offset_s=offset_s)


def ring_start_us(options: argparse.Namespace, model: Ring) -> int | None:
    """Give the event time of the first trigger; None: now."""
    if options.start is not None:
        try:
            return point_us(options.start)
        except ValueError as error:
            raise MistakeError(f"--start {error}") from None
    if 0 < ring_speed(options) <= 1:
        return None
    # Faster than real time: it has to begin earlier, or event times would run ahead of the clock.
    if options.triggers is None:
        raise MistakeError("faster than real time: say from when with --start TIME, or how far with --triggers N")
    return time.time_ns() // 1000 - int(options.triggers * 1_000_000 / model.rate_hz)


def ring_speed(options: argparse.Namespace) -> float:
    """Give the pace as a multiple of real time; 0: as fast as possible."""
    return 0.0 if options.rate == "0" else float(options.speed)


def owned_crates(options: argparse.Namespace) -> list[int]:
    if options.own is None:
        return list(range(options.sources))
    owned: set[int] = set()
    for part in options.own.split(","):
        first, _, last = part.partition("-")
        numbers = range(crate_number(first, options.sources), crate_number(last or first, options.sources) + 1)
        owned.update(numbers)
    if not owned:
        raise MistakeError(f"--own {options.own}: names no crate; write 1-2 or 1,3")
    return sorted(owned)


def crate_number(text: str, sources: int) -> int:
    """Read crate2, or 2; counted from 0."""
    digits = text.strip().removeprefix("crate")
    if not digits.isdecimal() or not 1 <= int(digits) <= sources:
        raise MistakeError(f"{text!r} is no crate; write 1 to {sources}, or crate1 to crate{sources}")
    return int(digits) - 1


def file_pace(text: str) -> float:
    """Read real, max or a multiple; 0 stands for max."""
    named = {"real": 1.0, "max": 0.0}
    try:
        pace = named[text] if text in named else float(text)
    except ValueError:
        pace = -1.0
    if not (pace > 0 or text == "max") or pace > 1e6:
        raise MistakeError(f"--pace {text}: give real, max, or a multiple of real time such as 10")
    return pace
