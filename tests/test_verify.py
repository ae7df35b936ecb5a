"""The proof finds what is lost and what is there twice: it is itself proved against made-up topics and tables."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.drain import Settling, left
from cli.freshness import Growth, freshness
from cli.stream_map import stream_of, view_of
from cli.verify import Readings, compare, compare_windows
from cli.view_filter import counts_every_reading

Row = tuple[int, int, int, int, int, int]
NOTHING = Readings.of([])


def row(trigger: int, *, instrument: int = 0, run: int = 1, partition: int = 0, offset: int | None = None) -> Row:
    """(run, trigger, instrument, partition, offset, index)."""
    return (run, trigger, instrument, partition, trigger if offset is None else offset, 0)


TOPIC = [row(trigger) for trigger in range(5)]


def test_equal_sides_differ_in_nothing() -> None:
    found = compare(Readings.of(TOPIC), set(), Readings.of(TOPIC), set())
    assert (found.lost, found.repeated, found.foreign) == (0, 0, 0)
    assert (found.readings, found.triggers) == (5, 5)


def test_nothing_against_nothing_is_equal() -> None:
    found = compare(NOTHING, set(), NOTHING, set())
    assert (found.readings, found.lost, found.repeated, found.foreign) == (0, 0, 0, 0)


def test_a_reading_that_is_in_no_table_is_lost_and_named() -> None:
    found = compare(Readings.of(TOPIC), set(), Readings.of(TOPIC[:3] + TOPIC[4:]), set())
    assert (found.lost, found.repeated, found.foreign, found.lost_places) == (1, 0, 0, ((0, 3, 0),))


def test_a_dead_letter_is_not_lost_by_reading_or_by_whole_record() -> None:
    stored = Readings.of(TOPIC[:3])
    assert compare(Readings.of(TOPIC), set(), stored, {(0, 3, 0), (0, 4, -1)}).lost == 0
    assert compare(Readings.of(TOPIC), set(), stored, {(0, 3, 1), (1, 4, -1)}).lost == 2


def test_a_copy_in_the_topic_needs_no_row_of_its_own() -> None:
    topic = [*TOPIC, row(2, offset=9)]
    found = compare(Readings.of(topic), set(), Readings.of(TOPIC), set())
    assert (found.readings, found.lost, found.repeated) == (6, 0, 0)


def test_a_good_copy_of_a_dead_letter_must_be_stored() -> None:
    topic = Readings.of([row(0), row(0, offset=9)])
    assert compare(topic, set(), NOTHING, {(0, 0, 0)}).lost == 1
    assert compare(topic, set(), Readings.of([row(0, offset=9)]), {(0, 0, 0)}).lost == 0


def test_a_row_stored_twice_is_repeated_wherever_it_came_from() -> None:
    found = compare(Readings.of(TOPIC), set(), Readings.of([*TOPIC, row(2, offset=9), row(2, partition=1)]), set())
    assert (found.lost, found.repeated, found.foreign) == (0, 2, 0)


def test_a_row_that_no_record_accounts_for_is_foreign() -> None:
    found = compare(Readings.of(TOPIC), set(), Readings.of([*TOPIC, row(7)]), set())
    assert (found.lost, found.foreign) == (0, 1)


def test_a_reading_with_two_fates_is_foreign() -> None:
    assert compare(Readings.of([row(0)]), set(), Readings.of([row(0)]), {(0, 0, 0)}).foreign == 1


def test_an_unreadable_record_must_be_a_dead_letter() -> None:
    assert compare(NOTHING, {(0, 7, -1)}, NOTHING, {(0, 7, -1)}).lost == 0
    assert compare(NOTHING, {(0, 7, -1)}, NOTHING, {(0, 8, -1)}).lost == 1


def test_runs_triggers_and_instruments_tell_readings_apart() -> None:
    topic = [row(1), row(1, run=2, offset=5), row(1, instrument=1, offset=6)]
    assert compare(Readings.of(topic), set(), Readings.of(topic), set()).repeated == 0
    assert compare(Readings.of(topic), set(), Readings.of(topic[:1]), set()).lost == 2


@given(
    topic=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=30),
    stored=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=30),
    letters=st.sets(st.integers(0, 29), max_size=10),
)
def test_the_counts_are_those_of_plain_sets(
    topic: list[tuple[int, int]], stored: list[tuple[int, int]], letters: set[int]
) -> None:
    sent = [row(trigger, instrument=instrument, offset=at) for at, (trigger, instrument) in enumerate(topic)]
    kept = [row(trigger, instrument=instrument) for trigger, instrument in stored]
    found = compare(Readings.of(sent), set(), Readings.of(kept), {(0, offset, 0) for offset in letters})
    expected = {identity for at, identity in enumerate(topic) if at not in letters}
    assert found.lost == len(expected - set(stored))
    assert found.foreign == len(set(stored) - expected)
    assert found.repeated == len(stored) - len(set(stored))


def test_large_numbers_of_runs_are_kept_exactly() -> None:
    rows = [row(1, run=(1 << 62) - 1), row(1, run=(1 << 62) - 2, offset=2)]
    found = compare(Readings.of(rows), set(), Readings.of(rows[:1]), set())
    assert (found.lost, found.repeated) == (1, 0)
    assert Readings.of(rows).run.dtype == np.int64


def test_windows_are_compared_one_by_one() -> None:
    raw = {("a", 0): 10, ("a", 1): 10, ("b", 0): 10}
    view = {("a", 0): 9, ("a", 1): 11, ("c", 0): 2}
    found = compare_windows(raw, view, dirty=set())
    assert (found.missing, found.surplus, found.compared) == (11, 3, 4)


def test_dirty_windows_are_left_out_and_only_these() -> None:
    found = compare_windows({("a", 0): 10, ("a", 1): 10}, {("a", 0): 9, ("a", 1): 9}, dirty={("a", 0), ("z", 9)})
    assert (found.missing, found.surplus, found.compared, found.left_out) == (1, 0, 1, 1)


def test_a_reading_is_seen_once_the_count_reaches_it() -> None:
    growth = Growth()
    window = ("bpm1", 0)
    for seen_us, count in ((100, 1), (120, 1), (200, 3), (220, 3)):
        growth.look([(window, count)], seen_us)
    assert [sighting.readings for sighting in growth.sightings] == [1, 3]
    found = freshness(growth.sightings, {window: [10, 20, 30, 40]}, since_us=0)
    assert (found.seen, found.unseen) == (3, 1)
    assert found.highest_s == pytest.approx(180e-6)
    assert found.p50_s == pytest.approx(170e-6)


def test_readings_from_before_the_first_look_are_not_judged() -> None:
    growth = Growth()
    growth.look([(("bpm1", 0), 2)], 100)
    assert freshness(growth.sightings, {("bpm1", 0): [10, 50]}, since_us=40).seen == 1
    assert freshness([], {}, since_us=0).p99_s is None


def test_a_drain_waits_for_everyone_who_has_something_left() -> None:
    begins = {("bpm.v1", 0): 0, ("bpm.v1", 1): 50, ("bpm_1s", 0): 0}
    ends = {("bpm.v1", 0): 10, ("bpm.v1", 1): 50, ("bpm_1s", 0): 7}
    committed = {"strobe-x": {("bpm.v1", 0): 4}, "somebody": {("bpm.v1", 0): 10, ("bpm_1s", 0): 7}}
    found = left(begins, ends, streams={"bpm.v1"}, views={"bpm_1s"}, raw={("bpm.v1", 0): 9}, committed=committed)
    assert found == {"raw-sink": 1, "processors": 6, "view-sink": 7}
    done = {"strobe-x": {("bpm.v1", 0): 10, ("bpm_1s", 0): 7}}
    assert left(begins, ends, streams={"bpm.v1"}, views={"bpm_1s"}, raw={("bpm.v1", 0): 10}, committed=done) == {}


def test_what_changes_has_not_settled() -> None:
    settling = Settling(8.0)
    assert not settling.settled("a", 10.0)
    assert not settling.settled("b", 17.0)
    assert not settling.settled("b", 24.9)
    assert settling.settled("b", 25.0)


def test_a_stream_without_an_array_is_one_reading_per_record() -> None:
    def field(name: str, role: str) -> dict[str, object]:
        return {"name": name, "type": "long", "strobe": {"role": role}}

    roles = [("n", "trigger"), ("life", "run"), ("t", "time"), ("probe", "instrument"), ("v", "value")]
    schema = {"strobe": {"stream": "probes", "topic": "p.v1"}, "fields": [field(name, role) for name, role in roles]}
    found = stream_of(schema)
    assert (found.run, found.trigger, found.time, found.instrument, found.readings) == ("life", "n", "t", "probe", None)


def test_a_view_is_tumbling_when_its_windows_do_not_overlap() -> None:
    about = {"view": "v", "stream": "s", "generation": 1, "group": ["i"], "size_us": 60, "hop_us": 1}
    assert not view_of({"strobe": about}).tumbling
    assert view_of({"strobe": about | {"hop_us": 60}}).tumbling


@pytest.mark.parametrize(
    ("text", "comparable"),
    [
        ("SELECT count(*) AS count FROM TUMBLE(bpm, time, INTERVAL '1 second')", True),
        ("-- not WHERE\nSELECT count(*) AS count FROM TUMBLE(…)", True),
        ("SELECT count(*) AS count FROM TUMBLE(…) WHERE status = 0", False),
        ("SELECT count(top_in) AS count FROM TUMBLE(…)", False),
    ],
)
def test_only_views_that_count_every_reading_are_held_against_the_raw_table(
    tmp_path: Path,
    text: str,
    comparable: bool,
) -> None:
    file = tmp_path / "v.sql"
    file.write_text(text)
    assert counts_every_reading(file) == comparable
    assert not counts_every_reading(tmp_path / "absent.sql")
