"""Every good reading is stored once, whatever dies between Kafka and COMMIT."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import psycopg2
import pytest
from sink_database import SCHEMA_ID, START_US, Databases, batch, fresh_database, payloads, tank_stream

from schemas.batch import RawBatch
from schemas.codec import Codec
from schemas.registry import RegistryAwayError
from schemas.seen import Seen
from schemas.status import Status
from schemas.stream import Stream
from sinks.accept import accept_gap, accept_topic
from sinks.batches import LOG_APPEND_TIME, WrongTimestampError, raw_batch
from sinks.health import Report
from sinks.migrate import load_migrations, migrate
from sinks.raw import CHUNKS_MAX, Intake, cut, take_in
from sinks.raw_stage import LostRecordsError, RawStage
from sinks.raw_store import FencedError, Hold, RawStore, WrongIncarnationError
from sinks.tables import HOUR_US
from sinks.timescale import DatabaseAwayError, connect

STREAM = tank_stream()
SKEW_US = 60_000_000
TOPIC_ID = "first-life"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def codec_of(stream: Stream = STREAM) -> Codec:
    return Codec(stream, lambda _: stream.avro)


def taken_in(raw: RawBatch, seen: Seen, codec: Codec | None = None) -> Intake:
    return take_in(raw, (codec or codec_of()).decode(raw), seen, SKEW_US)


class Record:
    """A message as the client hands it out."""

    def __init__(self, offset: int, value: bytes | None, kind: int = LOG_APPEND_TIME) -> None:
        self._offset, self._value, self._kind = offset, value, kind

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._kind, (START_US + 100_000 * self._offset + 50_000) // 1000


# --- pure ---------------------------------------------------------------------------------------------------------


def test_messages_are_joined_and_those_read_again_left_out() -> None:
    raw = raw_batch("t", 0, 5, [Record(4, b"old"), Record(5, b"ab"), Record(7, None), Record(9, b"c")])
    assert (raw.first, raw.next) == (5, 10)
    assert raw.offsets.tolist() == [5, 7, 9]
    assert raw.sizes.tolist() == [2, -1, 1]
    assert bytes(raw.data) == b"abc"
    assert raw_batch("t", 0, 5, [Record(4, b"old")]).next == 5


def test_records_stamped_by_their_producer_stop_the_sink() -> None:
    with pytest.raises(WrongTimestampError, match=r"message\.timestamp\.type=LogAppendTime"):
        raw_batch("t", 0, 0, [Record(0, b"a", kind=1)])


def test_a_batch_is_judged_into_good_ones_duplicates_and_letters() -> None:
    good, ahead = payloads(STREAM, [1, 2, 2]), payloads(STREAM, [4], ahead_us=SKEW_US + 1_000_000)
    intake = taken_in(batch(0, [*good, *ahead, b"junk", b""]), Seen())
    assert len(intake.good) == 6
    assert intake.duplicates == 3
    found = [
        (row.letter.offset, row.letter.index, row.letter.reason, row.schema_id, bool(row.letter.payload))
        for row in intake.letters
    ]
    assert found == [
        (4, -1, "not-framed", None, True),
        (5, -1, "empty", None, False),
        (3, 0, "future", SCHEMA_ID, True),
        (3, 1, "future", SCHEMA_ID, False),
        (3, 2, "future", SCHEMA_ID, False),
    ]
    assert [row.instrument for row in intake.seen] == ["tank0", "tank1", "tank2"]
    assert intake.columns.trigger[intake.newest].tolist() == [2, 2, 2]


def test_records_of_many_hours_are_cut_into_batches_of_few_chunks_and_none_is_lost() -> None:
    count = 5 * CHUNKS_MAX
    values = [payloads(STREAM, [k], ahead_us=-k * HOUR_US)[0] for k in range(count)]
    raw = batch(10, [*values, b"junk"])
    decoded = codec_of().decode(raw)
    pieces = list(cut(raw, decoded, HOUR_US))
    assert [piece.first for piece, _ in pieces] == [10, *(piece.next for piece, _ in pieces[:-1])]
    assert pieces[-1][0].next == raw.next
    assert max(len(np.unique(part.columns.time_us // HOUR_US)) for _, part in pieces) <= CHUNKS_MAX
    assert [offset for _, part in pieces for offset in part.columns.offset.tolist()] == decoded.columns.offset.tolist()
    assert [letter.offset for _, part in pieces for letter in part.letters] == [10 + count]
    assert pieces[0][0].offsets.tolist() == list(range(10, 10 + CHUNKS_MAX))


# --- against the database ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def migrated_database(stack: Any) -> Iterator[Databases]:
    with fresh_database(stack) as databases:
        migrated(databases, STREAM)
        yield databases


@pytest.fixture
def database(migrated_database: Databases) -> Databases:
    """The module's database, emptied."""
    filled = ["tanks", "tanks_latest", "dead_letters"]
    filled += [f"strobe.{name}" for name in ("incarnations", "positions", "gaps", "seen", "stages")]
    with migrated_database.open() as connection, connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(filled)}")
    return migrated_database


def migrated(database: Databases, stream: Stream) -> None:
    connection = connect(database.url(), "test", relaxed=False)
    list(migrate(connection, load_migrations(), [stream], []))
    connection.close()


def store_of(database: Databases, stream: Stream = STREAM) -> RawStore:
    return RawStore(connect(database.url("writer"), "test"), stream)


def contents(database: Databases) -> list[tuple[Any, ...]]:
    return database.rows("SELECT kafka_offset, reading_index, tank, shot, level, flow FROM tanks ORDER BY 1, 2")


def written(first: int, shots: list[int]) -> list[tuple[Any, ...]]:
    return [
        (first + i, k, f"tank{k}", shot, shot + k / 8, None if (3 * i + k) % 5 == 0 else shot + k / 8)
        for i, shot in enumerate(shots)
        for k in range(3)
    ]


@pytest.mark.stack
def test_rows_latest_letters_memory_and_position_arrive_together(database: Databases) -> None:
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    assert (hold.next, hold.epoch, hold.incarnation) == (0, 1, 1)
    raw = batch(0, [*payloads(STREAM, [1, 3, 2]), b"junk"])
    hold = store.store(hold, taken_in(raw, hold.seen), raw.next)
    assert hold.next == 4
    assert contents(database) == written(0, [1, 3, 2])
    assert database.rows("SELECT tank, shot FROM tanks_latest ORDER BY 1") == [(f"tank{k}", 3) for k in range(3)]
    assert database.rows('SELECT stream, partition, "offset", index, reason, payload FROM dead_letters')[0][:5] == (
        "tanks", 0, 3, -1, "not-framed",
    )  # fmt: skip
    assert database.rows("SELECT first, next, epoch FROM strobe.positions") == [(0, 4, 1)]
    health = database.rows("SELECT instrument_id, partitions, in_two_partitions, silence_s > 0 FROM pipeline_health")
    assert sorted(health) == [(f"tank{k}", [0], False, True) for k in range(3)]
    time_us = "SELECT (extract(epoch FROM time) * 1000000)::bigint FROM tanks WHERE kafka_offset = 0 LIMIT 1"
    assert database.value(time_us) == START_US + 100_000


@pytest.mark.stack
def test_the_latest_reading_is_the_one_of_the_latest_event_time(database: Databases) -> None:
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    for first, shot in enumerate([5, 9, 7]):
        raw = batch(first, payloads(STREAM, [shot]))
        hold = store.store(hold, taken_in(raw, hold.seen), raw.next)
    assert database.rows("SELECT DISTINCT shot, kafka_offset FROM tanks_latest") == [(9, 1)]


@pytest.mark.stack
def test_duplicates_are_known_across_a_restart(database: Databases) -> None:
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    raw = batch(0, payloads(STREAM, [1, 2]))
    store.store(hold, taken_in(raw, hold.seen), raw.next)

    restarted = store_of(database)
    hold = restarted.take_over(TOPIC_ID, 0, 0)
    assert (hold.next, hold.epoch) == (2, 2)
    raw = batch(2, payloads(STREAM, [2, 3, 1]))
    intake = taken_in(raw, hold.seen)
    assert intake.duplicates == 6
    restarted.store(hold, intake, raw.next)
    assert [shot for _, _, _, shot, _, _ in contents(database)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.stack
def test_instruments_may_be_numbers(stack: Any) -> None:
    stream = tank_stream(instrument="long")
    with fresh_database(stack) as database:
        migrated(database, stream)
        for expected in ([0, 1, 2], [0, 1, 2]):  # the second time all are duplicates, told by numbers read back
            store = store_of(database, stream)
            hold = store.take_over(TOPIC_ID, 0, 0)
            raw = batch(hold.next, payloads(stream, [4]))
            store.store(hold, taken_in(raw, hold.seen, codec_of(stream)), raw.next)
            assert [tank for (tank,) in database.rows("SELECT tank FROM tanks ORDER BY 1")] == expected


@pytest.mark.stack
def test_a_zombies_batch_is_rolled_back_and_leaves_nothing(database: Databases) -> None:
    zombie = store_of(database)
    old = zombie.take_over(TOPIC_ID, 0, 0)
    owner = store_of(database)
    new = owner.take_over(TOPIC_ID, 0, 0)
    raw = batch(0, [*payloads(STREAM, [1, 2]), b"junk"])
    with pytest.raises(FencedError):
        zombie.store(old, taken_in(raw, old.seen), raw.next)
    assert contents(database) == []
    for table in ("tanks_latest", "dead_letters", "strobe.seen"):
        assert database.value(f"SELECT count(*) FROM {table}") == 0
    owner.store(new, taken_in(raw, new.seen), raw.next)
    assert contents(database) == written(0, [1, 2])


@pytest.mark.stack
def test_a_new_owner_waits_for_the_batch_that_is_being_committed_and_starts_behind_it(database: Databases) -> None:
    """The old owner is past its last statement when the new one arrives: the lock decides, nothing is stored twice."""
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    with database.open("writer") as slow, slow.cursor() as cursor:
        cursor.execute("UPDATE strobe.positions SET next = 7 WHERE epoch = %s", (hold.epoch,))
        taken: list[Hold] = []
        taker = threading.Thread(target=lambda: taken.append(store_of(database).take_over(TOPIC_ID, 0, 0)))
        taker.start()
        while not database.value(WAITING, role="superuser"):
            assert taker.is_alive()
        slow.commit()
    taker.join()
    assert (taken[0].next, taken[0].epoch) == (7, 2)


@pytest.mark.stack
def test_a_repeated_batch_is_refused(database: Databases) -> None:
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    raw = batch(0, payloads(STREAM, [1]))
    store.store(hold, taken_in(raw, hold.seen), raw.next)
    with pytest.raises(FencedError):
        store.store(hold, taken_in(raw, Seen()), raw.next)
    assert contents(database) == written(0, [1])


@pytest.mark.stack
def test_dead_letters_are_written_once(database: Databases) -> None:
    store = store_of(database)
    for _ in range(2):
        hold = store.take_over(TOPIC_ID, 0, 0)
        raw = batch(0, [b"junk", *payloads(STREAM, [9], ahead_us=2 * SKEW_US)])
        store.store(hold._replace(next=0), taken_in(raw, Seen()), raw.next)
        with database.open() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE strobe.positions SET next = 0")  # as if the position had been lost
    found = database.rows('SELECT "offset", index, reason, payload IS NULL FROM dead_letters ORDER BY 1, 2')
    assert found == [
        (0, -1, "not-framed", False),
        (1, 0, "future", False),
        (1, 1, "future", True),
        (1, 2, "future", True),
    ]


@pytest.mark.stack
def test_a_topic_made_anew_stops_the_sink_until_it_is_accepted(database: Databases) -> None:
    store = store_of(database)
    hold = store.take_over(TOPIC_ID, 0, 0)
    raw = batch(0, payloads(STREAM, [1]))
    store.store(hold, taken_in(raw, hold.seen), raw.next)
    with pytest.raises(
        WrongIncarnationError, match=r"second-life, rows were stored from first-life; .*accept-topic tanks"
    ):
        store.take_over("second-life", 0, 0)
    owner = connect(database.url(), "test")
    assert "incarnation 2" in accept_topic(owner, STREAM, "second-life")
    assert "is the one known" in accept_topic(owner, STREAM, "second-life")
    owner.close()
    hold = store.take_over("second-life", 0, 0)
    assert (hold.next, hold.incarnation) == (0, 2)
    assert hold.seen.ids == []
    store.store(hold, taken_in(raw, hold.seen), raw.next)
    assert database.rows("SELECT kafka_offset, incarnation FROM tanks WHERE tank = 'tank0' ORDER BY 2") == [
        (0, 1),
        (0, 2),
    ]


@pytest.mark.stack
def test_a_log_that_had_lost_its_beginning_is_noted_as_a_gap(database: Databases) -> None:
    hold = store_of(database).take_over(TOPIC_ID, 3, 120)
    assert hold.next == 120
    assert database.rows("SELECT partition, first, next FROM strobe.gaps") == [(3, 0, 120)]


# --- the stage ------------------------------------------------------------------------------------------------------


class Log:
    """One partition in memory, as the consumer shows it."""

    def __init__(self, values: list[bytes], *, begin: int = 0, at_once: int = 2) -> None:
        self.values, self.begin, self.at_once = values, begin, at_once
        self.assigned = frozenset({("tanks.v1", 0)})
        self.rebalances = 1
        self.trouble: str | None = None
        self.ends: dict[tuple[str, int], int] = {}
        self.at: int | None = None
        self.starts: list[int] = []
        self.on_idle = lambda: None
        self.stopping = threading.Event()

    @property
    def end(self) -> int:
        return self.begin + len(self.values)

    def gather(self, wait_s: float) -> Mapping[tuple[str, int], list[Any]]:
        del wait_s
        if self.at is None or self.at >= self.end:
            self.stopping.set()
            return {}
        some = range(self.at, min(self.end, self.at + self.at_once))
        self.at = some.stop
        return {("tanks.v1", 0): [Record(k, self.values[k - self.begin]) for k in some]}

    def start(self, offsets: dict[tuple[str, int], int]) -> None:
        self.at = offsets[("tanks.v1", 0)]
        self.starts.append(self.at)

    def hold(self) -> None:
        self.at = None

    def idle(self, wait_s: float) -> None:
        del wait_s
        self.on_idle()

    def bounds(self, place: tuple[str, int]) -> tuple[int, int]:
        assert place == ("tanks.v1", 0)
        return self.begin, self.end

    def ask_ends(self, places: list[tuple[str, int]]) -> None:
        self.watch_ends(places)

    def watch_ends(self, places: list[tuple[str, int]]) -> None:
        self.ends = dict.fromkeys(places, self.end)


def stage_of(database: Databases, log: Log, *, connect_: Any = None, codec: Any = None) -> RawStage:
    return RawStage(
        {"tanks": STREAM},
        log,
        connect_ or (lambda: connect(database.url("writer"), "raw sink under test")),
        lambda stream: codec or codec_of(stream),
        lambda _: TOPIC_ID,
        Report(Status("raw-sink"), None),
        SKEW_US,
    )


@pytest.mark.stack
def test_the_stage_stores_the_log_and_stops_when_asked(database: Databases) -> None:
    log = Log(payloads(STREAM, list(range(7))))
    stage = stage_of(database, log)
    stage.run(log.stopping)
    assert [(row[0], row[1]) for row in contents(database)] == [(o, k) for o in range(7) for k in range(3)]
    status = stage.report.status
    assert (status.records, status.rows, status.lag, status.errors) == (7, 21, 0, 0)
    assert database.rows("SELECT topic, next, log_end, lag, records FROM stage_health") == [("tanks.v1", 7, 7, 0, 7)]


class Flaky:
    """Makes connections that break before or after the COMMITs of batches, in this order."""

    def __init__(self, database: Databases, breaks: list[str]) -> None:
        self.database, self.breaks = database, breaks

    def __call__(self) -> Any:
        return Breaking(connect(self.database.url("writer"), "raw sink under test"), self)

    def kill(self, pid: int) -> None:
        with self.database.open("superuser") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


class Breaking:
    """A connection whose COMMITs may lose their answer."""

    def __init__(self, real: Any, flaky: Flaky) -> None:
        self.real, self.flaky, self.commits = real, flaky, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def commit(self) -> None:
        with self.real.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM tanks WHERE xmin::text = pg_current_xact_id()::xid::text")
            (stored,) = cursor.fetchone()
        when = self.flaky.breaks[0] if stored and self.flaky.breaks else ""
        if when == "before":
            self.flaky.breaks.pop(0)
            self.flaky.kill(self.real.info.backend_pid)
        self.real.commit()
        if when == "after":
            self.flaky.breaks.pop(0)
            self.flaky.kill(self.real.info.backend_pid)
            raise psycopg2.OperationalError("the answer to COMMIT was lost")


@pytest.mark.stack
@pytest.mark.parametrize("breaks", [["before"], ["after"], ["after", "before", "before", "after"]])
def test_connections_lost_before_or_after_commit_lose_and_double_nothing(
    database: Databases, breaks: list[str]
) -> None:
    log = Log(payloads(STREAM, list(range(9))))
    flaky = Flaky(database, list(breaks))
    stage = stage_of(database, log, connect_=flaky)
    stage.run(log.stopping)
    assert flaky.breaks == []
    assert [(row[0], row[1]) for row in contents(database)] == [(o, k) for o in range(9) for k in range(3)]
    assert stage.report.status.counters["retries"] == len(breaks)
    assert database.value("SELECT next FROM strobe.positions") == 9


@pytest.mark.stack
def test_a_database_that_is_away_is_waited_for_and_nothing_is_fetched_meanwhile(database: Databases) -> None:
    log = Log(payloads(STREAM, [1, 2]))
    away = [DatabaseAwayError("the database nowhere does not answer")] * 3

    def connect_() -> Any:
        if away:
            assert log.at is None
            raise away.pop()
        return connect(database.url("writer"), "raw sink under test")

    stage = stage_of(database, log, connect_=connect_)
    said: list[str | None] = []
    log.on_idle = lambda: said.append(stage.report.status.waiting_for)
    stage.run(log.stopping)
    assert set(said) == {"the database nowhere does not answer"}
    assert stage.report.status.waiting_for is None
    assert len(contents(database)) == 6


@pytest.mark.stack
def test_a_registry_that_is_away_makes_no_letters(database: Databases) -> None:
    log = Log(payloads(STREAM, [1, 2]))
    away = [RegistryAwayError("the schema registry does not answer")] * 2

    def schema(schema_id: int) -> dict[str, Any]:
        del schema_id
        if away:
            raise away.pop()
        return STREAM.avro

    stage = stage_of(database, log, codec=Codec(STREAM, schema))
    stage.run(log.stopping)
    assert len(contents(database)) == 6
    assert database.value("SELECT count(*) FROM dead_letters") == 0


@pytest.mark.stack
def test_records_deleted_before_they_were_stored_stop_the_sink_until_the_gap_is_accepted(database: Databases) -> None:
    log = Log(payloads(STREAM, [1, 2]))
    stage_of(database, log).run(log.stopping)
    log = Log(payloads(STREAM, [7, 8]), begin=6)
    with pytest.raises(LostRecordsError, match=r"tanks\.v1\[0\]: offsets 2 to 5 were deleted .*accept-gap tanks"):
        stage_of(database, log).run(log.stopping)
    owner = connect(database.url(), "test")
    assert list(accept_gap(owner, STREAM, TOPIC_ID, {0: 6}, {0: 8})) == [
        "tanks.v1[0]: goes on at 6 instead of 2; noted in strobe.gaps"
    ]
    assert list(accept_gap(owner, STREAM, TOPIC_ID, {0: 6}, {0: 8})) == []
    owner.close()
    stage_of(database, log).run(log.stopping)
    assert [row[0] for row in contents(database)[::3]] == [0, 1, 6, 7]
    assert database.rows("SELECT first, next FROM strobe.gaps") == [(2, 6)]


class Straying(Log):
    """Its first fetch is what the test says instead."""

    def __init__(self, values: list[bytes], strayed: Callable[[Log], dict[tuple[str, int], list[Any]]]) -> None:
        super().__init__(values)
        self._strayed: list[Callable[[Log], dict[tuple[str, int], list[Any]]]] = [strayed]

    def gather(self, wait_s: float) -> Mapping[tuple[str, int], list[Any]]:
        if self._strayed:
            return self._strayed.pop()(self)
        return super().gather(wait_s)


@pytest.mark.stack
def test_messages_beside_those_of_a_partition_that_is_not_ours_are_read_again(database: Databases) -> None:
    def strayed(log: Log) -> dict[tuple[str, int], list[Any]]:
        return {("tanks.v1", 9): [Record(70, b"")], **Log.gather(log, 0.0)}

    log = Straying(payloads(STREAM, list(range(5))), strayed)
    stage_of(database, log).run(log.stopping)
    assert [(row[0], row[1]) for row in contents(database)] == [(o, k) for o in range(5) for k in range(3)]
    assert log.starts == [0, 0]


@pytest.mark.stack
def test_a_batch_from_before_the_position_stops_the_sink(database: Databases) -> None:
    values = payloads(STREAM, [1, 2, 3])
    log = Log(values[:2])
    stage_of(database, log).run(log.stopping)
    log = Straying(values, lambda _: {("tanks.v1", 0): [Record(1, values[1]), Record(2, values[2])]})
    with pytest.raises(LostRecordsError, match=r"tanks\.v1\[0\]: offset 2 comes next, but 1 was fetched"):
        stage_of(database, log).run(log.stopping)
    assert contents(database) == written(0, [1, 2])


@pytest.mark.stack
def test_a_batch_from_behind_the_position_is_stored_with_a_warning(
    database: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    values = payloads(STREAM, [1, 2])
    log = Straying(values, lambda log: {("tanks.v1", 0): [Record(4, values[1])]} | dict(at_end(log)))
    stage_of(database, log).run(log.stopping)
    assert [row[0] for row in contents(database)] == [4, 4, 4]
    assert "tanks.v1[0]: offset 0 comes next, but the log goes on at 4" in caplog.messages


def at_end(log: Log) -> Mapping[tuple[str, int], list[Any]]:
    log.at = log.end
    return {}


@pytest.mark.stack
def test_a_log_that_was_cut_back_stops_the_sink(database: Databases) -> None:
    log = Log(payloads(STREAM, [1, 2, 3]))
    stage_of(database, log).run(log.stopping)
    shorter = Log(payloads(STREAM, [1]))
    with pytest.raises(LostRecordsError, match="stored up to 3, but the log ends at 1: it was cut back"):
        stage_of(database, shorter).run(shorter.stopping)


@pytest.mark.stack
def test_two_sinks_that_both_think_they_own_a_partition_store_everything_once(database: Databases) -> None:
    values = payloads(STREAM, list(range(40)))
    logs = [Log(values, at_once=3), Log(values, at_once=2)]
    threads = [threading.Thread(target=stage_of(database, log).run, args=(log.stopping,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(row[0], row[1]) for row in contents(database)] == [(o, k) for o in range(40) for k in range(3)]
