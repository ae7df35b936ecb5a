"""Readings given by field name: taken exactly, or refused naming the field and what it may be."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from producers.reading_columns import FieldError, check_names, record_outgoing
from schemas.encoder import Outgoing
from schemas.stream import load_stream

BPM = load_stream(Path(__file__).parents[1] / "schemas" / "streams" / "bpm.avsc")
GOOD: dict[str, Any] = {"instrument_id": "bpm001", "top_in": 1.0, "bot_in": 1.1, "bot_out": 0.9, "top_out": None}


def made(*readings: dict[str, Any], time: Any = 1.5, run: Any = 1, trigger: Any = 2) -> Outgoing:
    return record_outgoing(BPM, "mine", run, trigger, time, list(readings), {})


def test_a_record_holds_what_was_given() -> None:
    one = made(GOOD, {"instrument_id": "bpm002", "status": 3})
    assert one.source == ["mine"]
    assert (one.run[0], one.trigger[0], one.time_us[0], one.counts[0]) == (1, 2, 1_500_000, 2)
    assert list(one.instrument) == ["bpm001", "bpm002"]
    assert one.status.tolist() == [0, 3]
    assert one.values["bot_in"].values.tolist() == [float(np.float32(1.1)), 0.0]
    assert one.values["bot_in"].valid.tolist() == [True, False]
    assert one.values["top_out"].valid.tolist() == [False, False]


@pytest.mark.parametrize(
    ("time", "time_us"),
    [
        (datetime(2024, 9, 29, 1, 37, 9, 40156, UTC), 1727573829040156),
        (datetime(2024, 9, 29, 3, 37, 9, 40156, timezone(timedelta(hours=2))), 1727573829040156),
        (1727573829.040156, 1727573829040156),
        (-0.0000005, -1),
        (7, 7_000_000),
    ],
)
def test_times_are_floored_to_microseconds(time: Any, time_us: int) -> None:
    assert made(GOOD, time=time).time_us.tolist() == [time_us]


@pytest.mark.parametrize(
    ("reading", "says"),
    [
        ({**GOOD, "top_inn": 1.0}, "top_inn is no field of stream bpm; the nearest is top_in"),
        ({**GOOD, "zzz": 1.0}, "zzz is no field of stream bpm; there are bot_in"),
        ({"top_in": 1.0}, "lacks instrument_id"),
        ({**GOOD, "instrument_id": 5}, "instrument_id=5 is not text"),
        ({**GOOD, "top_in": "much"}, "top_in=['much'] is not float"),
        ({**GOOD, "time": 1.0}, "time is no field"),
    ],
)
def test_a_wrong_field_is_named_with_the_nearest(reading: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError) as raised:
        made(reading)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"run": 1.5}, "run=1.5 is not a whole number"),
        ({"trigger": 2**63}, "trigger_id=9223372036854775808 is not a whole number that fits long"),
        ({"trigger": "1"}, "trigger_id='1' is not a whole number"),
        ({"time": datetime(2024, 9, 29)}, "has no zone"),  # noqa: DTZ001 - the mistake itself
    ],
)
def test_a_wrong_record_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError) as raised:
        made(GOOD, **wrong)
    assert says in str(raised.value)


def test_a_column_that_the_stream_lacks_is_named_with_the_nearest() -> None:
    one = made(GOOD)
    check_names(BPM, one)
    with pytest.raises(FieldError, match="top_im is no value of stream bpm; the nearest is top_in"):
        check_names(BPM, replace(one, values={"top_im": one.values["top_in"]}))
