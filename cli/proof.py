"""Whether every reading of a run arrived exactly once, and how soon it was seen: asks both ends, lets `verify` compare.

The topic is read anew, with another decoder, over the offsets of the run; no counter of a stage is believed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cli.database import Database
from cli.freshness import Freshness, freshness
from cli.freshness_watch import STREAM, VIEW, VIEW_US, FreshnessWatch
from cli.kafka_offsets import KafkaOffsets
from cli.overview import Overview
from cli.servers import Addresses
from cli.stream_map import StreamMap, ViewMap, streams_in, views_in
from cli.topic_reader import Names, TopicReader
from cli.verify import Comparison, Readings, Window, WindowComparison, compare, compare_windows
from cli.view_filter import counts_every_reading


@dataclass(frozen=True)
class Finding:
    """What the proof found; the keys of the JSON."""

    triggers_produced: int = 0
    readings_produced: int = 0  # copies included
    readings_stored: int = 0
    view_rows: int | None = None
    dead_letters: int = 0
    lost: int = 0
    duplicated: int = 0
    all_visible_after_s: float | None = None  # from the first event time: what a start costs; ages count from then on
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None
    freshness_highest_s: float | None = None
    freshness_readings: int = 0  # that the quantiles are over
    freshness_unseen: int = 0  # stored, but never seen in the view by the watcher
    drained: bool = True
    streams: dict[str, Any] = field(default_factory=dict)
    views: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.duplicated == 0 and self.drained

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        shown = [
            f"{self.triggers_produced:,} triggers, {self.readings_produced:,} readings in Kafka",
            f"{self.readings_stored:,} stored, {self.dead_letters:,} dead letters, {self.view_rows or 0:,} view rows",
            f"lost {self.lost}, duplicated {self.duplicated}",
        ]
        if self.freshness_p50_s is not None and self.freshness_p99_s is not None:
            shown.append(f"visible after {self.freshness_p50_s:.3f} s (half), {self.freshness_p99_s:.3f} s (99 of 100)")
        return shown


@dataclass(frozen=True)
class Span:
    """Offsets of one stream's topic: first and one past the last, by partition."""

    begins: dict[int, int]
    ends: dict[int, int]


class Proof:
    """From `begin_proof` to `end`; see there."""

    def __init__(
        self, addresses: Addresses, begins: dict[str, dict[int, int]], views: Path, instruments: int = 1
    ) -> None:
        self._addresses = addresses
        self._begins = begins
        self._views = views
        self._watch = FreshnessWatch(addresses.databases["reader"], instruments)

    @property
    def seen(self) -> bool:
        """Whether a row of this run has been visible for every instrument."""
        return self._watch.since_us is not None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def end(self, overview: Overview, *, drained: bool, settled_us: int | None = None) -> Finding:
        """Compare everything from the begin on. `settled_us`: leave out windows that end later, for they still grow."""
        self._watch.stop()
        streams, views = streams_in(self._addresses.registry), views_in(self._addresses.registry)
        offsets = KafkaOffsets(self._addresses.kafka)
        comparisons: dict[str, Comparison] = {}
        stored = letters = 0
        streams_json: dict[str, Any] = {}
        spans_us: dict[str, tuple[int, int]] = {}
        with Database(self._addresses.databases["writer"]) as database:
            positions = database.raw_positions()
            for stream in streams:
                ends = of_topic(positions if settled_us else offsets.ends([stream.topic]), stream.topic)
                begins = {p: self._begins.get(stream.topic, {}).get(p, 0) for p in ends}
                found = _compare_stream(self._addresses, database, stream, Span(begins, ends))
                if found is None:
                    continue
                comparisons[stream.name], rows, lettered, times = found
                stored, letters = stored + rows, letters + lettered
                streams_json[stream.name] = {**asdict(comparisons[stream.name]), "stored": rows, "letters": lettered}
                if times:
                    spans_us[stream.name] = times
            by_name = {stream.name: stream for stream in streams}
            views_json, windows, view_rows = self._compare_views(database, views, by_name, spans_us, settled_us)
            seen = self._freshness(database, by_name, spans_us)
        return Finding(
            triggers_produced=sum(comparison.triggers for comparison in comparisons.values()),
            readings_produced=sum(comparison.readings for comparison in comparisons.values()),
            readings_stored=stored,
            view_rows=view_rows,
            dead_letters=letters,
            lost=sum(one.lost for one in comparisons.values()) + sum(one.missing for one in windows),
            duplicated=sum(one.repeated + one.foreign for one in comparisons.values())
            + sum(one.surplus for one in windows),
            all_visible_after_s=self._all_visible_after_s(spans_us),
            freshness_p50_s=seen.p50_s,
            freshness_p99_s=seen.p99_s,
            freshness_highest_s=seen.highest_s,
            freshness_readings=seen.seen,
            freshness_unseen=seen.unseen,
            drained=drained,
            streams=streams_json,
            views=views_json,
            stages={stage.stage: asdict(stage) for stage in overview.stages},
        )

    def _compare_views(
        self,
        database: Database,
        views: list[ViewMap],
        streams: dict[str, StreamMap],
        spans_us: dict[str, tuple[int, int]],
        settled_us: int | None,
    ) -> tuple[dict[str, Any], list[WindowComparison], int | None]:
        """Per view: rows, and for a tumbling one the comparison of its counts. No views: None rows."""
        told: dict[str, Any] = {}
        compared: list[WindowComparison] = []
        rows_in_all: int | None = None
        for view in views:
            if not database.exists(view.name):
                continue
            rows_in_all = rows_in_all or 0
            if view.stream not in spans_us:
                told[view.name] = {"rows": 0}
                continue
            low_us, high_us = spans_us[view.stream]
            rows = database.row_count(view, low_us, high_us)
            rows_in_all += rows
            told[view.name] = {"rows": rows}
            if not view.tumbling or not counts_every_reading(self._views / f"{view.name}.sql"):
                continue
            begin_us, end_us = low_us - low_us % view.size_us, high_us + 1
            if settled_us is not None:
                end_us = min(end_us, settled_us - settled_us % view.size_us - view.size_us + 1)
            end_us = -(-end_us // view.size_us) * view.size_us
            windows = compare_windows(
                database.readings_by_window(streams[view.stream], view.size_us, begin_us, end_us),
                database.rows_by_window(view, begin_us, end_us),
                database.dirty_windows(view),
            )
            compared.append(windows)
            told[view.name] |= windows._asdict()
        return told, compared, rows_in_all

    def _all_visible_after_s(self, spans_us: dict[str, tuple[int, int]]) -> float | None:
        if self._watch.since_us is None or STREAM not in spans_us:
            return None
        return (self._watch.since_us - spans_us[STREAM][0]) / 1e6

    def _freshness(
        self, database: Database, streams: dict[str, StreamMap], spans_us: dict[str, tuple[int, int]]
    ) -> Freshness:
        if self._watch.since_us is None or STREAM not in spans_us or not database.exists(VIEW):
            return Freshness(None, None, None, 0, 0)
        low_us, high_us = spans_us[STREAM]
        times: dict[Window, list[int]] = database.times_by_window(
            streams[STREAM], VIEW_US, low_us - low_us % VIEW_US, high_us
        )
        return freshness(self._watch.growth.sightings, times, self._watch.since_us)


def begin_proof(addresses: Addresses, views: Path, *, instruments: int = 1, whole: bool = False) -> Proof:
    """Notes where the streams' topics end now (`whole`: begin, as far as they are kept): the run is what follows.

    `instruments`: so many are to be visible before the ages of readings count.
    """
    topics = [stream.topic for stream in streams_in(addresses.registry)]
    offsets = KafkaOffsets(addresses.kafka)
    found = offsets.begins(topics) if whole else offsets.ends(topics)
    return Proof(addresses, {topic: of_topic(found, topic) for topic in topics}, views, instruments)


def of_topic(offsets: dict[tuple[str, int], int], topic: str) -> dict[int, int]:
    return {partition: offset for (name, partition), offset in offsets.items() if name == topic}


def _compare_stream(
    addresses: Addresses, database: Database, stream: StreamMap, span: Span
) -> tuple[Comparison, int, int, tuple[int, int] | None] | None:
    """Comparison, raw rows, letters, first and last event time; None: a stream that nobody has sent to."""
    names = Names()
    topic, unreadable = TopicReader(addresses.kafka, addresses.registry, stream, names).read(span.begins, span.ends)
    life = database.topic_life(stream.name)
    if life is None or not database.exists(stream.name):
        if not len(topic) and not unreadable:
            return None
        return compare(topic, unreadable, Readings.of([]), set()), 0, 0, None
    incarnation, topic_id = life
    raw = Readings.of(
        [
            (run, trigger, names.code(instrument), partition, offset, index)
            for run, trigger, instrument, partition, offset, index in database.raw_rows(
                stream, incarnation, span.begins, span.ends
            )
        ]
    )
    letters = database.letters(topic_id, span.begins)
    times = database.event_times(stream, incarnation, span.begins)
    return compare(topic, unreadable, raw, letters), len(raw), len(letters), times
