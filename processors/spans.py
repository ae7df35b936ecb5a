"""Spans of time as PostgreSQL writes them, in whole microseconds. Months are refused: they have no fixed length."""

import re
from fractions import Fraction

UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}
SPAN_US_MAX = 10 * 365 * 86_400_000_000  # far from where int64 arithmetic on times could overflow


class SpanError(ValueError):
    """A text that is no span of time."""


def span_us(text: str) -> int:
    """Read '1 second', '1 minute 30 seconds', '250 ms', '00:01:30'."""
    clock = re.fullmatch(r"\s*(\d{1,6}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?\s*", text)
    if clock:
        hours, minutes, seconds = int(clock[1]), int(clock[2]), Fraction(clock[3] or "0")
        us = (hours * 3600 + minutes * 60 + seconds) * 1_000_000
    else:
        if not re.fullmatch(r"(\s*\d{1,15}(\.\d{1,15})?\s*[a-z]+\s*)+", text.lower()):
            raise SpanError(f"{text!r} is no span of time")
        us = Fraction(0)
        for number, unit in re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.lower()):
            name = unit if unit in UNITS_US else unit.removesuffix("s")
            if name not in UNITS_US:
                raise SpanError(f"{text!r}: {unit} has no fixed length, or is unknown")
            us += Fraction(number) * UNITS_US[name]
    if us.denominator != 1:
        raise SpanError(f"{text!r} is no whole number of microseconds")
    if us > SPAN_US_MAX:
        raise SpanError(f"{text!r} is longer than ten years")
    return int(us)
