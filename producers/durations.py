"""Durations and points in time as people write them on a command line."""

import re
from datetime import UTC, datetime

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration_s(text: str) -> float:
    """Read 90, 90s, 1.5m, -3h …"""
    match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write a number and ms, s, m, h or d, such as 90s")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def point_us(text: str) -> int:
    """Read an ISO date and time; without a zone it is UTC. In µs since 1970."""
    try:
        point = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no date and time; write 2026-01-31T12:00:00Z") from None
    if point.tzinfo is None:
        point = point.replace(tzinfo=UTC)
    since = point - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
