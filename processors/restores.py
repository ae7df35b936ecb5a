"""Which core belongs to a topic, and the order in which it is restored. Knows the cores, no client's details."""

import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

from processors.combine import ViewPartition
from processors.combine_restore import CombineRestore
from processors.partial import SourcePartition, partials_topic, seen_topic
from processors.partial_restore import PartialRestore
from processors.plan import Plan
from processors.records import Core, Restore
from processors.setup import NotSetUpError, check_registered
from schemas.admin import Admin
from schemas.codec import Codec
from schemas.flat import FlatCodec
from schemas.registry import Registry
from schemas.settings import Settings
from schemas.stream import Stream
from schemas.topics import subject

US_PER_S = 1_000_000


class GivenUpError(Exception):
    """The partition went to someone else while it was being restored."""


class Reader(Protocol):
    """What is used of processors.restore_reader.RestoreReader."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]: ...

    def read(
        self,
        ends: Mapping[tuple[str, int], int],
        take: Callable[[str, int, int, bytes | None], None],
        stopped: Callable[[], bool],
    ) -> None: ...


MakeRestore = Callable[[str, int, tuple[int, str] | None, int, int], Restore]


def restore_core(
    reader: Reader,
    make_restore: MakeRestore,
    topic: str,
    partition: int,
    committed: tuple[int, str] | None,
    stopped: Callable[[], bool],
) -> Core:
    """The core of a partition, as its predecessor's last commit left it.

    `committed` was read before this call; where the logs end is read now, then the logs: so all that was acknowledged
    before that commit is seen. (The other way round a commit in between would be believed, and its rows missed.)
    """
    log_start, log_end = reader.bounds(topic, partition)
    restore = make_restore(topic, partition, committed, log_start, log_end)
    ends = {wanted: reader.bounds(*wanted)[1] for wanted in restore.wanted()}
    reader.read(restore.begin(ends), restore.take, stopped)
    if stopped():
        raise GivenUpError(f"{topic}/{partition}")
    return restore.finish(uuid.uuid4().bytes)


class Restores:
    """Makes the `Restore` of any partition of the topics that processors read."""

    def __init__(
        self,
        settings: Settings,
        streams: Mapping[str, Stream],
        plans: Mapping[str, Plan],
        admin: Admin,
        registry: Registry,
    ) -> None:
        self._settings, self._admin, self._registry = settings, admin, registry
        self._streams = {stream.topic: stream for stream in streams.values()}
        self._plans_of = {
            stream.topic: [plan for plan in plans.values() if plan.stream == stream.name] for stream in streams.values()
        }
        self._plan_of = {partials_topic(plan.name): plan for plan in plans.values()}
        self._topic_of = {plan.name: streams[plan.stream].topic for plan in plans.values()}
        # A codec's numbers for instruments are shared by all partitions of its stream: one thread drives all cores.
        self._codecs = {stream.topic: Codec(stream, registry.schema) for stream in streams.values()}
        self._row_codecs: dict[str, FlatCodec] = {}

    @property
    def source_topics(self) -> list[str]:
        return [topic for topic, plans in self._plans_of.items() if plans]

    @property
    def topics(self) -> list[str]:
        """All that processors read: streams that a view is made of, and every view's partials."""
        return [*self.source_topics, *self._plan_of]

    def check(self) -> None:
        """Raise, in one line, where `setup` has not been run or has made something else."""
        for topic in self.topics:
            self._admin.partition_count(topic)
        for plan in self._plan_of.values():
            self._row_codec(plan)

    def make(
        self, topic: str, partition: int, committed: tuple[int, str] | None, log_start: int, log_end: int
    ) -> Restore:
        topic_id = self._admin.topic_id(topic)
        plan = self._plan_of.get(topic)
        if plan is not None:
            sources = self._admin.partition_count(self._topic_of[plan.name])
            view = ViewPartition(topic, topic_id, partition, sources)
            return CombineRestore(view, plan, self._row_codec(plan), committed, log_end)
        plans = self._plans_of[topic]
        source = SourcePartition(
            topic,
            topic_id,
            partition,
            self._view_partitions(topic, partition),
            round(self._settings.max_skew_s * US_PER_S),
            round(self._settings.out_of_orderness_s * US_PER_S),
        )
        return PartialRestore(source, plans, self._codecs[topic], committed, log_start, log_end)

    def _view_partitions(self, topic: str, partition: int) -> int:
        """How many partitions every view of a stream has. Raises NotSetUpError where topics do not fit each other."""
        if partition >= self._admin.partition_count(seen_topic(topic)):
            raise NotSetUpError(
                f"{topic}/{partition}: {seen_topic(topic)} has no such partition, the stream was given more of them;"
                " run `python -m processors setup`"
            )
        counts = {plan.name: self._admin.partition_count(partials_topic(plan.name)) for plan in self._plans_of[topic]}
        if len(set(counts.values())) != 1:
            shown = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise NotSetUpError(
                f"{topic}: its views' partials have different numbers of partitions ({shown}); a view's number is fixed"
                " when its topic is created: delete the topic of the odd one and give that view a new generation"
            )
        return next(iter(counts.values()))

    def _row_codec(self, plan: Plan) -> FlatCodec:
        """The codec of a view's rows, under the number that `setup` registered."""
        if plan.name not in self._row_codecs:
            schema_id, schema = self._registry.latest(subject(plan.name))
            check_registered(plan, schema)
            self._row_codecs[plan.name] = FlatCodec(schema, schema_id)
        return self._row_codecs[plan.name]
