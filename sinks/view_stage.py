"""The view sink as a stage: rows of all views from their topics into their tables.

It begins where its group committed last, or at the beginning: rows are joined, so what comes again changes nothing.
While the database is away the batch at hand is kept and tried again, and nothing further is fetched.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

from schemas.codec import UndecodableError, UnknownSchemaIdError
from schemas.registry import RegistryAwayError
from sinks.batches import Message
from sinks.consumer import Place, PositionLostError
from sinks.health import Progress, Report
from sinks.tables import View, ViewSchemaError, view_of
from sinks.timescale import DatabaseAwayError, pauses
from sinks.view_rows import Mark, Rows, farthest_marks, newest_rows, split
from sinks.view_store import ViewStores

log = logging.getLogger(__name__)

GROUP = "strobe-view-sink"
IDLE_S = 0.2  # the longest wait for a first row; it ends with the row
LINGER_S = 0.004  # for the rows that come with it: workers publish a window's rows together
COMMIT_EVERY_S = 0.5  # to Kafka; what comes again after a crash is joined again
FRAME_BYTES = 5  # of the wire format: byte 0 and the schema id

TROUBLE = (DatabaseAwayError, RegistryAwayError)


class DamagedRowError(RuntimeError):
    """A row in a view's topic that cannot be read: where, and why, in one line."""


class LostRowsError(RuntimeError):
    """Rows that are in no log and in no table: where, and what an operator can do, in one line."""


class RowDecoder(Protocol):
    """What is needed of schemas.flat.FlatCodec."""

    def decode(self, payloads: list[bytes]) -> Rows: ...


class Source(Protocol):
    """What is needed of sinks.consumer.Consumer."""

    assigned: frozenset[Place]
    rebalances: int
    trouble: str | None
    ends: dict[Place, int]

    def gather_soon(self, idle_s: float, linger_s: float) -> Mapping[Place, Sequence[Message]]: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def idle(self, wait_s: float) -> None: ...
    def watch_ends(self, places: list[Place]) -> None: ...
    def ask_ends(self, places: list[Place]) -> None: ...
    def committed(self) -> dict[Place, int]: ...
    def commit(self, offsets: dict[Place, int], *, wait: bool = False) -> None: ...


class Decoders:
    """Decoders by schema id, for schemas that are a view's."""

    def __init__(
        self,
        schema: Callable[[int], dict[str, Any]],
        decoder: Callable[[dict[str, Any], int], RowDecoder],
    ) -> None:
        self._schema = schema
        self._decoder = decoder
        self._known: dict[int, tuple[View, RowDecoder] | None] = {}

    def of(self, schema_id: int, topic: str) -> tuple[View, RowDecoder] | None:
        """None: no schema of this view, so the record is foreign."""
        if schema_id not in self._known:
            try:
                schema = self._schema(schema_id)
                view = view_of(schema, f"{topic}-value")
            except (UnknownSchemaIdError, ViewSchemaError) as error:
                log.warning("%s: %s", topic, error)
                return None
            self._known[schema_id] = (view, self._decoder(schema, schema_id)) if view else None
        found = self._known[schema_id]
        return found if found and found[0].name == topic else None


class ViewStage:
    """The loop of `python -m sinks views`; everything outside is handed in."""

    def __init__(self, consumer: Source, connect: Callable[[], Connection], decoders: Decoders, report: Report) -> None:
        self.report = report
        self._consumer = consumer
        self._connect = connect
        self._decoders = decoders
        self._stores: ViewStores | None = None
        self._uncommitted: dict[Place, int] = {}
        self._committed_at_s = 0.0
        self._rebalances = 0

    def run(self, stopping: threading.Event) -> None:
        """Until asked to stop; the batch at hand is finished first, unless the database is away."""
        while not stopping.is_set():
            try:
                batch = self._consumer.gather_soon(IDLE_S, LINGER_S)
            except PositionLostError as error:
                raise LostRowsError(
                    f"{error}: rows were deleted from the topic before they were stored, or it was made anew;"
                    " to go on with those that are left: python -m sinks accept-gap VIEW"
                ) from None
            self._take(batch, stopping)
            self._note_assigned()
            self._commit(wait=False)
            self._consumer.watch_ends(list(self.report.progress))
            self.report.status.waiting_for = self._consumer.trouble
            self._report()
        self._commit(wait=True)
        self._report(last=True)
        if self._stores is not None:
            self._stores.connection.close()

    def _take(self, batch: Mapping[Place, Sequence[Message]], stopping: threading.Event) -> None:
        pause_s = pauses()
        paused = False
        while True:
            try:
                self._join(batch)
                break
            except TROUBLE as trouble:
                if not paused:
                    self._consumer.pause()
                    paused = True
                self._wait(trouble, pause_s(), stopping)
            if stopping.is_set():
                return  # not committed, so read again
        if paused:
            self._consumer.resume()
        self._count(batch)

    def _note_assigned(self) -> None:
        """Figures of partitions that brought nothing yet."""
        if self._rebalances == self._consumer.rebalances:
            return
        self._rebalances = self._consumer.rebalances
        known = self.report.progress
        stands = self._consumer.committed()
        self.report.progress = {
            place: known.get(place) or Progress(stands.get(place, 0)) for place in self._consumer.assigned
        }

    def _join(self, batch: Mapping[Place, Sequence[Message]]) -> None:
        payloads: dict[tuple[str, int], list[bytes]] = {}
        where: dict[tuple[str, int], tuple[int, int | None]] = {}
        foreign = 0
        for (topic, partition), messages in batch.items():
            for message in messages:
                value = message.value()
                if value is None:
                    continue  # a tombstone says nothing of a row: a failed HAVING is a row that is not live
                key = (topic, int.from_bytes(value[1:FRAME_BYTES], "big"))
                if len(value) < FRAME_BYTES or value[0] != 0 or self._decoders.of(key[1], topic) is None:
                    foreign += 1
                    log.warning("%s[%d] offset %s: no row of this view; left out", topic, partition, message.offset())
                    continue
                payloads.setdefault(key, []).append(value)
                where[key] = (partition, message.offset())
        rows: list[tuple[View, int, Rows]] = []
        marks: list[tuple[View, int, Sequence[Mark]]] = []
        for (topic, schema_id), some in payloads.items():
            found = self._decoders.of(schema_id, topic)
            if found is None:
                continue
            view, decoder = found
            try:
                proper, late = split(decoder.decode(some))
            except UndecodableError as error:
                partition, offset = where[topic, schema_id]
                raise DamagedRowError(
                    f"{topic}[{partition}] up to offset {offset}: a row of ours cannot be read ({error});"
                    f" raise the view's generation, or skip it: move group {GROUP} past it"
                ) from None
            if len(proper["revision"].values):
                rows.append((view, schema_id, newest_rows(proper, view.group)))
            if len(late["revision"].values):
                marks.append((view, schema_id, farthest_marks(late, view.group)))
        stores = self._open()
        if rows or marks:
            self.report.status.rows += stores.join(rows, marks)
        self.report.status.errors += foreign

    def _open(self) -> ViewStores:
        if self._stores is None or self._stores.connection.closed:
            self._stores = ViewStores(self._connect())
        return self._stores

    def _wait(self, trouble: Exception, pause_s: float, stopping: threading.Event) -> None:
        self.report.trouble(trouble)
        log.warning("%s; next try in %.1f s", trouble, pause_s)
        if self._stores is not None:
            self._stores.connection.close()
            self._stores = None
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not stopping.is_set():
            self._consumer.idle(0.1)
            self._consumer.pause()  # what a rebalance brought meanwhile, too
            if self.report.due:
                self._consumer.ask_ends(list(self.report.progress))
            self._report()

    def _count(self, batch: Mapping[Place, Sequence[Message]]) -> None:
        now_s = time.time()
        for place, messages in batch.items():
            last = messages[-1]
            following = (last.offset() or 0) + 1
            self._uncommitted[place] = following
            one = self.report.progress.setdefault(place, Progress(following))
            one.next = following
            one.records += len(messages)
            one.freshness_s = now_s - last.timestamp()[1] / 1000
            self.report.status.records += len(messages)
            self.report.status.freshness_s = one.freshness_s

    def _commit(self, *, wait: bool) -> None:
        """To Kafka, after the database: the other way round a crash would lose rows."""
        if self._uncommitted and (wait or time.monotonic() - self._committed_at_s >= COMMIT_EVERY_S):
            ours = {place: at for place, at in self._uncommitted.items() if place in self._consumer.assigned}
            self._consumer.commit(ours, wait=wait)
            self._uncommitted.clear()
            self._committed_at_s = time.monotonic()

    def _report(self, *, last: bool = False) -> None:
        connection = self._stores.connection if self._stores else None
        self.report.write(connection, self._consumer.ends, last=last)
