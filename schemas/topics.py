"""Which topics there are, and how each is kept: a pure description. Knows no broker; `schemas/admin.py` makes it so.

What lies in a stream's topic, `schemas/codec.py` reads.

How long a stream lasts, for 120 instruments at 10 Hz (four crates, records of 30 readings):

    a record of `bpm`: 30 readings of 29 bytes, its head, key and Kafka's batch header    about 980 bytes
    40 records/s x 980 bytes = 39 kB/s                                                    3.4 GB a day
    20 GB / 3.4 GB a day                                                                  5.9 days

So there the bound in bytes is reached before the seven days. Kafka counts bytes by partition: where several crates
share a partition, that one forgets sooner (all four in one of four partitions: 5 GB, 1.5 days). The raw table keeps
what the topic forgets; a stage that was away for longer than the topic lasts stops and says so.
"""

from dataclasses import dataclass, field
from typing import Literal

from schemas.settings import Settings
from schemas.stream import Stream

STREAM_BYTES = 20 * 10**9  # of one stream's topic, all partitions together; see the arithmetic above
STREAM_SEGMENT_BYTES = 128 * 2**20  # Kafka forgets whole segments, so a partition overshoots by at most this much
RECORD_BYTES_MAX = 4 * 2**20  # largest batch of records: a crate of waveforms fits, a broker's default fetch too

VIEW_RETENTION_HOURS = 48  # rows are in the database by then; the topic is the way there and for newcomers
VIEW_BYTES = 8 * 10**9  # of one view's topic, all partitions together: 120 rows/s of 300 bytes are 3.1 GB a day

COMPACTED_SEGMENT_BYTES = 8 * 2**20  # the newest segment is never compacted: this bounds what a restart re-reads
DIRTY_RATIO_MIN = 0.2  # compact once a fifth is stale: restarts read less, the broker copies a little more
TOMBSTONE_HOURS = 1  # far longer than a restart reads, far shorter than a day of tombstones is large

HOUR_MS = 3_600_000

Growth = Literal["may be more", "exact", "follows"]


@dataclass(frozen=True)
class TopicSpec:
    """A topic as it is to be.

    `growth` says what another partition count means: a stream's topic may have more than asked for; in one whose
    partition is chosen by a hash the count is exact, since groups would move to other partitions; one that
    follows another topic partition by partition is grown to its size.
    """

    name: str
    partitions: int
    replication: int
    growth: Growth
    config: dict[str, str] = field(default_factory=dict)

    @property
    def required(self) -> dict[str, str]:
        """What an existing topic must agree on: everything else is the operator's to change."""
        return {key: self.config[key] for key in ("message.timestamp.type", "cleanup.policy")}


def stream_topic(stream: Stream, settings: Settings) -> TopicSpec:
    """Where records of a stream arrive, kept by time and by bytes, whichever ends first."""
    partitions = stream.partitions or settings.partitions
    return TopicSpec(
        stream.topic,
        partitions,
        settings.replication,
        "may be more",
        {
            **_every_topic(settings),
            "cleanup.policy": "delete",  # the key is the source: compaction would keep its last record only
            "retention.ms": str(stream.retention_hours * HOUR_MS),
            "retention.bytes": str(STREAM_BYTES // partitions),
            "segment.bytes": str(STREAM_SEGMENT_BYTES),
        },
    )


def seen_topic(stream: Stream, partitions: int, settings: Settings) -> TopicSpec:
    """`<topic>.seen`: which triggers were seen. Partition p belongs to partition p of the stream's topic."""
    return TopicSpec(f"{stream.topic}.seen", partitions, settings.replication, "follows", _compacted(settings))


def partials_topic(view: str, settings: Settings) -> TopicSpec:
    """`<view>.partials`: the states on which a restart builds. Only the combiner's tombstones delete there, never age:
    a partial that is still needed would be gone with it.
    """
    return TopicSpec(f"{view}.partials", settings.partitions, settings.replication, "exact", _compacted(settings))


def view_topic(view: str, settings: Settings) -> TopicSpec:
    """`<view>`: finished rows, each version of a row after the other. Nothing is restored from here, so age may delete:
    without it every window ever closed would stay.
    """
    kept = {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(VIEW_RETENTION_HOURS * HOUR_MS),
        "retention.bytes": str(VIEW_BYTES // settings.partitions),
    }
    return TopicSpec(view, settings.partitions, settings.replication, "exact", _compacted(settings) | kept)


def subject(topic: str) -> str:
    """The name under which the registry keeps the schemas of a topic's values."""
    return f"{topic}-value"


def _every_topic(settings: Settings) -> dict[str, str]:
    return {
        # The one clock by which event times are judged, and which replays and retention go by: the broker's.
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(RECORD_BYTES_MAX),
        # An acknowledged record outlives one broker, where there are enough of them.
        "min.insync.replicas": str(max(1, settings.replication - 1)),
    }


def _compacted(settings: Settings) -> dict[str, str]:
    return {
        **_every_topic(settings),
        "cleanup.policy": "compact",
        "segment.bytes": str(COMPACTED_SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": str(DIRTY_RATIO_MIN),
        "delete.retention.ms": str(TOMBSTONE_HOURS * HOUR_MS),
    }
