"""The raw sink's transactions: taking a partition over, and storing a batch together with the position behind it.

A batch is stored exactly once because its rows, its dead letters, the memory of seen triggers and the position are
one transaction, whose last statement moves the position only if nobody else has taken the partition and it still
stands where the batch begins. A zombie, a repeated batch, a COMMIT whose answer was lost: all find another epoch or
another position, and leave nothing behind.
"""

import logging
from typing import NamedTuple

import numpy as np
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name
from psycopg2.extensions import cursor as Cursor  # noqa: N812

from schemas.seen import Seen
from schemas.stream import Stream
from schemas.triggers import FormatError
from sinks.copy_rows import Cells, RowCopier, Words
from sinks.raw import Intake, LetterRow, RawCells, SeenRow
from sinks.staging import Staging, copy
from sinks.tables import latest_table, quoted, raw_table
from sinks.timescale import DatabaseSetupError, transaction

log = logging.getLogger(__name__)

POSITION_FORMAT = 1  # of a row of strobe.positions


class FencedError(RuntimeError):
    """Someone else has taken the partition, or the position has moved: nothing of the batch was stored."""


class WrongIncarnationError(RuntimeError):
    """The topic is not the one whose records were stored so far: both ids and the remedy, in one line."""


class Hold(NamedTuple):
    """A partition that is ours until someone with a higher epoch takes it. `next` is the offset wanted."""

    stream: str
    topic: str
    topic_id: str
    incarnation: int
    partition: int
    epoch: int
    next: int
    seen: Seen


class RawStore:
    """One stream's tables, on one connection."""

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self._cells = RawCells(stream)
        self._raw = raw_table(stream)
        self._latest = latest_table(stream)
        self._copier = RowCopier(self._raw.types)
        self._names = ", ".join(quoted(name) for name in self._raw.names)
        columns = list(zip(self._latest.names, self._latest.types, strict=True))
        self._latest_staging = Staging(f"stage_{self._latest.name}", columns)
        self._seen_staging = Staging("stage_seen", _SEEN)
        self._letter_staging = Staging("stage_letters", _LETTERS)
        self._keep_latest = self._upsert_latest()
        with transaction(connection) as cursor:
            for staging in (self._latest_staging, self._seen_staging, self._letter_staging):
                staging.make(cursor)

    def take_over(self, topic_id: str, partition: int, log_start: int) -> Hold:
        """Make the partition ours. Waits for a batch that another holder is committing, and starts behind it."""
        with transaction(self.connection) as cursor:
            incarnation = self._incarnation(cursor, topic_id)
            self._first_sight(cursor, topic_id, incarnation, partition, log_start)
            cursor.execute(
                "UPDATE strobe.positions SET epoch = epoch + 1, taken_at = now()"
                " WHERE stream = %s AND topic_id = %s AND partition = %s RETURNING epoch, next, format",
                (self.stream.name, topic_id, partition),
            )
            epoch, following, written_as = _one(cursor)
            if written_as != POSITION_FORMAT:
                raise DatabaseSetupError(
                    f"strobe.positions: {self.stream.topic}[{partition}] in format {written_as}, this version reads"
                    f" {POSITION_FORMAT}: run the version of Strobe that wrote it"
                )
            seen = self._seen(cursor, incarnation, partition)
        return Hold(self.stream.name, self.stream.topic, topic_id, incarnation, partition, epoch, following, seen)

    def store(self, hold: Hold, intake: Intake, end: int) -> Hold:
        """Store a batch that begins at `hold.next` and ends before `end`. Raises FencedError; then `hold` is void."""
        with transaction(self.connection) as cursor:
            if len(intake.good):
                cells = self._cells.of(intake.columns, intake.good, hold.incarnation)
                copy(cursor, self._raw.path, self._names, self._copier, cells)
                newest = self._cells.of(intake.columns, intake.newest, hold.incarnation)
                self._latest_staging.fill(cursor, newest)
                cursor.execute(self._keep_latest)
            if intake.letters:
                self._letter_staging.fill(cursor, _letter_cells(hold, intake.letters))
                cursor.execute(_KEEP_LETTERS)
            if intake.seen:
                self._seen_staging.fill(cursor, _seen_cells(hold, intake.seen))
                cursor.execute(_KEEP_SEEN)
            # Last, so that the lock on the position is held for the time of a COMMIT only.
            cursor.execute(
                "UPDATE strobe.positions SET next = %s"
                " WHERE stream = %s AND topic_id = %s AND partition = %s AND epoch = %s AND next = %s",
                (end, hold.stream, hold.topic_id, hold.partition, hold.epoch, hold.next),
            )
            if cursor.rowcount != 1:
                raise FencedError(f"{hold.topic}[{hold.partition}] was taken over by another sink")
        return hold._replace(next=end)

    def _incarnation(self, cursor: Cursor, topic_id: str) -> int:
        known = incarnation_of(cursor, self.stream.name)
        if known is None:
            add_incarnation(cursor, self.stream, topic_id, 1)
            known = incarnation_of(cursor, self.stream.name)
        if known is None or known[1] != topic_id:
            was = known[1] if known else "unknown"
            raise WrongIncarnationError(
                f"topic {self.stream.topic} was deleted and made anew: its id is {topic_id}, rows were stored from"
                f" {was}; to go on with the new one: `python -m sinks accept-topic {self.stream.name}`"
            )
        return known[0]

    def _first_sight(self, cursor: Cursor, topic_id: str, incarnation: int, partition: int, log_start: int) -> None:
        cursor.execute(
            "INSERT INTO strobe.positions (stream, topic_id, incarnation, partition, first, next, epoch)"
            " VALUES (%s, %s, %s, %s, %s, %s, 0) ON CONFLICT DO NOTHING",
            (self.stream.name, topic_id, incarnation, partition, log_start, log_start),
        )
        if cursor.rowcount == 1 and log_start > 0:
            note_gap(cursor, self.stream.name, topic_id, partition, 0, log_start)
            log.warning(
                "%s[%d] begins at offset %d: the records before it were gone when it was seen first (strobe.gaps)",
                self.stream.topic, partition, log_start,
            )  # fmt: skip

    def _seen(self, cursor: Cursor, incarnation: int, partition: int) -> Seen:
        cursor.execute(
            "SELECT instrument_id, triggers FROM strobe.seen WHERE stream = %s AND incarnation = %s AND partition = %s",
            (self.stream.name, incarnation, partition),
        )
        seen = Seen()
        texts = self.stream.instrument.type == "string"
        try:
            for instrument, triggers in cursor:
                seen.restore(instrument if texts else int(instrument), bytes(triggers))
        except FormatError as error:
            raise DatabaseSetupError(f"strobe.seen: {error}; run the version of Strobe that wrote it") from None
        return seen

    def _upsert_latest(self) -> str:
        order = [quoted(self.stream.time.name), "incarnation", "kafka_partition", "kafka_offset", "reading_index"]
        newer = f"({', '.join('excluded.' + name for name in order)}) > ({', '.join('t.' + name for name in order)})"
        key = quoted(self.stream.instrument.name)
        rest = [quoted(name) for name in self._latest.names if name not in self._latest.key]
        names = ", ".join(quoted(name) for name in self._latest.names)
        return (
            f"INSERT INTO {self._latest.path} AS t ({names}) SELECT {names} FROM {self._latest_staging.path}"
            f" ORDER BY {key}"  # two sinks that meet here wait for each other instead of dead-locking
            f" ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}"
            f" WHERE {newer}"
        )


def incarnation_of(cursor: Cursor, stream: str) -> tuple[int, str] | None:
    """The current life of a stream's topic: its number and Kafka's id."""
    cursor.execute(
        "SELECT incarnation, topic_id FROM strobe.incarnations WHERE stream = %s ORDER BY incarnation DESC LIMIT 1",
        (stream,),
    )
    found: tuple[int, str] | None = cursor.fetchone()
    return found


def add_incarnation(cursor: Cursor, stream: Stream, topic_id: str, incarnation: int) -> None:
    cursor.execute(
        "INSERT INTO strobe.incarnations (stream, incarnation, topic, topic_id) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (stream.name, incarnation, stream.topic, topic_id),
    )


def note_gap(cursor: Cursor, stream: str, topic_id: str, partition: int, first: int, following: int) -> None:
    cursor.execute(
        "INSERT INTO strobe.gaps (stream, topic_id, partition, first, next) VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (stream, topic_id, partition, first, following),
    )


_TIME = "timestamp with time zone"
_SEEN = [
    ("stream", "text"), ("incarnation", "smallint"), ("partition", "integer"), ("instrument_id", "text"),
    ("triggers", "bytea"), ("last_time", _TIME), ("last_append", _TIME),
]  # fmt: skip
_KEEP_SEEN = (
    "INSERT INTO strobe.seen AS t (stream, incarnation, partition, instrument_id, triggers, last_time, last_append)"
    " SELECT stream, incarnation, partition, instrument_id, triggers, last_time, last_append FROM pg_temp.stage_seen"
    " ORDER BY instrument_id"
    " ON CONFLICT (stream, incarnation, partition, instrument_id) DO UPDATE SET triggers = excluded.triggers,"
    " last_time = greatest(t.last_time, excluded.last_time),"
    " last_append = greatest(t.last_append, excluded.last_append)"
)
_LETTERS = [
    ("topic_id", "text"), ("partition", "integer"), ("offset", "bigint"), ("index", "integer"),
    ("stream", "text"), ("reason", "text"), ("message", "text"), ("schema_id", "bigint"), ("append_time", _TIME),
    ("payload", "bytea"),
]  # fmt: skip
_LETTER_NAMES = ", ".join(quoted(name) for name, _ in _LETTERS)
_KEEP_LETTERS = (
    f"INSERT INTO public.dead_letters ({_LETTER_NAMES}) SELECT {_LETTER_NAMES} FROM pg_temp.stage_letters"
    " ON CONFLICT DO NOTHING"
)


def _seen_cells(hold: Hold, rows: list[SeenRow]) -> list[Cells]:
    codes, zeros = np.arange(len(rows)), np.zeros(len(rows), np.int64)
    return [
        Cells(zeros, None, Words([hold.stream])),
        Cells(zeros + hold.incarnation),
        Cells(zeros + hold.partition),
        Cells(codes, None, Words([row.instrument for row in rows])),
        Cells(codes, None, Words([row.triggers for row in rows])),
        Cells(np.array([row.last_time_us for row in rows])),
        Cells(np.array([row.last_append_us for row in rows])),
    ]


def _letter_cells(hold: Hold, rows: list[LetterRow]) -> list[Cells]:
    codes, zeros = np.arange(len(rows)), np.zeros(len(rows), np.int64)
    letters = [row.letter for row in rows]
    first_of_record = np.array([bool(letter.payload) or letter.index < 0 for letter in letters])
    return [
        Cells(zeros, None, Words([hold.topic_id])),
        Cells(zeros + hold.partition),
        Cells(np.array([letter.offset for letter in letters])),
        Cells(np.array([letter.index for letter in letters])),
        Cells(zeros, None, Words([hold.stream])),
        Cells(codes, None, Words([letter.reason for letter in letters])),
        Cells(codes, None, Words([letter.message.replace("\0", "\\0") for letter in letters])),
        Cells(np.array([row.schema_id or 0 for row in rows]), np.array([row.schema_id is not None for row in rows])),
        Cells(np.array([row.append_us for row in rows])),
        Cells(codes, first_of_record, Words([letter.payload for letter in letters])),
    ]


def _one(cursor: Cursor) -> tuple[int, ...]:
    found = cursor.fetchone()
    if found is None:
        raise FencedError("the position of a partition was deleted while it was taken over")
    return tuple(found)
