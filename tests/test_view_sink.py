"""Rows of views end as the highest version of each window, in whatever order and however often they come."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sink_database import START_US, Databases, fresh_database
from test_migrate import VIEW_SCHEMA

from schemas.batch import Vector
from schemas.codec import UnknownSchemaIdError
from schemas.flat import FlatCodec
from schemas.status import Status
from sinks.health import Report
from sinks.migrate import load_migrations, migrate
from sinks.tables import View, view_of
from sinks.timescale import DatabaseAwayError, DatabaseSetupError, connect
from sinks.view_rows import Mark, Rows, chosen, farthest_marks, newest_rows, split
from sinks.view_stage import UNKNOWN_WAIT_S, DamagedRowError, Decoders, ViewStage
from sinks.view_store import ViewStores

SCHEMA_ID = 31
GROUP = ("instrument_id",)
SECOND_US = 1_000_000
Version = tuple[str, int, int, int, bool]  # instrument, window, generation, revision, closed

versions = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(1, 2), st.integers(0, 3), st.booleans()),
    max_size=12,
)


def view_named(name: str, **about: Any) -> tuple[dict[str, Any], View]:
    schema = VIEW_SCHEMA | {"strobe": VIEW_SCHEMA["strobe"] | {"view": name} | about, "name": name}
    view = view_of(schema, f"{name}-value")
    assert view is not None
    return schema, view


def rows_of(given_versions: list[Version], marks: list[tuple[str, int, int, int]] | None = None) -> Rows:
    """Rows whose outputs tell their generation and revision, then marks (instrument, pane, partition, offset)."""
    n, some = len(given_versions), marks or []
    total = n + len(some)
    starts = np.array([START_US + w * SECOND_US for _, w, *_ in [*given_versions, *some]], np.int64)
    names = np.empty(total, object)
    names[:] = [row[0] for row in [*given_versions, *some]]
    there, mark = np.ones(total, np.bool_), np.arange(total) >= n
    revision = np.array([r for *_, r, _ in given_versions] + [0] * len(some), np.int64)
    generation = np.array([g for _, _, g, _, _ in given_versions] + [1] * len(some), np.int32)
    return {
        "generation": Vector(generation, there),
        "revision": Vector(revision, there),
        "closed": Vector(np.array([c for *_, c in given_versions] + [False] * len(some), np.bool_), there),
        "live": Vector(revision != 3, there),
        "mark_partition": Vector(np.array([0] * n + [p for _, _, p, _ in some], np.int32), mark),
        "mark_offset": Vector(np.array([0] * n + [o for *_, o in some], np.int64), mark),
        "window_start": Vector(starts, there),
        "window_end": Vector(starts + SECOND_US, there),
        "instrument_id": Vector(names, there),
        "count": Vector(revision.copy(), there),
        "level_mean": Vector(generation * 10.0 + revision, (revision % 2 == 0) & ~mark),
    }


def one_by_one(given_versions: list[Version]) -> dict[tuple[str, int], tuple[int, int, bool]]:
    """The join as its definition says, one row after the other."""
    held: dict[tuple[str, int], tuple[int, int, bool]] = {}
    for name, window, generation, revision, closed in given_versions:
        g, r, c = held.get((name, window), (0, -1, False))
        if generation > g:
            held[name, window] = (generation, revision, closed)
        elif generation == g:
            held[name, window] = (g, max(r, revision), c or closed)
    return held


def held_by(rows: Rows) -> dict[tuple[str, int], tuple[int, int, bool]]:
    columns = [
        rows[name].values.tolist() for name in ("instrument_id", "window_start", "generation", "revision", "closed")
    ]
    return {(i, (s - START_US) // SECOND_US): (g, r, c) for i, s, g, r, c in zip(*columns, strict=True)}


@given(versions)
def test_a_batch_reduces_to_what_joining_row_by_row_gives(given_versions: list[Version]) -> None:
    newest = newest_rows(rows_of(given_versions), GROUP)
    assert held_by(newest) == one_by_one(given_versions)
    assert newest["level_mean"].values.tolist() == [
        g * 10.0 + r for g, r in zip(newest["generation"].values, newest["revision"].values, strict=True)
    ]


@given(versions, st.randoms(use_true_random=False), st.integers(0, 12))
def test_order_repetition_and_cuts_change_nothing(given_versions: list[Version], random: Any, at: int) -> None:
    once = held_by(newest_rows(rows_of(given_versions), GROUP))
    again = [*given_versions, *random.sample(given_versions, len(given_versions) // 2)]
    random.shuffle(again)
    assert held_by(newest_rows(rows_of(again), GROUP)) == once
    parts = [newest_rows(rows_of(part), GROUP) for part in (again[:at], again[at:])]
    both = {name: Vector(*(np.concatenate(pair) for pair in zip(parts[0][name], parts[1][name], strict=True)))
            for name in parts[0]}  # fmt: skip
    assert held_by(newest_rows(both, GROUP)) == once


def test_marks_are_told_from_rows_and_the_farthest_of_each_pane_stays() -> None:
    rows, marks = split(
        rows_of([("a", 0, 1, 1, False)], [("a", 1, 0, 7), ("a", 1, 0, 5), ("a", 1, 2, 5), ("b", 1, 0, 1)])
    )
    assert held_by(rows) == {("a", 0): (1, 1, False)}
    pane = START_US + SECOND_US
    assert farthest_marks(marks, GROUP) == [
        Mark(1, ("a",), pane, 0, 7), Mark(1, ("a",), pane, 2, 5), Mark(1, ("b",), pane, 0, 1)
    ]  # fmt: skip


# --- against the database ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def migrated_database(stack: Any) -> Iterator[Databases]:
    with fresh_database(stack) as databases:
        views = [
            view_named("tanks_1s")[1],
            view_named("tanks_1s", generation=2)[1],
            view_named("tanks_rolling", size_us=3 * SECOND_US)[1],
        ]
        connection = connect(databases.url(), "test", relaxed=False)
        list(migrate(connection, load_migrations(), [], views))
        connection.close()
        yield databases


@pytest.fixture
def database(migrated_database: Databases) -> Databases:
    with migrated_database.open() as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE strobe.tanks_1s_rows, strobe.tanks_rolling_rows, strobe.marks, strobe.stages")
    return migrated_database


def stores_of(database: Databases) -> ViewStores:
    return ViewStores(connect(database.url("writer"), "view sink under test"))


def held_in(database: Databases, view: str = "tanks_1s") -> dict[tuple[str, int], tuple[int, int, bool]]:
    found = database.rows(
        f"SELECT instrument_id, (extract(epoch FROM window_start) * 1000000)::bigint, generation, revision, closed,"
        f" count, level_mean, live FROM strobe.{view}_rows"
    )
    for *_, generation, revision, _, count, mean, live in found:
        assert (count, mean, live) == (
            revision,
            generation * 10.0 + revision if revision % 2 == 0 else None,
            revision != 3,
        )
    return {(i, (s - START_US) // SECOND_US): (g, r, c) for i, s, g, r, c, *_ in found}


@pytest.mark.stack
def test_any_order_repetition_and_cut_ends_in_the_same_table(database: Databases) -> None:
    rng = np.random.default_rng(3)
    _, view = view_named("tanks_1s")
    for _ in range(25):
        n = int(rng.integers(1, 30))
        given_versions: list[Version] = [
            ("ab"[int(rng.integers(2))], int(rng.integers(3)), int(rng.integers(1, 3)), int(rng.integers(4)),
             bool(rng.integers(2))) for _ in range(n)
        ]  # fmt: skip
        with database.open() as connection, connection.cursor() as cursor:
            cursor.execute("TRUNCATE strobe.tanks_1s_rows")
        stores = stores_of(database)
        rows = rows_of(given_versions)
        for _ in range(2):
            order = rng.permutation(n)
            for part in np.array_split(order, int(rng.integers(1, 5))):
                stores.join([(view, SCHEMA_ID, newest_rows(chosen(rows, part), GROUP))], [])
        stores.connection.close()
        assert held_in(database) == one_by_one(given_versions)


@pytest.mark.stack
def test_operators_see_live_rows_only(database: Databases) -> None:
    _, view = view_named("tanks_1s")
    stores = stores_of(database)
    stores.join([(view, SCHEMA_ID, rows_of([("a", 0, 1, 2, True), ("b", 0, 1, 3, False)]))], [])
    assert database.rows("SELECT * FROM tanks_1s", role="reader")[0][3:] == (2, 12.0, True, 2)
    assert database.value("SELECT count(*) FROM tanks_1s", role="reader") == 1


@pytest.mark.stack
def test_marks_list_every_window_that_contains_the_pane(database: Databases) -> None:
    stores = stores_of(database)
    _, view = view_named("tanks_rolling", size_us=3 * SECOND_US)
    pane = START_US + 10 * SECOND_US
    for offset in (5, 9, 7, 9):
        stores.join([], [(view, SCHEMA_ID, [Mark(1, ("a",), pane, 2, offset)])])
    found = database.rows(
        "SELECT view, instrument_id, (extract(epoch FROM window_start) * 1000000)::bigint,"
        " extract(epoch FROM window_end - window_start)::int, kafka_partition, kafka_offset"
        " FROM dirty_windows ORDER BY window_start", role="reader",
    )  # fmt: skip
    assert found == [("tanks_rolling", "a", pane - k * SECOND_US, 3, 2, 9) for k in (2, 1, 0)]


@pytest.mark.stack
def test_a_generation_that_the_database_does_not_know_is_refused_with_the_remedy(database: Databases) -> None:
    _, view = view_named("tanks_1s", generation=3)
    with pytest.raises(DatabaseSetupError, match=r"tanks_1s in generation 3 .* run `python -m sinks migrate`"):
        stores_of(database).join([(view, 99, rows_of([("a", 0, 3, 1, False)]))], [])


class Record:
    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, START_US // 1000


class Topic:
    """A view's topic in memory, as the consumer shows it; begins anew with every instance."""

    def __init__(self, values: list[bytes | None], at_once: int = 3) -> None:
        self.values, self.at_once, self.at = values, at_once, 0
        self.assigned = frozenset({("tanks_1s", 0)})
        self.rebalances = 1
        self.trouble: str | None = None
        self.ends: dict[tuple[str, int], int] = {}
        self.commits: list[int] = []
        self.paused = False
        self.on_idle: Callable[[], object] = lambda: None
        self.stopping = threading.Event()

    def gather_soon(self, idle_s: float, linger_s: float) -> Mapping[tuple[str, int], list[Any]]:
        del idle_s, linger_s
        assert not self.paused
        some = range(self.at, min(len(self.values), self.at + self.at_once))
        self.at = some.stop
        if not some:
            self.stopping.set()
            return {}
        return {("tanks_1s", 0): [Record(k, self.values[k]) for k in some]}

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def idle(self, wait_s: float) -> list[tuple[tuple[str, int], Any]]:
        assert self.paused
        assert wait_s > 0
        self.on_idle()
        return []

    def ask_ends(self, places: list[tuple[str, int]]) -> None:
        self.watch_ends(places)

    def watch_ends(self, places: list[tuple[str, int]]) -> None:
        self.ends = dict.fromkeys(places, len(self.values))

    def committed(self) -> dict[tuple[str, int], int]:
        return {}

    def commit(self, offsets: dict[tuple[str, int], int], *, wait: bool = False) -> None:
        del wait
        self.commits += offsets.values()


def schema_by_id(schema_id: int) -> dict[str, Any]:
    schemas = {SCHEMA_ID: view_named("tanks_1s")[0], 5: {"type": "record", "name": "Other", "fields": []}}
    if schema_id not in schemas:
        raise UnknownSchemaIdError(schema_id)
    return json.loads(json.dumps(schemas[schema_id]))  # type: ignore[no-any-return]


def stage_of(database: Databases, topic: Topic, connect_: Any = None, decoders: Decoders | None = None) -> ViewStage:
    return ViewStage(
        topic,
        connect_ or (lambda: connect(database.url("writer"), "view sink under test")),
        decoders or Decoders(schema_by_id, FlatCodec),
        Report(Status("view-sink"), None),
    )


def encoded(rows: Rows) -> list[bytes | None]:
    return list(FlatCodec(view_named("tanks_1s")[0], SCHEMA_ID).encode(rows))


@pytest.mark.stack
def test_the_stage_joins_rows_and_marks_and_commits_afterwards(database: Databases) -> None:
    given_versions: list[Version] = [("a", k % 3, 1, k // 3, k % 2 == 0) for k in range(9)]
    topic = Topic([*encoded(rows_of(given_versions, [("a", 1, 0, 7)])), None])
    stage = stage_of(database, topic)
    stage.run(topic.stopping)
    assert held_in(database) == one_by_one(given_versions)
    assert database.value("SELECT count(*) FROM dirty_windows") == 1
    assert topic.commits[-1] == 11
    assert stage.report.status.records == 11
    assert database.rows("SELECT next, log_end, lag FROM stage_health WHERE stage = 'view-sink'") == [(11, 11, 0)]


@pytest.mark.stack
def test_foreign_records_are_counted_and_left_out_but_a_damaged_row_of_ours_stops_the_sink(database: Databases) -> None:
    good = encoded(rows_of([("a", 0, 1, 2, True)]))
    foreign = [b"junk", b"", b"\0\0\0\0\5"]
    topic = Topic([*foreign, *good], at_once=9)
    stage = stage_of(database, topic)
    stage.run(topic.stopping)
    assert held_in(database) == {("a", 0): (1, 2, True)}
    assert stage.report.status.errors == len(foreign)
    damaged = Topic([(good[0] or b"")[:-3]])
    with pytest.raises(
        DamagedRowError, match=r"tanks_1s\[0\] up to offset 0: a row of ours cannot be read \(truncated"
    ):
        stage_of(database, damaged).run(damaged.stopping)


class Forgetful:
    """A registry that does not know the view's schema at first; each question takes it a third of the patience."""

    def __init__(self, unknown_times: int) -> None:
        self.unknown_times = unknown_times
        self.asked = 0

    def clock(self) -> float:
        return self.asked * UNKNOWN_WAIT_S / 3

    def schema(self, schema_id: int) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self.unknown_times:
            raise UnknownSchemaIdError(schema_id)
        return schema_by_id(schema_id)


@pytest.mark.stack
def test_rows_whose_schema_the_registry_does_not_know_yet_are_waited_for_and_stored(database: Databases) -> None:
    topic, registry = Topic(encoded(rows_of([("a", 0, 1, 2, True), ("b", 0, 1, 1, True)]))), Forgetful(2)
    stage = stage_of(database, topic, decoders=Decoders(registry.schema, FlatCodec, registry.clock))
    said: set[str | None] = set()
    topic.on_idle = lambda: said.add(stage.report.status.waiting_for)
    stage.run(topic.stopping)
    assert held_in(database) == {("a", 0): (1, 2, True), ("b", 0): (1, 1, True)}
    assert stage.report.status.errors == 0
    assert topic.commits[-1] == 2
    (waited_for,) = said
    assert f"does not know schema id {SCHEMA_ID}" in (waited_for or "")
    assert stage.report.status.waiting_for is None


@pytest.mark.stack
def test_rows_whose_schema_stays_unknown_are_left_out_after_a_bounded_time_and_told_as_errors(
    database: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic([b"\0\0\0\0\x09abc", *encoded(rows_of([("a", 0, 1, 2, True)])), b"\0\0\0\0\x09abc"], at_once=2)
    registry = Forgetful(0)
    stage = stage_of(database, topic, decoders=Decoders(registry.schema, FlatCodec, registry.clock))
    stage.run(topic.stopping)
    assert held_in(database) == {("a", 0): (1, 2, True)}
    assert stage.report.status.errors == 2
    assert 1 <= stage.report.status.counters["retries"] <= 3, "only the first of them is waited for"
    assert topic.commits[-1] == 3
    (first, *_) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert first == "tanks_1s: the registry has not known schema id 9 for 30 s; rows written with it are LEFT OUT"


class Gaining(Topic):
    """Gains a second partition in a rebalance while it is paused, whose first message comes before it can be paused."""

    def __init__(self, values: list[bytes | None], gained: list[bytes | None]) -> None:
        super().__init__(values)
        self.gained = gained
        self.committed_to: dict[tuple[str, int], int] = {}

    def idle(self, wait_s: float) -> list[tuple[tuple[str, int], Any]]:
        super().idle(wait_s)
        if len(self.assigned) > 1:
            return []
        self.assigned |= {("tanks_1s", 1)}
        self.rebalances += 1
        return [(("tanks_1s", 1), Record(0, self.gained[0]))]

    def gather_soon(self, idle_s: float, linger_s: float) -> Mapping[tuple[str, int], list[Any]]:
        if len(self.assigned) > 1 and len(self.gained) > 1:
            return {("tanks_1s", 1): [Record(1, self.gained.pop())]}
        return super().gather_soon(idle_s, linger_s)

    def commit(self, offsets: dict[tuple[str, int], int], *, wait: bool = False) -> None:
        del wait
        self.committed_to |= offsets


@pytest.mark.stack
def test_what_a_partition_brings_that_is_gained_while_the_database_is_away_is_stored(database: Databases) -> None:
    topic = Gaining(
        encoded(rows_of([("a", 0, 1, 2, True)])), encoded(rows_of([("b", 0, 1, 1, True), ("b", 1, 1, 1, True)]))
    )
    away = [DatabaseAwayError("the database does not answer")] * 2

    def connect_() -> Any:
        if away:
            raise away.pop()
        return connect(database.url("writer"), "view sink under test")

    stage_of(database, topic, connect_).run(topic.stopping)
    assert held_in(database) == {("a", 0): (1, 2, True), ("b", 0): (1, 1, True), ("b", 1): (1, 1, True)}
    assert topic.committed_to == {("tanks_1s", 0): 1, ("tanks_1s", 1): 2}


@pytest.mark.stack
def test_while_the_database_is_away_the_batch_is_kept_and_nothing_is_fetched(database: Databases) -> None:
    topic = Topic(encoded(rows_of([("a", 0, 1, 2, True), ("b", 0, 1, 1, True)])), at_once=1)
    away = [DatabaseAwayError("the database does not answer")] * 3
    backends: list[int] = []

    def connect_() -> Any:
        if away:
            raise away.pop()
        connection = connect(database.url("writer"), "view sink under test")
        backends.append(connection.info.backend_pid)
        if len(backends) == 1:
            with database.open("superuser") as superuser, superuser.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (backends[0],))
        return connection

    stage = stage_of(database, topic, connect_)
    stage.run(topic.stopping)
    assert stage.report.status.counters["retries"] == 4
    assert held_in(database) == {("a", 0): (1, 2, True), ("b", 0): (1, 1, True)}
    assert topic.commits[-1] == 2


@pytest.mark.stack
def test_two_sinks_at_once_do_not_lock_each_other_out(database: Databases) -> None:
    given_versions: list[Version] = [("ab"[k % 2], k % 3, 1, k // 6, False) for k in range(120)]
    values = encoded(rows_of(given_versions))
    topics = [Topic(values, at_once=7), Topic(values[::-1], at_once=5)]
    threads = [threading.Thread(target=stage_of(database, topic).run, args=(topic.stopping,)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = database.rows("SELECT DISTINCT revision FROM strobe.tanks_1s_rows")
    assert found == [(19,)]
