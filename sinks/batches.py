"""Messages of one partition joined into a raw batch. Knows no Kafka client, only what a message has."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from schemas.batch import RawBatch

LOG_APPEND_TIME = 2  # Kafka's number for "the broker stamped it"


class WrongTimestampError(RuntimeError):
    """A topic whose records carry the producers' clocks: no two stages would judge alike."""


class Message(Protocol):
    """What is needed of confluent_kafka.Message."""

    def value(self) -> bytes | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...


def raw_batch(topic: str, partition: int, first: int, messages: Sequence[Message]) -> RawBatch:
    """Join messages in offset order; `first` is the offset that was wanted. Earlier ones, read again, are left out."""
    wanted = [message for message in messages if (message.offset() or 0) >= first]
    values = [message.value() for message in wanted]
    stamps = [message.timestamp() for message in wanted]
    if any(kind != LOG_APPEND_TIME for kind, _ in stamps):
        raise WrongTimestampError(
            f"topic {topic} holds records without the broker's time; kafka-configs.sh --alter --entity-type topics"
            f" --entity-name {topic} --add-config message.timestamp.type=LogAppendTime, and begin with a new topic"
        )
    sizes = np.fromiter((-1 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = np.fromiter((message.offset() or 0 for message in wanted), np.int64, len(values))
    lengths = np.maximum(sizes, 0)
    return RawBatch(
        topic=topic,
        partition=partition,
        first=first,
        next=int(offsets[-1]) + 1 if len(offsets) else first,
        data=np.frombuffer(b"".join(value or b"" for value in values), np.uint8),
        starts=np.cumsum(lengths) - lengths,
        sizes=sizes,
        offsets=offsets,
        append_us=np.fromiter((ms * 1000 for _, ms in stamps), np.int64, len(values)),
    )
