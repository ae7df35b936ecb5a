"""Partial aggregation of one source partition: readings in, changed rows, marks and seen triggers out.

What comes out, `processors/combine.py` makes finished rows of.

One `PartialWorker` is one ownership of the partition, under a `writer` id of its own; at a revocation it is dropped
with everything in it, and the next owner restores from what was acknowledged (processors.partial_restore). What
makes it exact: a row knows up to which offset it has absorbed, so a reading that comes again is not absorbed again;
and whether a reading is a duplicate or late depends on the offset order alone. Knows neither Kafka nor the clock.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from processors.records import (
    HEARTBEAT,
    MARK,
    METADATA_BYTES_MAX,
    METADATA_FORMAT,
    NEVER_US,
    PARTIAL,
    Checkpoint,
    Flush,
    Heartbeat,
    Message,
    Partial,
    group_bytes,
    pack_heartbeat,
    pack_partial,
    partial_key,
)
from processors.seen_log import SeenLog
from processors.table import RowTable
from schemas.batch import Columns, Decoded, Int64s, RawBatch
from schemas.judge import GOOD, judge

if TYPE_CHECKING:
    from processors.plan import Plan

REPEAT_HEARTBEAT_CALLS = 10  # a heartbeat that says nothing new is sent every so many calls


class TooManyLogsError(ValueError):
    """More partitions of views than what is known of them fits into a committed position's metadata."""


class Decoder(Protocol):
    """What turns payloads into columns: schemas.codec.Codec."""

    def decode(self, raw: RawBatch) -> Decoded: ...


@dataclass(frozen=True)
class SourcePartition:
    """What a partial worker must know of its surroundings; fixed for the life of a partition's assignment."""

    topic: str
    topic_id: str  # Kafka's: a topic that was re-created under its name has another
    partition: int
    view_partitions: int  # of every <view>.partials
    max_skew_us: int
    out_of_orderness_us: int


def partials_topic(view: str) -> str:
    return f"{view}.partials"


def view_name(plan: "Plan") -> str:
    """A view's definition, by name and generation."""
    return f"{plan.name}.{plan.generation}"


def seen_topic(topic: str) -> str:
    return f"{topic}.seen"


class PartialWorker:
    """One ownership of a source partition: a Core (processors.records), driven by the worker shell."""

    def __init__(self, source: SourcePartition, plans: Sequence["Plan"], codec: Decoder, writer: bytes) -> None:
        self.source = source
        self.plans = list(plans)
        self.position = 0
        self.newest_us = NEVER_US  # the highest event time of a good reading before `position`
        self.tables = [RowTable(plan.layout) for plan in self.plans]
        self.seen_log = SeenLog(seen_topic(source.topic), source.partition, writer)
        self.seen = self.seen_log.seen
        self.counters = {"readings": 0, "duplicates": 0, "letters": 0, "late": 0, "failed": 0}
        self._codec = codec
        self._writer = writer
        self._groups: list[bytes] = []  # by the number of the instrument in `seen`
        self._marks: dict[tuple[int, int, int], int] = {}  # (view, pane, group) -> one past the latest late offset
        self._flushed_position: int | None = None  # None: nothing was ever committed, so even position 0 is to be
        self._ends: dict[str, list[int]] = {}  # by topic: one past the last record of ours known to be safe
        self._in_flight: Flush | None = None
        self._starts_us = [NEVER_US for _ in self.plans]  # by view: behind which event time it began
        self._said_us = [NEVER_US for _ in self.plans]  # the watermark last sent, by view
        self._said: tuple[int, bool] | None = None  # the position and idleness last sent to all views
        self._quiet_calls = 0

    # --- taking readings in -----------------------------------------------------------------------------------------

    def take(self, raw: RawBatch) -> None:
        """Absorb a batch that begins at `position`."""
        decoded = self._codec.decode(raw)
        columns = decoded.columns
        verdicts = judge(columns, self.seen, self.source.max_skew_us)
        good = np.flatnonzero(verdicts == GOOD)
        self.counters["letters"] += len(decoded.letters) + int(np.count_nonzero(verdicts > 1))
        self.counters["duplicates"] += int(np.count_nonzero(verdicts == 1))
        self.counters["readings"] += len(good)
        if len(good):
            groups = self.seen.numbering.of(columns)
            watermarks_us = self._watermarks_us(columns, good)
            for view, plan in enumerate(self.plans):
                self._absorb(view, plan, columns, good, groups, watermarks_us)
            self.newest_us = max(self.newest_us, int(columns.time_us[good].max()))
        self.position = raw.next

    def _watermarks_us(self, columns: Columns, good: Int64s) -> Int64s:
        """For each reading the watermark before its record: a function of the offsets before it, and nothing else."""
        times = np.full(len(columns), NEVER_US, np.int64)
        times[good] = columns.time_us[good]
        newest = np.maximum(np.maximum.accumulate(times), self.newest_us)
        first = np.searchsorted(columns.offset, columns.offset)  # the first reading of each reading's record
        before = np.where(first > 0, newest[first - 1], self.newest_us)
        return before - self.source.out_of_orderness_us

    def _absorb(
        self, view: int, plan: "Plan", columns: Columns, good: Int64s, groups: Int64s, watermarks_us: Int64s
    ) -> None:
        evaluated = plan.evaluate(columns, good)
        self.counters["failed"] += evaluated.failed
        readings = evaluated.rows
        panes = columns.time_us[readings] // plan.pane_us
        late = (panes + 1) * plan.pane_us + plan.lateness_us <= watermarks_us[readings]
        late |= panes <= self._starts_us[view] // plan.pane_us  # what came before the view began is not in its rows
        for i in np.flatnonzero(late).tolist():
            key = (view, int(panes[i]), int(groups[readings[i]]))
            self._marks[key] = max(self._marks.get(key, 0), int(columns.offset[readings[i]]) + 1)
        self.counters["late"] += int(np.count_nonzero(late))

        table = self.tables[view]
        live = np.flatnonzero(~late)
        rows = table.find_or_make(panes[live], groups[readings[live]])
        offsets = columns.offset[readings[live]]
        new = offsets >= table.absorbed[rows]  # as the row stood before this batch, so a whole record or none of it
        live, rows, offsets = live[new], rows[new], offsets[new]
        plan.layout.absorb(table.state, rows, [type(v)(v.values[live], v.valid[live]) for v in evaluated.inputs])
        np.add.at(table.n, rows, 1)
        np.maximum.at(table.absorbed, rows, offsets + 1)
        table.changed[rows] = True

    # --- handing changes out ----------------------------------------------------------------------------------------

    def flush(self) -> Flush | None:
        """What changed since the last flush; None if nothing did, or while the last one is not acknowledged."""
        if self._in_flight is not None or self.position == self._flushed_position:
            return None
        messages = self._row_messages() + self._mark_messages()
        messages += self.seen_log.messages(self.position)
        self._in_flight = Flush(messages, Checkpoint(self.position, str(self.newest_us)))
        self._flushed_position = self.position
        return self._in_flight

    def acknowledged(self, flush: Flush) -> Checkpoint:
        """What may be committed now that every message of the flush is safe."""
        if flush is not self._in_flight:
            raise ValueError("a flush was acknowledged that is not in flight")
        self._in_flight = None
        for (topic, partition), end in flush.ends.items():
            ends = self._ends.setdefault(topic, [])
            ends += [0] * (partition + 1 - len(ends))
            ends[partition] = max(ends[partition], end)
        metadata = self._metadata(int(flush.checkpoint.metadata))
        if len(metadata) > METADATA_BYTES_MAX:
            raise TooManyLogsError(
                f"{self.source.topic}: {len(self.plans)} views of {self.source.view_partitions} partitions each are"
                f" more than a position can speak for ({len(metadata)} of {METADATA_BYTES_MAX} bytes);"
                " use fewer partitions for the views (STROBE_PARTITIONS at their creation)"
            )
        return Checkpoint(flush.checkpoint.position, metadata)

    def committed(self, checkpoint: Checkpoint) -> list[Message]:
        """Forget what no later reading can touch; say how far this partition has come."""
        watermark_us: int = json.loads(checkpoint.metadata)["newest_us"] - self.source.out_of_orderness_us
        for plan, table in zip(self.plans, self.tables, strict=True):
            for pane in table.panes:
                if (pane + 1) * plan.pane_us + plan.lateness_us <= watermark_us:
                    table.drop(pane)
        due = [
            plan
            for plan, said_us in zip(self.plans, self._said_us, strict=True)
            if watermark_us // plan.pane_us > said_us // plan.pane_us  # only a pane that ends can close a window
        ]
        heartbeats = self._heartbeats(due, checkpoint.position, watermark_us, idle=False)
        return heartbeats + self.seen_log.committed(checkpoint.position)

    def heartbeat(self, *, idle: bool) -> list[Message]:
        """Say how far this partition has come. Only when all that was taken in is acknowledged and committed."""
        self._quiet_calls = 0 if (self.position, idle) != self._said else self._quiet_calls + 1
        if self._quiet_calls % REPEAT_HEARTBEAT_CALLS:
            return []
        self._said = (self.position, idle)
        watermark_us = self.newest_us - self.source.out_of_orderness_us
        return self._heartbeats(self.plans, self.position, watermark_us, idle=idle)

    def _row_messages(self) -> list[Message]:
        messages = []
        for plan, table in zip(self.plans, self.tables, strict=True):
            rows = np.flatnonzero(table.changed)
            table.changed[rows] = False
            columns = (table.pane[rows], table.absorbed[rows], table.n[rows], table.group[rows])
            for row, pane, absorbed, n, group in zip(rows.tolist(), *(c.tolist() for c in columns), strict=True):
                state = table.state[row].tobytes()
                messages.append(self._message(plan, PARTIAL, pane, absorbed, n, group, state))
        return messages

    def _mark_messages(self) -> list[Message]:
        marks, self._marks = self._marks, {}
        return [
            self._message(self.plans[view], MARK, pane, absorbed, 0, group, b"")
            for (view, pane, group), absorbed in marks.items()
        ]

    def _message(self, plan: "Plan", kind: int, pane: int, absorbed: int, n: int, group: int, state: bytes) -> Message:
        while len(self._groups) < len(self.seen.ids):
            self._groups.append(group_bytes([self.seen.ids[len(self._groups)]]))
        p, name = self.source.partition, self._groups[group]
        value = pack_partial(Partial(kind, plan.generation, p, pane, absorbed, n, self._writer, name, state))
        q = zlib.crc32(name) % self.source.view_partitions
        return Message(partials_topic(plan.name), q, partial_key(kind, pane, p, self._writer, name), value)

    def _heartbeats(self, plans: Sequence["Plan"], position: int, watermark_us: int, *, idle: bool) -> list[Message]:
        p = self.source.partition
        key = partial_key(HEARTBEAT, 0, p, self._writer, b"")
        messages = []
        for plan in plans:
            self._said_us[self.plans.index(plan)] = watermark_us
            start_us = self._starts_us[self.plans.index(plan)]
            value = pack_heartbeat(Heartbeat(plan.generation, p, position, watermark_us, start_us, idle, self._writer))
            topic = partials_topic(plan.name)
            messages += [Message(topic, q, key, value) for q in range(self.source.view_partitions)]
        return messages

    def _metadata(self, newest_us: int) -> str:
        content = {
            "format": METADATA_FORMAT,
            "topic_id": self.source.topic_id,
            "newest_us": newest_us,
            "ends": self._ends,
            "starts": {
                view_name(plan): start_us
                for plan, start_us in zip(self.plans, self._starts_us, strict=True)
                if start_us != NEVER_US
            },
            "views": [view_name(plan) for plan in self.plans],
        }
        return json.dumps(content, separators=(",", ":"))

    # --- taking over what an earlier owner left ---------------------------------------------------------------------

    def restore(self, position: int, content: dict[str, Any]) -> None:
        """Begin at a committed position, with what was committed beside it.

        A view that the position does not know begins here: what came before, it has not absorbed.
        """
        self.position = self._flushed_position = position
        self.seen_log.restore(position)
        self.newest_us = content["newest_us"]
        known = [partials_topic(plan.name) for plan in self.plans] + [seen_topic(self.source.topic)]
        self._ends = {topic: ends for topic, ends in content["ends"].items() if topic in known}
        for view, plan in enumerate(self.plans):
            begun = view_name(plan) in content["views"]
            self._starts_us[view] = content["starts"].get(view_name(plan), NEVER_US) if begun else self.newest_us

    def restore_row(self, view: int, partial: Partial, instrument: str | int) -> None:
        """Take over the newest partial of a group and pane."""
        number = self.seen.numbering.number(instrument)
        table = self.tables[view]
        (row,) = table.find_or_make(np.array([partial.pane]), np.array([number]))
        table.state[row] = np.frombuffer(partial.state, np.int64)
        table.absorbed[row], table.n[row] = partial.absorbed, partial.n
