"""When everything that was sent has gone all the way: asked from Kafka and the database, not from the stages.

Drained means: the raw tables' positions and the processors' commits have reached the end of every stream's topic, and
the view sink's commits the end of every view's topic. "To the end" means besides that the views have come to rest:
idle sources hold no window open any more, and no further row was published for a while.
"""

import time
from collections.abc import Callable, Mapping

from cli.database import Database
from cli.kafka_offsets import KafkaOffsets, Offsets
from cli.servers import Addresses
from cli.stream_map import streams_in, views_in

DRAIN_S_MAX = 60.0  # a pipeline that keeps up needs a second; one that is far behind goes on at its next start
ASK_S = 0.5  # between two looks
SETTLED_S = 8.0  # a source counts as idle after 5 s, says so within 1 s; then windows close and rows travel
GROUPS = "strobe"  # our consumer groups begin with this; a user's own group on our topics holds nobody back


def waiting(begins: Offsets, ends: Offsets, next_offsets: Offsets) -> int:
    """Records between what was taken and the end. Where nothing was taken yet, all that the log holds waits."""
    return sum(max(0, end - max(next_offsets.get(place, 0), begins.get(place, 0))) for place, end in ends.items())


def left(
    begins: Offsets,
    ends: Offsets,
    *,
    streams: set[str],
    views: set[str],
    raw: Offsets,
    committed: Mapping[str, Offsets],
) -> dict[str, int]:
    """Records that still wait, by who is to take them; empty when all is taken."""

    def of(topics: set[str], next_offsets: Offsets) -> int:
        chosen = {place: end for place, end in ends.items() if place[0] in topics}
        return waiting(begins, chosen, next_offsets)

    ours = {group: places for group, places in committed.items() if group.startswith(GROUPS)}
    taken: Offsets = {}
    for places in ours.values():
        for place, offset in places.items():
            taken[place] = max(offset, taken.get(place, 0))
    found = {
        "raw-sink": of(streams, raw),
        "processors": of(streams, taken) if views else 0,
        "view-sink": of(views, taken),
    }
    return {name: count for name, count in found.items() if count}


class Settling:
    """Whether something has stayed the same for a while."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._last: object = None
        self._since_s = 0.0

    def settled(self, value: object, now_s: float) -> bool:
        if value != self._last:
            self._last, self._since_s = value, now_s
        return now_s - self._since_s >= self._span_s


class Drain:
    """Asks at most every ASK_S; `left` says in words what is missing."""

    def __init__(self, addresses: Addresses, *, to_the_end: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.left = ""
        self._offsets = KafkaOffsets(addresses.kafka)
        self._addresses = addresses
        self._settling = Settling(SETTLED_S if to_the_end else 0.0)
        self._clock = clock
        self._asked_s = -ASK_S
        self._streams = {stream.topic for stream in streams_in(addresses.registry)}
        self._views = {view.name for view in views_in(addresses.registry)}

    def done(self) -> bool:
        if self._clock() - self._asked_s < ASK_S:
            return False
        topics = self._streams | self._views
        ends = self._offsets.ends(topics)
        with Database(self._addresses.databases["writer"]) as database:
            raw = database.raw_positions()
        missing = left(
            self._offsets.begins(topics),
            ends,
            streams=self._streams,
            views=self._views,
            raw=raw,
            committed=self._offsets.committed() if self._views else {},
        )
        settled = self._settling.settled((ends, missing), self._clock())
        self._asked_s = self._clock()
        self.left = ", ".join(f"{count:,} records wait for the {name}" for name, count in missing.items())
        if not missing and not settled:
            self.left = "windows of silent sources close"
        return not missing and settled
