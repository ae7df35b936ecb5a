"""Duplicates are judged by the order of offsets alone, however the readings are cut into batches or restored."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import triggers as triggers_module
from schemas.batch import Columns
from schemas.judge import DUPLICATE, FUTURE, GOOD, SENSELESS, UNJUDGED, judge
from schemas.seen import Seen
from schemas.triggers import FormatError, InstrumentTriggers, TriggerSet

INSTRUMENTS: list[str] = ["a", "b", "c"]
Reading = tuple[int, int, int]  # instrument, run, trigger


def columns_of(readings: list[Reading], *, ahead_us: int = 0, instruments: list[str] | None = None) -> Columns:
    n = len(readings)
    offsets = np.arange(n, dtype=np.int64)
    return Columns(
        stream="s",
        partition=0,
        offset=offsets,
        index=np.zeros(n, np.int32),
        append_us=offsets + 1_000_000,
        source=np.zeros(n, np.int32),
        run=np.array([r for _, r, _ in readings], np.int64),
        trigger=np.array([t for _, _, t in readings], np.int64),
        time_us=offsets + 1_000_000 + ahead_us,
        instrument=np.array([i for i, _, _ in readings], np.int32),
        status=np.zeros(n, np.int32),
        values={},
        instruments=INSTRUMENTS if instruments is None else instruments,
        sources=["x"],
    )


def judged(readings: list[Reading], cuts: list[int], *, restart: bool = False) -> list[int]:
    """The verdicts on readings that come in batches cut at the given places; after each the memory is restored."""
    seen, verdicts, stored = Seen(), [], {}
    bounds = [0, *sorted(cuts), len(readings)]
    for start, end in itertools.pairwise(bounds):
        verdicts += judge(columns_of(readings[start:end]), seen, 10).tolist()
        stored |= {seen.ids[k]: seen.pack(k) for k in seen.take_changed()}
        if restart:
            seen = Seen()
            for instrument, packed in stored.items():
                seen.restore(instrument, packed)
    return verdicts


readings_lists = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(-3, 25)), max_size=80)


@given(readings_lists, st.lists(st.integers(0, 80), max_size=5), st.booleans())
@settings(max_examples=300, deadline=None, print_blob=True)
def test_the_first_of_equal_identities_is_good_and_the_others_are_duplicates(
    readings: list[Reading], cuts: list[int], restart: bool
) -> None:
    cuts = [c for c in cuts if c <= len(readings)]
    expected = [DUPLICATE if reading in readings[:i] else GOOD for i, reading in enumerate(readings)]
    assert judged(readings, cuts, restart=restart) == expected


@given(readings_lists, st.lists(st.integers(0, 80), max_size=5))
@settings(max_examples=200, deadline=None, print_blob=True)
def test_beyond_the_bounds_verdicts_still_do_not_depend_on_cuts_or_restarts(
    readings: list[Reading], cuts: list[int]
) -> None:
    cuts = [c for c in cuts if c <= len(readings)]
    bounds = triggers_module.INTERVALS_MAX, triggers_module.RUNS_MAX
    triggers_module.INTERVALS_MAX, triggers_module.RUNS_MAX = 3, 2
    try:
        whole = judged(readings, [])
        assert judged(readings, cuts) == whole
        assert judged(readings, cuts, restart=True) == whole
        good = [reading for reading, verdict in zip(readings, whole, strict=True) if verdict == GOOD]
        assert len(good) == len(set(good))
    finally:
        triggers_module.INTERVALS_MAX, triggers_module.RUNS_MAX = bounds


def test_what_lies_below_the_memory_is_never_guessed() -> None:
    triggers = TriggerSet()
    for trigger in range(0, 2 * triggers_module.INTERVALS_MAX + 2, 2):
        assert triggers.add(trigger) is True
    assert triggers.add(0) is None
    assert triggers.add(2) is False
    memory = InstrumentTriggers()
    for run in range(triggers_module.RUNS_MAX + 1):
        assert memory.add(run, 5) is True
    assert memory.add(0, 6) is None


def test_a_future_or_senseless_reading_leaves_no_trace() -> None:
    seen = Seen()
    assert judge(columns_of([(0, 1, 1)], ahead_us=11), seen, 10).tolist() == [FUTURE]
    assert judge(columns_of([(0, 1, (1 << 63) - 1), (0, 1 << 62, 1)]), seen, 10).tolist() == [SENSELESS, GOOD]
    assert judge(columns_of([(0, 1, 1), (0, 1, 1)]), seen, 10).tolist() == [GOOD, DUPLICATE]
    assert judge(columns_of([(0, 1, 1)], ahead_us=-2_000_000), seen, 10).tolist() == [SENSELESS]


def test_unjudged_readings_have_a_reason_of_their_own() -> None:
    seen = Seen()
    runs = [(0, run, 1) for run in range(triggers_module.RUNS_MAX + 1)]
    assert judge(columns_of([*runs, (0, 0, 2)]), seen, 10).tolist()[-1] == UNJUDGED


def test_stored_bytes_of_an_unknown_format_are_refused() -> None:
    with pytest.raises(FormatError, match="format 63"):
        InstrumentTriggers.unpack(b"c" + bytes(20))
    with pytest.raises(FormatError, match="none"):
        InstrumentTriggers.unpack(b"")


def test_equal_memories_pack_to_equal_bytes() -> None:
    one, other = InstrumentTriggers(), InstrumentTriggers()
    for trigger in (1, 2, 3, 9):
        one.add(7, trigger)
    for trigger in (9, 3, 1, 2):
        other.add(7, trigger)
    assert one.pack() == other.pack() == InstrumentTriggers.unpack(one.pack()).pack()
