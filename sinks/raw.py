"""What the raw sink does with a batch: which readings it stores, which are letters, what it remembers. Knows no I/O."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Columns, Decoded, Int64s, Letter, RawBatch
from schemas.judge import GOOD, REASONS, judge
from schemas.seen import Seen
from schemas.stream import Stream
from sinks.copy_rows import Cells, Words

CHUNKS_MAX = 32  # of a hypertable that one batch touches; each takes locks, and the server has a few thousand
FRAME_BYTES = 5  # of the wire format: byte 0 and the schema id


class SeenRow(NamedTuple):
    """What is remembered of an instrument in one partition."""

    instrument: str | int
    triggers: bytes
    last_time_us: int
    last_append_us: int


class LetterRow(NamedTuple):
    """A dead letter as it is stored. Of several letters of one record the first has the payload."""

    letter: Letter
    schema_id: int | None
    append_us: int


class Intake(NamedTuple):
    """A batch, judged. `good` (what is stored) and `newest` (the last of each instrument) are indices of readings."""

    columns: Columns
    good: Int64s
    newest: Int64s
    duplicates: int
    letters: list[LetterRow]
    seen: list[SeenRow]


def take_in(raw: RawBatch, decoded: Decoded, seen: Seen, max_skew_us: int) -> Intake:
    """Judge a batch. Changes `seen`: if the batch is not stored, `seen` must be read from the database again."""
    columns, letters = decoded.columns, decoded.letters
    verdicts = judge(columns, seen, max_skew_us)
    good = np.flatnonzero(verdicts == GOOD)
    dead = [*letters, *_judged(raw, columns, verdicts)]
    duplicates = len(columns) - len(good) - (len(dead) - len(letters))
    return Intake(
        columns, good, _newest(columns, good), duplicates, list(_rows(raw, dead)), _changed(columns, good, seen)
    )


def _judged(raw: RawBatch, columns: Columns, verdicts: NDArray[np.uint8]) -> Iterator[Letter]:
    """Letters of readings that were decoded and are not to be believed."""
    last = -1
    for i in np.flatnonzero(np.isin(verdicts, list(REASONS))).tolist():
        offset = int(columns.offset[i])
        payload = b"" if offset == last else _payload(raw, offset)
        last = offset
        reason, message = REASONS[int(verdicts[i])]
        yield Letter(offset, int(columns.index[i]), reason, message, payload)


def _payload(raw: RawBatch, offset: int) -> bytes:
    i = int(np.searchsorted(raw.offsets, offset))
    return raw.data[raw.starts[i] : raw.starts[i] + raw.sizes[i]].tobytes()


def _rows(raw: RawBatch, letters: list[Letter]) -> Iterator[LetterRow]:
    schema_id: int | None = None
    for letter in letters:
        head = letter.payload[:FRAME_BYTES]
        if head:  # else it is a further letter of the same record
            schema_id = int.from_bytes(head[1:], "big") if len(head) == FRAME_BYTES and head[0] == 0 else None
        elif letter.index < 0:
            schema_id = None
        yield LetterRow(letter, schema_id, int(raw.append_us[np.searchsorted(raw.offsets, letter.offset)]))


def _newest(columns: Columns, good: Int64s) -> Int64s:
    """Of each instrument the reading with the greatest (time, offset, index); the columns are in order of offset."""
    order = good[np.lexsort((columns.time_us[good], columns.instrument[good]))]
    instruments = columns.instrument[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = instruments[1:] != instruments[:-1]
    return order[last]


def _changed(columns: Columns, good: Int64s, seen: Seen) -> list[SeenRow]:
    changed = seen.take_changed()
    numbers = seen.numbering.of(columns)[good]
    last_time, last_append = (np.zeros(len(seen.ids), np.int64) for _ in range(2))
    np.maximum.at(last_time, numbers, columns.time_us[good])
    np.maximum.at(last_append, numbers, columns.append_us[good])
    return [
        SeenRow(seen.ids[number], seen.pack(number), int(last_time[number]), int(last_append[number]))
        for number in changed
    ]


def cut(raw: RawBatch, decoded: Decoded, chunk_us: int) -> Iterator[tuple[RawBatch, Decoded]]:
    """Cut a batch between records where it would touch more than CHUNKS_MAX chunks.

    Damaged records decode to any time since 1970. A transaction that makes a thousand chunks needs more locks than
    the server has, would fail, and fail again.
    """
    columns = decoded.columns
    chunks = columns.time_us // chunk_us
    if len(np.unique(chunks)) <= CHUNKS_MAX:
        yield raw, decoded
        return
    ends: list[int] = []  # offsets at which a piece ends
    touched: set[int] = set()
    for offset, chunk in zip(columns.offset.tolist(), chunks.tolist(), strict=True):
        if chunk not in touched and len(touched) >= CHUNKS_MAX and (not ends or offset > ends[-1]):
            ends.append(offset)
            touched.clear()
        touched.add(chunk)
    first = raw.first
    for end in [*ends, raw.next]:
        yield _between(raw, decoded, first, end)
        first = end


def _between(raw: RawBatch, decoded: Decoded, first: int, end: int) -> tuple[RawBatch, Decoded]:
    a, b = np.searchsorted(raw.offsets, (first, end)).tolist()
    piece = raw._replace(
        first=first,
        next=end,
        starts=raw.starts[a:b],
        sizes=raw.sizes[a:b],
        offsets=raw.offsets[a:b],
        append_us=raw.append_us[a:b],
    )
    a, b = np.searchsorted(decoded.columns.offset, (first, end)).tolist()
    c = decoded.columns
    columns = Columns(
        stream=c.stream,
        partition=c.partition,
        offset=c.offset[a:b],
        index=c.index[a:b],
        append_us=c.append_us[a:b],
        source=c.source[a:b],
        run=c.run[a:b],
        trigger=c.trigger[a:b],
        time_us=c.time_us[a:b],
        instrument=c.instrument[a:b],
        status=c.status[a:b],
        values={name: type(v)(v.values[a:b], v.valid[a:b]) for name, v in c.values.items()},
        instruments=c.instruments,
        sources=c.sources,
    )
    return piece, Decoded(columns, [letter for letter in decoded.letters if first <= letter.offset < end])


class RawCells:
    """Columns of a stream as cells of its raw table, in the order of `sinks.tables.raw_table`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._texts = stream.instrument.type == "string"
        self._instruments = Words()
        self._numbers: Int64s = np.empty(0, np.int64)
        self._sources = Words()

    def of(self, columns: Columns, chosen: Int64s, incarnation: int) -> list[Cells]:
        count = len(chosen)
        cells = [
            Cells(columns.time_us[chosen]),
            self._instrument(columns, chosen),
            Cells(columns.source[chosen], None, self._sources.follow(columns.sources)),
            Cells(columns.run[chosen]),
            Cells(columns.trigger[chosen]),
        ]
        if self.stream.status:
            cells.append(Cells(columns.status[chosen]))
        for field in self.stream.values:
            vector = columns.values[field.name]
            valid = vector.valid[chosen]
            cells.append(Cells(vector.values[chosen], None if valid.all() else valid))
        return [
            *cells,
            Cells(np.full(count, columns.partition)),
            Cells(columns.offset[chosen]),
            Cells(columns.index[chosen]),
            Cells(np.full(count, incarnation)),
        ]

    def _instrument(self, columns: Columns, chosen: Int64s) -> Cells:
        codes = columns.instrument[chosen]
        if self._texts:
            return Cells(codes, None, self._instruments.follow(columns.instruments))
        if len(self._numbers) < len(columns.instruments):
            new = np.array(columns.instruments[len(self._numbers) :], np.int64)
            self._numbers = np.concatenate((self._numbers, new))
        return Cells(self._numbers[codes])
