"""The view sink as a stage: rows of all views from their topics into their tables.

It begins where its group committed last, or at the beginning: rows are joined, so what comes again changes nothing.
While the database or the registry is away the batch at hand is kept and tried again, and nothing further is fetched.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
IDLE_AWAY_S = 0.1  # between two looks while something is away
UNKNOWN_WAIT_S = 30.0  # how long a registry is waited for that does not know the schema of a row; then it is left out
UNKNOWN_IDS_MAX = 1000  # remembered; then the oldest is forgotten, and would be waited for again


class UnknownRowSchemaError(RuntimeError):
    """The registry does not know, or not yet, what a row in a view's topic was written with: ask again."""


TROUBLE = (DatabaseAwayError, RegistryAwayError, UnknownRowSchemaError)


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
    def idle(self, wait_s: float) -> Sequence[tuple[Place, Message]]: ...
    def watch_ends(self, places: list[Place]) -> None: ...
    def ask_ends(self, places: list[Place]) -> None: ...
    def committed(self) -> dict[Place, int]: ...
    def commit(self, offsets: dict[Place, int], *, wait: bool = False) -> None: ...


class Decoders:
    """Decoders by schema id, for schemas that are a view's.

    An id that the registry does not know speaks against the registry, for whatever is in a view's topic is ours: it is
    asked for UNKNOWN_WAIT_S. From then on records with that id are foreign at once, unless it knows the id after all.
    """

    def __init__(
        self,
        schema: Callable[[int], dict[str, Any]],
        decoder: Callable[[dict[str, Any], int], RowDecoder],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schema = schema
        self._decoder = decoder
        self._clock = clock
        self._known: dict[int, tuple[View, RowDecoder] | None] = {}
        self._unknown_since_s: dict[int, float] = {}  # by the clock

    def of_all(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[View, RowDecoder] | None]:
        """By topic and schema id. The registry is asked for each that it did not know, whatever it says of others."""
        found: dict[tuple[str, int], tuple[View, RowDecoder] | None] = {}
        unknown: UnknownRowSchemaError | None = None
        for topic, schema_id in keys:
            try:
                found[topic, schema_id] = self._of(schema_id, topic)
            except UnknownRowSchemaError as error:
                unknown = error
        if unknown is not None:
            raise unknown
        return found

    def _of(self, schema_id: int, topic: str) -> tuple[View, RowDecoder] | None:
        """None: no schema of this view, so the record is foreign."""
        if schema_id not in self._known:
            try:
                schema = self._schema(schema_id)
                view = view_of(schema, f"{topic}-value")
            except UnknownSchemaIdError:
                self._wait_for(schema_id, topic)
                return None
            except ViewSchemaError as error:
                log.warning("%s: %s", topic, error)
                return None
            self._known[schema_id] = (view, self._decoder(schema, schema_id)) if view else None
            self._unknown_since_s.pop(schema_id, None)
        found = self._known[schema_id]
        return found if found and found[0].name == topic else None

    def _wait_for(self, schema_id: int, topic: str) -> None:
        now_s = self._clock()
        if schema_id not in self._unknown_since_s and len(self._unknown_since_s) >= UNKNOWN_IDS_MAX:
            del self._unknown_since_s[next(iter(self._unknown_since_s))]
        if now_s - self._unknown_since_s.setdefault(schema_id, now_s) < UNKNOWN_WAIT_S:
            raise UnknownRowSchemaError(
                f"the registry does not know schema id {schema_id}, which a row in topic {topic} was written with;"
                f" asking for {UNKNOWN_WAIT_S:g} s, then such rows are left out: restore the registry's schemas"
            )
        log.error(
            "%s: the registry has not known schema id %d for %g s; rows written with it are LEFT OUT",
            topic, schema_id, UNKNOWN_WAIT_S,
        )  # fmt: skip


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
                self._take(self._consumer.gather_soon(IDLE_S, LINGER_S), stopping)
            except PositionLostError as error:
                raise LostRowsError(
                    f"{error}: rows were deleted from the topic before they were stored, or it was made anew;"
                    " to go on with those that are left: python -m sinks accept-gap VIEW"
                ) from None
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
        kept = {place: list(messages) for place, messages in batch.items()}
        while True:
            try:
                self._join(kept)
                break
            except TROUBLE as trouble:
                if not paused:
                    self._consumer.pause()
                    paused = True
                for place, message in self._wait(trouble, pause_s(), stopping):
                    kept.setdefault(place, []).append(message)
            if stopping.is_set():
                return  # not committed, so read again
        if paused:
            self._consumer.resume()
        self._count(kept)

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
        where: dict[tuple[str, int], list[tuple[int, int | None]]] = {}
        foreign = 0
        for (topic, partition), messages in batch.items():
            for message in messages:
                value = message.value()
                if value is None:
                    continue  # a tombstone says nothing of a row: a failed HAVING is a row that is not live
                if len(value) < FRAME_BYTES or value[0] != 0:
                    foreign += 1
                    _leave_out(topic, [(partition, message.offset())])
                    continue
                key = (topic, int.from_bytes(value[1:FRAME_BYTES], "big"))
                payloads.setdefault(key, []).append(value)
                where.setdefault(key, []).append((partition, message.offset()))
        rows: list[tuple[View, int, Rows]] = []
        marks: list[tuple[View, int, Sequence[Mark]]] = []
        decoders = self._decoders.of_all(payloads)
        for (topic, schema_id), some in payloads.items():
            found = decoders[topic, schema_id]
            if found is None:
                foreign += len(some)
                _leave_out(topic, where[topic, schema_id])
                continue
            view, decoder = found
            try:
                proper, late = split(decoder.decode(some))
            except UndecodableError as error:
                partition, offset = where[topic, schema_id][-1]
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

    def _wait(self, trouble: Exception, pause_s: float, stopping: threading.Event) -> list[tuple[Place, Message]]:
        """What a partition brought that came in a rebalance, before it was paused: it is not fetched again."""
        brought: list[tuple[Place, Message]] = []
        self.report.trouble(trouble)
        log.warning("%s; next try in %.1f s", trouble, pause_s)
        if self._stores is not None and isinstance(trouble, DatabaseAwayError):
            self._stores.connection.close()
            self._stores = None
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not stopping.is_set():
            brought += self._consumer.idle(IDLE_AWAY_S)
            self._consumer.pause()  # what a rebalance brought meanwhile, too
            if self.report.due:
                self._consumer.ask_ends(list(self.report.progress))
            self._report()
        return brought

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


def _leave_out(topic: str, where: Sequence[tuple[int, int | None]]) -> None:
    for partition, offset in where:
        log.warning("%s[%d] offset %s: no row of this view; left out", topic, partition, offset)
