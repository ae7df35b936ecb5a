"""Reads whole logs for restores. Joins no group, commits nothing, knows no record's meaning."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

Log = tuple[str, int]  # topic and partition
Take = Callable[[str, int, int, bytes | None], None]

REQUEST_S = 10.0  # for one answer of the broker
BATCH_MESSAGES = 10_000
BATCH_WAIT_S = 0.02  # the client waits so long for a full batch, also where no more will come
QUIET_S_MAX = 30.0  # without a record or an end of a log

CONFIG: dict[str, Any] = {
    "group.id": "strobe-restores",  # the client asks for one; it is never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # compaction may have taken the record before the end
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,  # at the end of a log nothing is to be waited for
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16_384,
    "log_level": 0,
}


class BrokerTroubleError(RuntimeError):
    """The broker did not answer: to be tried again."""


class RestoreReader:
    """What a restore asks of the broker, from one thread. Close it after use.

    For example::

        with RestoreReader(settings.kafka) as reader:
            ends = {log: reader.bounds(*log)[1] for log in logs}
            reader.read(ends, take, stopped)
    """

    def __init__(self, kafka: str) -> None:
        self._consumer = Consumer({**CONFIG, "bootstrap.servers": kafka})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset kept, and one past the last."""
        try:
            bounds = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_S)
        except KafkaException as error:
            raise _trouble(error.args[0], topic, partition) from error
        if bounds is None:
            raise BrokerTroubleError(f"{topic}/{partition}: no answer within {REQUEST_S:g} s")
        return int(bounds[0]), int(bounds[1])

    def read(self, ends: Mapping[Log, int], take: Take, stopped: Callable[[], bool]) -> None:
        """Hand over the records of each log from its beginning to before its end; of one log in order.

        Returns early once `stopped` says so.
        """
        missing = {log: end for log, end in ends.items() if end > 0}
        self._consumer.assign([TopicPartition(*log, OFFSET_BEGINNING) for log in missing])
        try:
            heard = time.monotonic()
            while missing and not stopped():
                messages = self._consumer.consume(BATCH_MESSAGES, timeout=BATCH_WAIT_S)
                heard = time.monotonic() if messages else heard
                if time.monotonic() - heard > QUIET_S_MAX:
                    raise BrokerTroubleError(f"nothing comes of {', '.join(f'{t}/{p}' for t, p in missing)}")
                _hand_over(messages, missing, take)
        finally:
            self._consumer.unassign()


def _hand_over(messages: list[Message], missing: dict[Log, int], take: Take) -> None:
    """Logs that have reached their end leave `missing`.

    The end that the broker tells (PARTITION_EOF) counts only from the wanted end on: a new leader may for a moment
    know of less than its predecessor had acknowledged, and what it lacks comes later, or nothing does for QUIET_S_MAX.
    """
    for message in messages:
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if topic is None or partition is None or offset is None:
            raise BrokerTroubleError(str(error))
        log, end = (topic, partition), missing.get((topic, partition))
        if end is None:
            continue
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            raise _trouble(error, *log)
        if error is None and offset < end:
            take(topic, partition, offset, message.value())
        following = offset if error is not None else offset + 1  # of an end, the offset is the next one
        if following >= end:
            del missing[log]


def _trouble(error: KafkaError, topic: str, partition: int) -> BrokerTroubleError:
    return BrokerTroubleError(f"{topic}/{partition}: {error.str()}")
