"""How far all source partitions of a view have come, from what their owners say. Knows no row and no clock."""

from processors.records import HEARTBEAT, NEVER_US, Heartbeat, partial_key

IDLE_HOLDS_US = 30_000_000  # three times as long as owners take to say it again


class Watermark:
    """The event time that every source partition has passed; it never falls.

    An idle partition holds nothing back, for as long as its owner keeps saying so: an owner that is down is not idle,
    and what piles up for it meanwhile must not come under the horizon. If all are idle, the furthest counts.
    """

    def __init__(self, source_partitions: int) -> None:
        self.us = NEVER_US
        self._source_partitions = source_partitions
        self._heartbeats: dict[int, Heartbeat] = {}  # the furthest of each source partition
        self._idle_until_us: dict[int, int] = {}  # by source partition, in append time of the log
        self._newest_append_us = 1

    def take(self, heartbeats: list[tuple[Heartbeat, int]], newest_append_us: int, *, restoring: bool) -> list[bytes]:
        """Note heartbeats with their append times; return the keys of those that another writer's has replaced.

        After a restore nobody is idle who has not said so since: else the watermark could be further than the
        predecessor's was, and the windows between would never be shown.
        """
        stale = []
        for heartbeat, append_us in heartbeats:
            p = heartbeat.partition
            known, older = self._heartbeats.get(p), heartbeat
            if known is None or heartbeat.position >= known.position:
                self._heartbeats[p] = heartbeat
                self._idle_until_us[p] = append_us + IDLE_HOLDS_US if heartbeat.idle and not restoring else 0
                older = known or heartbeat
            if known is not None and known.writer != heartbeat.writer:
                stale.append(partial_key(HEARTBEAT, 0, p, older.writer, b""))
        if not restoring:
            self._newest_append_us = max(self._newest_append_us, newest_append_us)
        self.us = max(self.us, self._least_us())
        return stale

    def start_us(self) -> int:
        """The event time behind which the view began, where it began last; NEVER_US: at the beginning everywhere."""
        return max((heartbeat.start_us for heartbeat in self._heartbeats.values()), default=NEVER_US)

    def _least_us(self) -> int:
        expected = max(self._source_partitions, max(self._heartbeats, default=-1) + 1)
        if len(self._heartbeats) < expected:
            return NEVER_US
        passed = {p: heartbeat.watermark_us for p, heartbeat in self._heartbeats.items()}
        busy = [us for p, us in passed.items() if self._idle_until_us[p] < self._newest_append_us]
        return min(busy) if busy else max(passed.values())
