"""Makes a combiner from its log, as its predecessor's last commit left it. Knows neither Kafka nor the clock."""

from typing import TYPE_CHECKING

import numpy as np

from processors.combine import NO_HORIZON, Combiner, RowEncoder, ViewPartition
from processors.records import LostDataError, checkpoint_content
from schemas.batch import RawBatch

if TYPE_CHECKING:
    from processors.plan import Plan

RESTORE_RECORDS = 10_000  # joined at a time


class CombineRestore:
    """A Restore (processors.records) for one partition of <view>.partials: reads it up to the committed position."""

    def __init__(
        self,
        view: ViewPartition,
        plan: "Plan",
        row_codec: RowEncoder,
        committed: tuple[int, str] | None,
        log_end: int,
    ) -> None:
        self._view, self._plan, self._row_codec = view, plan, row_codec
        self._records: list[tuple[int, bytes]] = []
        self._horizon = NO_HORIZON
        self._committed = committed is not None
        self.position = 0
        where = f"{view.partials}/{view.partition}"
        if committed is None:
            return
        self.position, metadata = committed
        if metadata:
            self._read_metadata(metadata, where)
        if self.position > log_end:
            raise LostDataError(
                f"{where}: committed position {self.position} lies beyond the log's end {log_end}: acknowledged records"
                " were lost by the broker; recompute the view from the raw table"
            )

    def wanted(self) -> list[tuple[str, int]]:
        return [(self._view.partials, self._view.partition)]

    def begin(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Up to the committed position: what follows comes through the group, and is published."""
        return dict.fromkeys(ends, self.position)

    def take(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        del topic, partition
        if value is not None and offset < self.position:
            self._records.append((offset, value))

    def finish(self, writer: bytes) -> Combiner:
        combiner = Combiner(self._view, self._plan, self._row_codec, writer)
        if not self._committed:
            return combiner
        combiner.restore(self.position, self._horizon)
        for start in range(0, len(self._records), RESTORE_RECORDS):
            combiner.take(self._batch(self._records[start : start + RESTORE_RECORDS]), restoring=True)
        combiner.restored()
        return combiner

    def _batch(self, records: list[tuple[int, bytes]]) -> RawBatch:
        sizes = np.array([len(value) for _, value in records], np.int64)
        offsets = np.array([offset for offset, _ in records], np.int64)
        data = np.frombuffer(b"".join(value for _, value in records), np.uint8)
        starts, nothing = np.cumsum(sizes) - sizes, np.zeros(len(records), np.int64)
        first, after = int(offsets[0]), int(offsets[-1]) + 1
        return RawBatch(self._view.partials, self._view.partition, first, after, data, starts, sizes, offsets, nothing)

    def _read_metadata(self, metadata: str, where: str) -> None:
        content = checkpoint_content(metadata, {"topic_id": str, "horizon": int}, where)
        if content["topic_id"] != self._view.topic_id:
            raise LostDataError(
                f"{where}: positions are those of topic id {content['topic_id']}, but the topic has"
                f" {self._view.topic_id}: it was deleted and created anew; give the view a new generation"
            )
        self._horizon = content["horizon"]
