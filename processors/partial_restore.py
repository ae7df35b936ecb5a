"""Makes a partial worker from the logs, as its predecessor's last commit left it. Knows neither Kafka nor the clock.

Order matters and is the shell's to keep: first the committed position, then the end offsets of the logs, then their
records up to there. So whatever was acknowledged before the commit is read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from processors.partial import (
    Decoder,
    PartialWorker,
    SourcePartition,
    partials_topic,
    seen_topic,
)
from processors.records import (
    NEVER_US,
    PARTIAL,
    LostDataError,
    Partial,
    SeenRow,
    checkpoint_content,
    group_values,
    partial_of_another,
    seen_key,
    unpack,
)

if TYPE_CHECKING:
    from processors.plan import Plan


class PartialRestore:
    """A Restore (processors.records) for one source partition."""

    def __init__(
        self,
        source: SourcePartition,
        plans: Sequence["Plan"],
        codec: Decoder,
        committed: tuple[int, str] | None,
        log_start: int,
        log_end: int,
    ) -> None:
        """`committed` is the group's position and metadata; the log bounds are those of the source partition.

        Raises LostDataError where the position does not fit the log: nothing may be skipped or read twice in silence.
        """
        self._source, self._plans, self._codec = source, list(plans), codec
        self._view_of = {partials_topic(plan.name): view for view, plan in enumerate(plans)}
        self._rows: dict[tuple[int, bytes, int], Partial] = {}
        self._seen: dict[str | int, tuple[SeenRow, tuple[int, bytes]]] = {}
        self._seen_keys: dict[str | int, set[bytes]] = {}
        self._newest_us = NEVER_US
        self._content: dict[str, Any] = {"newest_us": NEVER_US, "ends": {}, "starts": {}, "views": []}
        self._committed = committed is not None
        self.position = 0
        where = f"{source.topic}/{source.partition}"
        if committed is None:
            if log_start > 0:
                raise LostDataError(
                    f"{where}: no position is committed and the log begins at {log_start}, so the readings before it"
                    f" are gone; if that is right, commit {log_start} for the group with kafka-consumer-groups"
                )
            return
        self.position, metadata = committed
        if metadata:
            self._read_metadata(metadata, where)
        if not log_start <= self.position <= log_end:
            raise LostDataError(
                f"{where}: committed position {self.position} lies outside the log ({log_start} to {log_end}):"
                " records were deleted before they were read, or the topic was truncated"
            )

    def wanted(self) -> list[tuple[str, int]]:
        """Every partition of every view's partials (their key is the group, not the source), and the seen triggers."""
        views = range(self._source.view_partitions)
        return [(topic, q) for topic in self._view_of for q in views] + [
            (seen_topic(self._source.topic), self._source.partition)
        ]

    def begin(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """All is read, up to the ends as they stood after the position was.

        Raises LostDataError where a log ends before what was acknowledged when the position was committed.
        """
        for (topic, partition), end in ends.items():
            acknowledged = self._content["ends"].get(topic, [])[partition : partition + 1]
            if acknowledged and end < acknowledged[0]:
                raise LostDataError(
                    f"{topic}/{partition}: ends at {end}, but {acknowledged[0]} was acknowledged: the topic was created"
                    " anew, or the broker lost records; give its views a new generation"
                )
        return ends

    def take(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        """One record of a log that was wanted."""
        if value is None or partial_of_another(value, self._source.partition):
            return
        record = unpack(value, f"{topic}/{partition} offset {offset}")
        if isinstance(record, SeenRow):
            self._take_seen(record)
        elif isinstance(record, Partial):
            self._take_partial(self._view_of[topic], record)

    def finish(self, writer: bytes) -> PartialWorker:
        """The worker, at the committed position, with the rows that are still open and the triggers seen by then."""
        worker = PartialWorker(self._source, self._plans, self._codec, writer)
        if not self._committed:
            self._refuse_rows_without_position()
            return worker
        worker.restore(self.position, self._content)
        for instrument, (row, version) in self._seen.items():
            worker.seen_log.restore_row(row, version, self._seen_keys[instrument])
        for (view, group, _), partial in self._rows.items():
            (instrument,) = group_values(group)
            worker.restore_row(view, partial, instrument)
        return worker

    def _refuse_rows_without_position(self) -> None:
        """The first commit comes before the first row: rows without it tell of a position that was lost.

        Kafka forgets a group's positions with the topic, so this is also how a topic looks that was created anew;
        offsets then begin at 0, and the rows would pass for having absorbed what is still to come.
        """
        if self._rows or self._seen_keys:
            where = f"{self._source.topic}/{self._source.partition}"
            raise LostDataError(
                f"{where}: there are rows of its readings but no committed position:"
                " the topic was created anew, or the group's positions expired; give its views a new generation and"
                f" delete {seen_topic(self._source.topic)}"
            )

    def _take_partial(self, view: int, partial: Partial) -> None:
        plan = self._plans[view]
        mine = partial.kind == PARTIAL and partial.partition == self._source.partition
        watermark_us = self._newest_us - self._source.out_of_orderness_us
        closed = (partial.pane + 1) * plan.pane_us + plan.lateness_us <= watermark_us
        if not mine or closed or partial.generation != plan.generation:
            return
        key = (view, partial.group, partial.pane)
        known = self._rows.get(key)
        if known is None or partial.absorbed > known.absorbed:
            self._rows[key] = partial

    def _take_seen(self, row: SeenRow) -> None:
        """Keep the newest version not beyond the position: states of one prefix, whoever wrote them."""
        if row.partition != self._source.partition:
            return
        self._seen_keys.setdefault(row.instrument, set()).add(seen_key(row.partition, row.writer, row.instrument))
        settled = [version for version in row.versions if version[0] <= self.position]
        known = self._seen.get(row.instrument)
        if settled and (known is None or settled[-1][0] > known[1][0]):
            self._seen[row.instrument] = (row, settled[-1])

    def _read_metadata(self, metadata: str, where: str) -> None:
        content = checkpoint_content(
            metadata, {"topic_id": str, "newest_us": int, "ends": dict, "starts": dict, "views": list}, where
        )
        if content["topic_id"] != self._source.topic_id:
            raise LostDataError(
                f"{where}: positions are those of topic id {content['topic_id']}, but the topic has"
                f" {self._source.topic_id}: it was deleted and created anew; give its views a new generation and"
                f" delete {seen_topic(self._source.topic)}"
            )
        self._content = content
        self._newest_us = content["newest_us"]
