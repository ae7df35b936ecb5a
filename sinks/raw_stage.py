"""The raw sink as a stage: takes partitions over, stores their batches, waits when something outside is away.

Where a partition begins is always the database's to say. Whatever goes wrong outside, the answer is the same: forget
all partitions, wait, take them over again. What was not committed is then read again; what was, is not, even if the
answer to its COMMIT was lost. Nothing is kept in memory meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

from schemas.admin import BrokerAwayError as AdminBrokerAwayError
from schemas.batch import RawBatch
from schemas.codec import Codec
from schemas.registry import RegistryAwayError
from schemas.stream import Stream
from sinks.batches import Message, raw_batch
from sinks.consumer import BrokerAwayError, Place, PositionLostError
from sinks.health import Progress, Report
from sinks.raw import cut, take_in
from sinks.raw_store import FencedError, Hold, RawStore
from sinks.tables import RAW_CHUNK_US
from sinks.timescale import DatabaseAwayError, pauses, transaction

log = logging.getLogger(__name__)

GROUP = "strobe-raw-sink"
COMMIT_EVERY_S = 0.1  # a transaction costs some ms whatever it holds: ten a second and partition leave time for rows
IDLE_S = 0.1  # between two looks while something is away
TOPIC_CHECK_S = 5.0  # how often Kafka is asked whether the topic is still the same one
RETENTION_EVERY_S = 3600.0
CHUNKS_DROPPED_MAX = 50  # at once; each takes locks for some ms

TROUBLE = (
    DatabaseAwayError, RegistryAwayError, BrokerAwayError, AdminBrokerAwayError, FencedError, PositionLostError,
)  # fmt: skip


class LostRecordsError(RuntimeError):
    """The log does not hold, or did not bring, what comes next: which offsets, and the remedy, in one line."""


class Source(Protocol):
    """What is needed of sinks.consumer.Consumer."""

    assigned: frozenset[Place]
    rebalances: int
    trouble: str | None
    ends: dict[Place, int]

    def gather(self, wait_s: float) -> Mapping[Place, Sequence[Message]]: ...
    def start(self, offsets: dict[Place, int]) -> None: ...
    def hold(self) -> None: ...
    def idle(self, wait_s: float) -> object: ...  # what it brings is fetched again: every take-over says from where
    def bounds(self, place: Place) -> tuple[int, int]: ...
    def watch_ends(self, places: list[Place]) -> None: ...
    def ask_ends(self, places: list[Place]) -> None: ...


class RawStage:
    """The loop of `python -m sinks raw`; everything outside is handed in."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        consumer: Source,
        connect: Callable[[], Connection],
        codec_of: Callable[[Stream], Codec],
        topic_id: Callable[[str], str],
        report: Report,
        max_skew_us: int,
    ) -> None:
        self.report = report
        self._streams = {stream.topic: stream for stream in streams.values()}
        self._consumer = consumer
        self._connect = connect
        self._topic_id = topic_id
        self._max_skew_us = max_skew_us
        self._codecs = {topic: codec_of(stream) for topic, stream in self._streams.items()}
        self._connection: Connection | None = None
        self._stores: dict[str, RawStore] = {}
        self._holds: dict[Place, Hold] = {}
        self._taken_at = -1  # the rebalance as of which partitions were taken over
        self._pause_s = pauses()
        self._try_at_s = self._checked_at_s = 0.0
        self._retention_at_s = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        """Until asked to stop; the batch at hand is finished first."""
        while not stopping.is_set():
            if time.monotonic() < self._try_at_s:
                self._rest()
            else:
                try:
                    self._step(stopping)
                except TROUBLE as trouble:
                    self._retreat(trouble)
            self.report.write(self._connection, self._consumer.ends)
        self.report.write(self._connection, self._consumer.ends, last=True)
        if self._connection is not None:
            self._connection.close()

    def _rest(self) -> None:
        """A part of the pause between two tries: only the membership and the figures are kept alive."""
        self._consumer.idle(IDLE_S)
        if self.report.due:
            self._consumer.ask_ends(list(self.report.progress))

    def _step(self, stopping: threading.Event) -> None:
        self._open()
        if self._taken_at != self._consumer.rebalances:
            self._take_over()
        self._check_topics()
        rebalances = self._consumer.rebalances
        for place, messages in self._consumer.gather(COMMIT_EVERY_S).items():
            hold = self._holds.get(place)
            if hold is None or self._consumer.rebalances != rebalances or stopping.is_set():
                # Of no place anything may be passed over: all are taken over anew, each from its own position.
                self._taken_at = -1
                break
            self._store(place, hold, messages)
        if self._holds:
            self._consumer.watch_ends(list(self._holds))
        self._pause_s = pauses()
        self.report.status.waiting_for = self._consumer.trouble

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self._stores = {topic: RawStore(self._connection, stream) for topic, stream in self._streams.items()}
        return self._connection

    def _take_over(self) -> None:
        """Make every partition that the group gave us ours in the database, and fetch from where that stands."""
        rebalances = self._consumer.rebalances
        self._consumer.hold()
        self._holds.clear()
        ids = {topic: self._topic_id(topic) for topic, _ in self._consumer.assigned}
        for place in sorted(self._consumer.assigned):
            topic, partition = place
            log_start, _ = self._consumer.bounds(place)
            hold = self._stores[topic].take_over(ids[topic], partition, log_start)
            self._check_position(place, hold)
            self._holds[place] = hold
        self.report.progress = {place: Progress(hold.next) for place, hold in self._holds.items()}
        self._consumer.start({place: hold.next for place, hold in self._holds.items()})
        self._taken_at = rebalances
        self._checked_at_s = time.monotonic()
        if self._holds:
            log.info("took %s", ", ".join(f"{t}[{p}] at {hold.next}" for (t, p), hold in self._holds.items()))

    def _check_position(self, place: Place, hold: Hold) -> None:
        """After the taking over: a predecessor may have moved the position on until then."""
        begin, end = self._consumer.bounds(place)
        name = f"{place[0]}[{place[1]}]"
        remedy = f"to go on and note the gap: `python -m sinks accept-gap {hold.stream}`"
        if hold.next < begin:
            raise LostRecordsError(
                f"{name}: offsets {hold.next} to {begin - 1} were deleted before they were stored; {remedy}"
            )
        if hold.next > end:
            raise LostRecordsError(
                f"{name}: stored up to {hold.next}, but the log ends at {end}: it was cut back; {remedy}"
            )

    def _check_topics(self) -> None:
        """A topic made anew under our hands would go on at our offset with other records."""
        if time.monotonic() - self._checked_at_s < TOPIC_CHECK_S:
            return
        self._checked_at_s = time.monotonic()
        known = {topic: hold.topic_id for (topic, _), hold in self._holds.items()}
        if any(self._topic_id(topic) != topic_id for topic, topic_id in known.items()):
            raise PositionLostError("a topic was deleted and made anew")
        if time.monotonic() >= self._retention_at_s:
            self._retention_at_s = time.monotonic() + RETENTION_EVERY_S
            self._drop_old_chunks()

    def _drop_old_chunks(self) -> None:
        try:
            with transaction(self._open()) as cursor:
                cursor.execute("SELECT strobe.drop_old_chunks(%s)", (CHUNKS_DROPPED_MAX,))
                (dropped,) = cursor.fetchone() or (0,)
        except DatabaseAwayError as error:
            log.warning("old chunks were not dropped: %s", error)  # a lock, perhaps: in an hour again
            return
        if dropped:
            log.info("dropped %d chunks older than strobe.retention says", dropped)

    def _store(self, place: Place, hold: Hold, messages: Sequence[Message]) -> None:
        _check_first(place, hold, messages)
        raw = raw_batch(*place, hold.next, messages)
        decoded = self._codecs[place[0]].decode(raw)
        for piece, readings in cut(raw, decoded, RAW_CHUNK_US):
            intake = take_in(piece, readings, hold.seen, self._max_skew_us)
            hold = self._stores[place[0]].store(hold, intake, piece.next)
            self._holds[place] = hold
            self._count(place, piece, len(intake.good), intake.duplicates, len(intake.letters))
            if len(intake.good):
                newest_us = int(intake.columns.time_us[intake.good].max())
                self.report.status.freshness_s = time.time() - newest_us * 1e-6

    def _count(self, place: Place, raw: RawBatch, good: int, duplicates: int, letters: int) -> None:
        status, counters = self.report.status, self.report.status.counters
        status.records += len(raw.offsets)
        status.readings += good + duplicates
        status.rows += good
        status.errors += letters
        for name, more in (("duplicates", duplicates), ("dead_letters", letters), ("transactions", 1)):
            counters[name] = counters.get(name, 0) + more
        one = self.report.progress[place]
        one.next = raw.next
        one.records += len(raw.offsets)
        if len(raw.append_us):
            one.freshness_s = time.time() - int(raw.append_us[-1]) * 1e-6

    def _retreat(self, trouble: Exception) -> None:
        """Let go of everything, and say what is waited for."""
        pause_s = self._pause_s()
        self.report.trouble(trouble)
        log.warning("%s; next try in %.1f s", trouble, pause_s)
        self._holds.clear()
        self._taken_at = -1
        if isinstance(trouble, DatabaseAwayError) and self._connection is not None:
            self._connection.close()
            self._connection = None
        self._consumer.hold()
        self._try_at_s = time.monotonic() + pause_s


def _check_first(place: Place, hold: Hold, messages: Sequence[Message]) -> None:
    """A batch begins where the position stands: before it nothing was asked for, behind it something may be missing."""
    first, name = messages[0].offset() or 0, f"{place[0]}[{place[1]}]"
    if first < hold.next:
        raise LostRecordsError(
            f"{name}: offset {hold.next} comes next, but {first} was fetched: a defect of the sink or of its client;"
            " start the sink again, it goes on from the database's position"
        )
    if first > hold.next:  # in principle so where a log holds transactions or is compacted; a stream's is neither
        log.warning("%s: offset %d comes next, but the log goes on at %d", name, hold.next, first)
