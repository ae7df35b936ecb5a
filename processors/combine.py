"""Combination of partials into finished rows: one partition of <view>.partials in, rows of <view> out.

What comes out, `sinks/view_rows.py` takes in on the other side of the topic.

For each group and pane the newest partial of each source partition is kept (join: any order, any repetition gives
the same map); windows are folded from that map in one named order. What makes it exact: a finished row's revision is
the number of readings in it, so readers keep the richest; and a pane is forgotten only when every source partition
has passed it, durably (`horizon`), after which a partial for it becomes a mark instead of a poorer row. Knows neither
Kafka nor the clock.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from processors.compose import compose
from processors.partial_batch import PartialBatch, read_partials
from processors.records import (
    MARK,
    METADATA_FORMAT,
    NEVER_US,
    PARTIAL,
    Checkpoint,
    Flush,
    Message,
    group_values,
    partial_key,
    row_key,
)
from processors.table import RowTable
from processors.watermark import Watermark
from processors.windows import Windows
from schemas.batch import Int64s, RawBatch, Vector

if TYPE_CHECKING:
    from processors.plan import Plan

NO_HORIZON = -(1 << 62)


class RowEncoder(Protocol):
    """What turns columns of finished rows into payloads: schemas.flat.FlatCodec."""

    def encode(self, columns: dict[str, Vector]) -> list[bytes]: ...


@dataclass(frozen=True)
class ViewPartition:
    """What a combiner must know of its surroundings; fixed for the life of a partition's assignment."""

    partials: str  # the topic it reads; it writes to the view's own name
    topic_id: str
    partition: int
    source_partitions: int


class Combiner:
    """One ownership of a partition of <view>.partials: a Core (processors.records), driven by the worker shell."""

    def __init__(self, view: ViewPartition, plan: "Plan", row_codec: RowEncoder, writer: bytes) -> None:
        self.view = view
        self.plan = plan
        self.windows = Windows(plan.pane_us, plan.size_us // plan.pane_us, plan.lateness_us)
        self.position = 0
        self.horizon = NO_HORIZON
        self.tables: dict[int, RowTable] = {}  # by source partition; groups by number
        self.counters = {"partials": 0, "rows": 0, "marks": 0}
        self._row_codec = row_codec
        self._writer = writer
        self._groups: list[bytes] = []
        self._group_number: dict[bytes, int] = {}
        self._watermark = Watermark(view.source_partitions)
        self._start = NO_HORIZON  # the last pane that is not whole because the view began in or behind it
        self._touched: set[tuple[int, int]] = set()  # (pane, group)
        self._marks: dict[tuple[int, bytes, int], int] = {}  # (pane, group, p) -> one past the offset
        self._shown_us = NEVER_US  # the watermark at the last flush
        self._keys: dict[int, set[bytes]] = {}  # of the partials in the log, by pane: deleted when forgotten
        self._stale_keys: list[bytes] = []
        self._flushed_position: int | None = None  # None: nothing was ever committed, so even position 0 is to be
        self._in_flight: Flush | None = None
        self._deletable: dict[int, list[bytes]] = {}  # by the position with which their deletion becomes safe

    @property
    def watermark_us(self) -> int:
        return self._watermark.us

    # --- taking partials in -----------------------------------------------------------------------------------------

    def take(self, raw: RawBatch, *, restoring: bool = False) -> None:
        """Join a batch that begins at `position`.

        While restoring nothing is to be published: it was, before the position was committed.
        """
        batch, heartbeats = read_partials(raw, self.plan.generation, self.plan.layout.words)
        newest_append_us = int(raw.append_us.max()) if len(raw.append_us) else 0
        self._stale_keys += self._watermark.take(heartbeats, newest_append_us, restoring=restoring)
        self._raise_start()
        self._note_keys(batch)
        joined = (batch.kind == PARTIAL) & (batch.pane > self.horizon)
        groups = self._numbers(batch.groups)
        incomplete = ~joined  # readings that no row can show any more
        for p in np.unique(batch.partition[joined]).tolist():
            newer = self._join(p, batch, groups, np.flatnonzero(joined & (batch.partition == p)))
            incomplete[newer] = batch.pane[newer] < self._whole_from()
        if not restoring:
            self.position = raw.next
            self.counters["partials"] += len(batch.pane)
            self._touched.update(zip(batch.pane[joined].tolist(), groups[joined].tolist(), strict=True))
            for i in np.flatnonzero(incomplete).tolist():
                self._mark(int(batch.pane[i]), batch.groups[i], int(batch.partition[i]), int(batch.absorbed[i]))

    def _join(self, p: int, batch: PartialBatch, groups: Int64s, chosen: Int64s) -> Int64s:
        """Keep the newest partial of each (pane, group) of one source partition; return which were newer."""
        table = self.tables.get(p)
        if table is None:
            table = self.tables[p] = RowTable(self.plan.layout)
        chosen = chosen[np.argsort(batch.absorbed[chosen], kind="stable")]
        rows = table.find_or_make(batch.pane[chosen], groups[chosen])
        newer = batch.absorbed[chosen] > table.absorbed[rows]
        chosen, rows = chosen[newer], rows[newer]
        # A row may come several times, ascending: its last is its newest. (Assigning all leaves the order to NumPy.)
        rows, from_end = np.unique(rows[::-1], return_index=True)
        chosen = chosen[len(chosen) - 1 - from_end]
        table.state[rows] = batch.states(chosen, self.plan.layout.words)
        table.absorbed[rows], table.n[rows] = batch.absorbed[chosen], batch.n[chosen]
        return chosen

    def _numbers(self, groups: list[bytes]) -> Int64s:
        for group in groups:
            if group not in self._group_number:
                self._group_number[group] = len(self._groups)
                self._groups.append(group)
        return np.array([self._group_number[group] for group in groups], np.int64)

    def _note_keys(self, batch: PartialBatch) -> None:
        columns = (batch.kind.tolist(), batch.pane.tolist(), batch.partition.tolist(), batch.writers, batch.groups)
        for kind, pane, p, writer, group in zip(*columns, strict=True):
            self._keys.setdefault(pane, set()).add(partial_key(kind, pane, p, writer, group))

    def _raise_start(self) -> None:
        """Mark what is held of windows that reach before the view's beginning."""
        start = self._watermark.start_us() // self.plan.pane_us
        if self.windows.span == 1 or start <= self._start:  # a pane of a tumbling view is whole or marked by its worker
            return
        self._start = start
        for p, table in self.tables.items():
            for pane in table.panes:
                if pane < self._whole_from():
                    groups = table.groups_of(pane)
                    rows = table.find(pane, groups)
                    for group, absorbed in zip(groups.tolist(), table.absorbed[rows].tolist(), strict=True):
                        self._mark(pane, self._groups[group], p, absorbed)

    def _whole_from(self) -> int:
        """The first pane of which every window is whole: none reaches under the horizon or before the start."""
        return max(self.horizon, self._start) + self.windows.span

    def _mark(self, pane: int, group: bytes, p: int, absorbed: int) -> None:
        key = (pane, group, p)
        self._marks[key] = max(self._marks.get(key, 0), absorbed)

    # --- handing rows out -------------------------------------------------------------------------------------------

    def flush(self) -> Flush | None:
        """The windows that changed, closed or came into sight since the last flush; None while one is in flight."""
        if self._in_flight is not None or self.position == self._flushed_position:
            return None
        messages = self._mark_messages()
        for window, groups in sorted(self._windows_to_publish().items()):
            messages += self._rows(window, np.array(sorted(groups), np.int64))
        self._touched.clear()
        self._shown_us = self.watermark_us
        self._forget()
        self._in_flight = Flush(messages, Checkpoint(self.position, self._metadata()))
        self._flushed_position = self.position
        self._deletable[self.position], self._stale_keys = self._stale_keys, []
        return self._in_flight

    def acknowledged(self, flush: Flush) -> Checkpoint:
        """What may be committed now that every row of the flush is safe."""
        if flush is not self._in_flight:
            raise ValueError("a flush was acknowledged that is not in flight")
        self._in_flight = None
        return flush.checkpoint

    def committed(self, checkpoint: Checkpoint) -> list[Message]:
        """Delete from the log what lies under the horizon that is now durable."""
        durable = [position for position in self._deletable if position <= checkpoint.position]
        keys = [key for position in durable for key in self._deletable.pop(position)]
        return [Message(self.view.partials, self.view.partition, key, None) for key in keys]

    def heartbeat(self, *, idle: bool) -> list[Message]:
        """A combiner says nothing of itself."""
        del idle
        return []

    def _windows_to_publish(self) -> dict[int, set[int]]:
        windows: dict[int, set[int]] = {}
        for pane, group in self._touched:
            for window in self.windows.of_pane(pane, self.watermark_us):
                windows.setdefault(window, set()).add(group)
        if self.watermark_us > self._shown_us:
            first, last = self.windows.next(self._shown_us), self.windows.next(self.watermark_us)
            last -= self.windows.span == 1  # a tumbling window is shown from its first reading on
            panes = {pane for table in self.tables.values() for pane in table.panes}
            for pane in panes:
                for window in range(max(pane, first), min(pane + self.windows.span - 1, last) + 1):
                    groups = windows.setdefault(window, set())
                    for table in self.tables.values():
                        groups.update(table.groups_of(pane).tolist())
        # A window that reaches under the horizon lacks the panes forgotten there: its row was published whole before.
        # One that reaches before the view's start was never whole.
        floor = max(self.horizon, self._start)
        return {window: groups for window, groups in windows.items() if self.windows.panes(window)[0] > floor}

    def _rows(self, window: int, groups: Int64s) -> list[Message]:
        n, states = compose(self.plan.layout, self.tables, self.windows, window, groups)
        start_us, end_us = self.windows.bounds_us(window)
        count = len(groups)
        names = [group_values(self._groups[group]) for group in groups.tolist()]
        columns = self._frame(count, names, start_us, end_us)
        columns["revision"] = _filled(n)
        columns["closed"] = _filled(np.full(count, self.windows.closed(window, self.watermark_us)))
        columns["live"] = _filled(np.ones(count, np.bool_))
        outputs = self.plan.layout.finish(states, np.arange(count))
        columns |= {output.name: vector for output, vector in zip(self.plan.outputs, outputs, strict=True)}
        self.counters["rows"] += count
        keys = [row_key(window, self._writer, self._groups[group]) for group in groups.tolist()]
        return self._messages(keys, columns)

    def _mark_messages(self) -> list[Message]:
        """Marks in the shape of rows: the pane's bounds, the late reading's source partition and offset."""
        marks, self._marks = self._marks, {}
        messages = []
        for (pane, group, p), after in marks.items():
            columns = self._frame(1, [group_values(group)], pane * self.plan.pane_us, (pane + 1) * self.plan.pane_us)
            columns["revision"] = _filled(np.zeros(1, np.int64))
            columns["closed"] = columns["live"] = _filled(np.zeros(1, np.bool_))
            columns["mark_partition"] = _filled(np.array([p], np.int32))
            columns["mark_offset"] = _filled(np.array([after - 1], np.int64))
            for output in self.plan.outputs:
                columns[output.name] = Vector(np.zeros(1, np.int64), np.zeros(1, np.bool_))
            key = partial_key(MARK, pane, p, self._writer, group)
            messages += self._messages([key], columns)
        self.counters["marks"] += len(marks)
        return messages

    def _frame(self, count: int, names: list[list[str | int]], start_us: int, end_us: int) -> dict[str, Vector]:
        """The columns that rows and marks share."""
        nothing = Vector(np.zeros(count, np.int64), np.zeros(count, np.bool_))
        columns = {
            "generation": _filled(np.full(count, self.plan.generation, np.int32)),
            "mark_partition": nothing,
            "mark_offset": nothing,
            "window_start": _filled(np.full(count, start_us, np.int64)),
            "window_end": _filled(np.full(count, end_us, np.int64)),
        }
        for i, column in enumerate(self.plan.group):
            columns[column.name] = _filled(np.array([name[i] for name in names], object))
        return columns

    def _messages(self, keys: list[bytes], columns: dict[str, Vector]) -> list[Message]:
        values = self._row_codec.encode(columns)
        topic, q = self.plan.name, self.view.partition
        return [Message(topic, q, key, value) for key, value in zip(keys, values, strict=True)]

    def _forget(self) -> None:
        """Raise the horizon over panes that every source partition has passed, after their rows were handed out."""
        self.horizon = max(self.horizon, self.windows.horizon(self.watermark_us))
        for table in self.tables.values():
            for pane in table.panes:
                if pane <= self.horizon:
                    table.drop(pane)
        for pane in [pane for pane in self._keys if pane <= self.horizon]:
            self._stale_keys += self._keys.pop(pane)

    def _metadata(self) -> str:
        content = {"format": METADATA_FORMAT, "topic_id": self.view.topic_id, "horizon": self.horizon}
        return json.dumps(content, separators=(",", ":"))

    # --- taking over what an earlier owner left ---------------------------------------------------------------------

    def restore(self, position: int, horizon: int) -> None:
        """Begin at a committed position; partials before it are joined with `take(…, restoring=True)`."""
        self.position, self.horizon = position, horizon

    def restored(self) -> None:
        """All before the position has been joined: what it showed, its predecessor has published."""
        self._shown_us = self.watermark_us
        self._flushed_position = self.position


def _filled(values: np.ndarray) -> Vector:
    return Vector(values, np.ones(len(values), np.bool_))
