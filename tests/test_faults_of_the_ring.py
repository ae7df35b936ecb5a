"""Faults of the simulated ring: each hits the fraction that was asked for, does what it says, and nothing else."""

import io
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import fastavro
import numpy as np
import pytest

from producers.crates import Crates, Step
from producers.faults import COPY_SLOTS, DAMAGES, DISORDER_SLOTS, STATUS_INVALID, STUCK_TRIGGERS, FaultError, Faults
from producers.ring import Ring
from schemas.encoder import Encoder
from schemas.stream import load_stream

STREAM = load_stream(Path(__file__).parents[1] / "schemas" / "streams" / "bpm.avsc")
TRIGGERS = 4000
START_US = 1_700_000_000_000_000
RUN = 42


class Record(NamedTuple):
    slot: int
    source: str
    run: int
    trigger: int
    time_us: int


def crates(faults: Faults, instruments: int = 2, sources: int = 2) -> Crates:
    return Crates(Ring(instruments, sources, Fraction(10), 1), faults, START_US, RUN, list(range(sources)))


def whole(source: Crates, triggers: int = TRIGGERS) -> Step:
    return source.step(0, triggers + source.reach_slots, triggers)


def each(faults: Faults) -> list[Record]:
    """Every record, with the slot in which it is sent."""
    step = whole(crates(faults))
    one = step.outgoing
    columns = (step.slot.tolist(), one.source, one.run.tolist(), one.trigger.tolist(), one.time_us.tolist())
    return [Record(*row) for row in zip(*columns, strict=True)]


def about(fraction: float, count: int) -> tuple[float, float]:
    """Five standard deviations round the fraction of so many independent draws."""
    width = 5 * (count * fraction * (1 - fraction)) ** 0.5
    return count * fraction - width, count * fraction + width


def assert_about(hit: int, fraction: float, count: int) -> None:
    least, most = about(fraction, count)
    assert least <= hit <= most


def test_without_faults_every_trigger_comes_once_in_order_and_whole() -> None:
    records = each(Faults())
    assert [record.trigger for record in records if record.source == "crate1"] == list(range(TRIGGERS))
    assert {record.run for record in records} == {RUN}
    assert all(record.slot == record.trigger for record in records)
    step = whole(crates(Faults()))
    assert not (step.damage >= 0).any()
    assert all(vector.valid.all() for vector in step.outgoing.values.values())
    assert not np.any(step.outgoing.status)
    assert not +step.counts


def test_dropouts_are_null_with_an_invalid_status() -> None:
    step = whole(crates(Faults(dropouts=0.1)))
    valid = step.outgoing.values["top_in"].valid
    assert_about(int((~valid).sum()), 0.1, len(valid))
    assert step.counts["dropouts"] == (~valid).sum()
    assert all(np.array_equal(vector.valid, valid) for vector in step.outgoing.values.values())
    assert np.array_equal(step.outgoing.status == STATUS_INVALID, ~valid)
    assert set(np.unique(step.outgoing.status)) == {0, STATUS_INVALID}


def test_a_stuck_button_stays_and_the_other_buttons_move() -> None:
    source = crates(Faults(stuck=0.3), instruments=60, sources=1)
    stuck = source.step(0, STUCK_TRIGGERS, None).outgoing
    good = crates(Faults(), instruments=60, sources=1).step(0, STUCK_TRIGGERS, None).outgoing
    changed = np.zeros((60, 4), np.bool_)
    for button, (name, vector) in enumerate(stuck.values.items()):
        read = vector.values.reshape(STUCK_TRIGGERS, 60)
        changed[:, button] = (read != good.values[name].values.reshape(STUCK_TRIGGERS, 60)).any(axis=0)
        assert np.array_equal(changed[:, button], (read == read[0]).all(axis=0))
    assert set(changed.sum(axis=1)) == {0, 1}, "one button of an instrument at a time"
    assert_about(int(changed.sum()), 0.3, 60)


def test_duplicates_are_the_same_record_again_a_little_later() -> None:
    records = each(Faults(duplicates=0.1))
    times = Counter((record.source, record.trigger) for record in records)
    assert set(times.values()) == {1, 2}
    assert_about(len(records) - 2 * TRIGGERS, 0.1, 2 * TRIGGERS)
    copies = [record for record in records if record.slot != record.trigger]
    assert len(copies) == len(records) - 2 * TRIGGERS
    assert all(1 <= record.slot - record.trigger <= COPY_SLOTS for record in copies)


def test_duplicates_are_equal_byte_for_byte() -> None:
    step = whole(crates(Faults(duplicates=0.1, dropouts=0.1, stuck=0.5, damaged=0.2)), 500)
    payloads = step.spoiled(Encoder(STREAM, 7).encode(step.outgoing))
    by_identity: dict[tuple[str, int], set[bytes]] = {}
    for name, trigger, payload in zip(step.outgoing.source, step.outgoing.trigger, payloads, strict=True):
        by_identity.setdefault((name, int(trigger)), set()).add(payload)
    assert len(payloads) > len(by_identity) == 1000
    assert all(len(same) == 1 for same in by_identity.values())


def test_disordered_triggers_are_overtaken_by_a_few_successors() -> None:
    records = each(Faults(disorder=0.1))
    moved = [record for record in records if record.slot != record.trigger]
    assert len(records) == 2 * TRIGGERS
    assert_about(len(moved), 0.1, 2 * TRIGGERS)
    assert all(1 <= record.slot - record.trigger <= DISORDER_SLOTS for record in moved)
    one = [record.trigger for record in records if record.source == "crate1"]
    assert one != sorted(one)
    moved_here = {record.trigger for record in moved if record.source == "crate1"}
    for place, trigger in enumerate(one):
        if trigger in moved_here and trigger + 1 < TRIGGERS and trigger + 1 not in moved_here:
            assert trigger + 1 in one[:place], "its successor came first"


def test_late_triggers_keep_their_time_and_come_by_the_chosen_delay_later() -> None:
    records = each(Faults(late=0.05, late_by_s=30.0))
    late = [record for record in records if record.slot != record.trigger]
    assert len(records) == 2 * TRIGGERS
    assert_about(len(late), 0.05, 2 * TRIGGERS)
    assert {record.slot - record.trigger for record in late} == {300}
    assert all(record.time_us == START_US + record.trigger * 100_000 for record in records)


def test_missing_triggers_leave_holes_in_the_numbers() -> None:
    records = each(Faults(missing=0.1))
    assert_about(2 * TRIGGERS - len(records), 0.1, 2 * TRIGGERS)
    assert len({(record.source, record.trigger) for record in records}) == len(records)


def test_a_restarted_counter_begins_at_0_in_a_new_run_of_its_crate() -> None:
    records = each(Faults(restarts=0.005))
    for name in ("crate1", "crate2"):
        own = [record for record in records if record.source == name]
        begins = [at for at, record in enumerate(own) if record.trigger == 0]
        assert_about(len(begins) - 1, 0.005, TRIGGERS)
        for at in begins[1:]:
            assert own[at].run == RUN + own[at].time_us - START_US, "the µs of the restart, as for a fresh start"
        assert len({record.run for record in own}) == len(begins)
        assert [record.time_us for record in own] == [START_US + at * 100_000 for at in range(TRIGGERS)]
        for before, after in pairwise(own):
            assert after.trigger in (0, before.trigger + 1)
    crate1, crate2 = ({record.run for record in records if record.source == name} for name in ("crate1", "crate2"))
    assert crate1 != crate2


@pytest.mark.parametrize("kind", range(len(DAMAGES)))
def test_damaged_records_cannot_be_decoded(kind: int) -> None:
    step = whole(crates(Faults(damaged=0.25)))
    good = Encoder(STREAM, 7).encode(step.outgoing)
    spoiled = step.spoiled(list(good))
    assert_about(int((step.damage >= 0).sum()), 0.25, 2 * TRIGGERS)
    schema = fastavro.parse_schema(STREAM.avro)
    hit = np.flatnonzero(step.damage == kind).tolist()
    assert len(hit) > 100
    for record in hit:
        assert readable(spoiled[record], schema) is False
        assert readable(good[record], schema) is True
    whole_ones = np.flatnonzero(step.damage < 0).tolist()
    assert [spoiled[record] for record in whole_ones] == [good[record] for record in whole_ones]


def readable(payload: bytes, schema: object) -> bool:
    """Whether a reader that knows schema 7 alone takes it."""
    if payload[:5] != b"\0\0\0\0\7":
        return False
    try:
        fastavro.schemaless_reader(io.BytesIO(payload[5:]), schema, None)
    except (EOFError, ValueError, IndexError, StopIteration):
        return False
    return True


@pytest.mark.parametrize("offset_s", [-3 * 3600.0, 30.0, 120.0])
def test_a_wrong_clock_shifts_the_times_of_its_crate_alone(offset_s: float) -> None:
    records = each(Faults(clock_source=1, clock_offset_s=offset_s))
    for record in records:
        shift_us = int(offset_s * 1e6) if record.source == "crate2" else 0
        assert record.time_us == START_US + record.trigger * 100_000 + shift_us
        assert record.slot == record.trigger


def test_faults_are_drawn_apart_so_that_they_meet_by_chance() -> None:
    step = whole(crates(Faults(duplicates=0.2, late=0.2, missing=0.2, disorder=0.2, damaged=0.2, dropouts=0.2)))
    total = 2 * TRIGGERS
    assert_about(step.counts["missing"], 0.2, total)
    assert_about(step.counts["duplicates"], 0.2 * 0.8, total)
    assert_about(step.counts["late"], 0.2 * 0.8, total)
    assert_about(step.counts["disordered"], 0.2 * 0.8 * 0.8, total)


def test_sources_and_seeds_are_hit_apart() -> None:
    records = each(Faults(missing=0.5))
    one, two = ({record.trigger for record in records if record.source == name} for name in ("crate1", "crate2"))
    assert_about(len(one & two), 0.25, TRIGGERS)


def test_what_is_held_back_at_the_end_is_still_sent() -> None:
    faults = Faults(late=0.5, late_by_s=100.0, duplicates=0.5, disorder=0.5)
    source = crates(faults)
    shown = Counter(whole(source, 50).outgoing.trigger.tolist())
    assert set(shown) == set(range(50))
    assert sum(shown.values()) == 100 + whole(source, 50).counts["duplicates"]


@pytest.mark.parametrize("wrong", [{"late": 1.5}, {"missing": -0.1}, {"late": 0.1, "late_by_s": -1.0}])
def test_a_fault_that_cannot_be_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(FaultError, match=list(wrong)[-1]):
        Faults(**wrong)  # type: ignore[arg-type]
