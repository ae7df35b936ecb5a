"""Messages from Kafka, by partition. The only module here that knows confluent_kafka's consumer; holds no rule.

The group is asked which partitions are ours; where to begin is the caller's to say (`held=True`: nothing is fetched
before `start`), or Kafka's committed position (`held=False`). Membership lives on while the caller waits for
something else, as long as it calls `gather` or `idle` now and then.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

log = logging.getLogger(__name__)

Place = tuple[str, int]  # topic and partition

GATHER_MESSAGES_MAX = 10_000  # of one round
GATHER_BYTES_MAX = 16 * 2**20  # of one round; one more fetch of messages may come on top
CONSUME_MESSAGES = 500  # asked for at once: far more than is worked on at once costs cache misses
QUEUE_KBYTES_MAX = 65_536  # fetched ahead and not yet handed over, all partitions together
FETCH_BYTES_MAX = 4 * 2**20  # of one partition at once
FETCH_WAIT_MS = 20  # how long the broker holds back an empty answer: what a partition left out of it waits at most
QUEUE_BACKOFF_MS = 5  # the default of 1000 puts the fetcher to sleep for a second each time its queue is full
METADATA_MS = 10_000  # how soon a new partition is found
SESSION_MS = 10_000  # how soon the partitions of a killed sink go to another one
ASK_S = 5.0  # a question to the broker
PROBE_S = 0.5  # whether it is back
NOT_TROUBLE = (KafkaError._PARTITION_EOF,)  # noqa: SLF001 - the library's own public constant
POSITION_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - as above
TOPIC_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)


class BrokerAwayError(RuntimeError):
    """No broker answers: wait and ask again."""


class PositionLostError(RuntimeError):
    """The log does not hold the offset that was asked for."""


class ConsumerError(RuntimeError):
    """Kafka refuses for good: why, in one line."""


class Consumer:
    """One member of a group.

    For example::

        consumer = Consumer(settings.kafka, "strobe-raw-sink", ["bpm.v1"], held=True)
        consumer.start({("bpm.v1", 0): 4711})
        for (topic, partition), messages in consumer.gather(0.1).items(): …
    """

    def __init__(self, kafka: str, group: str, topics: Sequence[str], *, held: bool) -> None:
        self.kafka = kafka
        self.assigned: frozenset[Place] = frozenset()  # by the group, whether started or not
        self.rebalances = 0  # counts the changes of `assigned`
        self.trouble: str | None = None  # what the client complained of since messages came last
        self.ends: dict[Place, int] = {}  # one past the last offset, as far as known
        self._held = held
        self._started = False
        self._client = KafkaConsumer(
            {
                "bootstrap.servers": kafka,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",  # never past what was deleted, in silence
                "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "fetch.message.max.bytes": FETCH_BYTES_MAX,
                "queued.max.messages.kbytes": QUEUE_KBYTES_MAX,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "session.timeout.ms": SESSION_MS,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,  # its troubles are told in `trouble`
                "error_cb": self._note,
            }
        )
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def gather(self, wait_s: float, messages_max: int = GATHER_MESSAGES_MAX) -> dict[Place, list[Message]]:
        """What comes within `wait_s` of the first call, or sooner as much as one round may hold."""
        until = time.monotonic() + wait_s
        gathered: dict[Place, list[Message]] = {}
        count = size = 0
        while count < messages_max and size < GATHER_BYTES_MAX:
            left_s = until - time.monotonic()
            for message in self._consume(CONSUME_MESSAGES, max(0.0, left_s)):
                gathered.setdefault(_place(message), []).append(message)
                count, size = count + 1, size + len(message)
            if left_s <= 0:
                break
        return gathered

    def gather_soon(self, idle_s: float, linger_s: float) -> dict[Place, list[Message]]:
        """Waits up to `idle_s` for a first message, then takes what is there: for freshness rather than size."""
        first = self._consume(1, idle_s)
        if not first:
            return {}
        gathered = self.gather(linger_s)
        for message in first:
            gathered.setdefault(_place(message), []).insert(0, message)
        return gathered

    def start(self, offsets: dict[Place, int]) -> None:
        """Fetch these partitions from these offsets on, and no others."""
        if not offsets and not self._started:
            return
        self._started = bool(offsets)
        self._client.assign(
            [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        )

    def hold(self) -> None:
        """Fetch nothing; what was fetched ahead is dropped. The membership stays."""
        self.start({})

    def idle(self, wait_s: float) -> list[tuple[Place, Message]]:
        """Only keep the membership alive, while nothing is fetched.

        A partition that came in a rebalance is not paused, and may bring a message before it can be: it is returned,
        for the next fetch goes on behind it.
        """
        return [(_place(message), message) for message in self._consume(1, wait_s)]

    def pause(self) -> None:
        self._client.pause(self._client.assignment())

    def resume(self) -> None:
        self._client.resume(self._client.assignment())

    def bounds(self, place: Place) -> tuple[int, int]:
        """First offset that the log holds, and one past the last."""
        try:
            begin, end = self._client.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
        except KafkaException as error:
            raise self._translated(error.args[0]) from None
        if begin < 0 or end < 0:
            raise BrokerAwayError(f"Kafka at {self.kafka} does not say where {place[0]}[{place[1]}] ends")
        self.ends[place] = end
        return begin, end

    def watch_ends(self, places: Sequence[Place]) -> None:
        """Note where logs end, as the last fetch said: costs no question."""
        for place in places:
            found = self._client.get_watermark_offsets(TopicPartition(*place), cached=True)
            if found and found[1] >= 0:
                self.ends[place] = found[1]

    def ask_ends(self, places: Sequence[Place]) -> None:
        """Note where logs end while nothing is fetched; a broker that does not answer leaves them as they are."""
        for place in places:
            try:
                _, end = self._client.get_watermark_offsets(TopicPartition(*place), timeout=PROBE_S)
            except KafkaException:
                return
            self.ends[place] = max(end, self.ends.get(place, 0))

    def committed(self) -> dict[Place, int]:
        """Where the group stands in its partitions: what was committed, else the log's start. Empty: no answer."""
        try:
            places = self._client.committed([TopicPartition(*place) for place in self.assigned], timeout=ASK_S)
            return {
                (p.topic, p.partition): p.offset if p.offset >= 0 else self.bounds((p.topic, p.partition))[0]
                for p in places
            }
        except (KafkaException, BrokerAwayError, PositionLostError) as error:
            log.info("committed positions are not known: %s", error)
            return {}

    def commit(self, offsets: dict[Place, int], *, wait: bool = False) -> None:
        """Tell the group's positions. A failure is only trouble: rows read again are harmless."""
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        if not places:
            return
        try:
            if wait:
                self._client.commit(offsets=places, asynchronous=False)
            else:
                self._client.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            log.info("positions were not committed: %s", error.args[0].str())

    def close(self) -> None:
        self._client.close()

    def _consume(self, count: int, wait_s: float) -> list[Message]:
        messages: list[Message] = []
        for message in self._client.consume(count, wait_s):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() not in NOT_TROUBLE:
                self._take_error(error, message)
        if messages or (self.trouble is not None and self._answers()):
            self.trouble = None
        return messages

    def _answers(self) -> bool:
        """Whether the broker is back. Asked only while in doubt: a quiet topic would leave the trouble standing."""
        try:
            self._client.list_topics(timeout=PROBE_S)
        except KafkaException:
            return False
        return True

    def _take_error(self, error: KafkaError, message: Message) -> None:
        if error.code() in POSITION_LOST:
            raise PositionLostError(f"{message.topic()}[{message.partition()}]: {error.str()}")
        if error.fatal():
            raise ConsumerError(f"Kafka at {self.kafka}: {error.str()}")
        if error.code() in TOPIC_GONE:
            raise PositionLostError(f"topic {message.topic()} is gone ({error.str()})")
        self._note(error)

    def _translated(self, error: KafkaError) -> Exception:
        if error.code() in TOPIC_GONE:
            return PositionLostError(f"Kafka at {self.kafka}: {error.str()}")
        return BrokerAwayError(f"Kafka at {self.kafka} does not answer ({error.str()})")

    def _note(self, error: KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN" or self.trouble is None:
            self.trouble = f"Kafka at {self.kafka}: {error.str()}"

    def _on_assign(self, client: Any, places: list[TopicPartition]) -> None:  # noqa: ANN401 - untyped library
        self.assigned = frozenset((place.topic, place.partition) for place in places)
        self.rebalances += 1
        if self._held:
            self._started = False
            client.assign([])
        else:
            client.assign(_from_the_beginning(client, places))

    def _on_revoke(self, client: Any, places: list[TopicPartition]) -> None:  # noqa: ANN401 - as above
        self.assigned -= {(place.topic, place.partition) for place in places}
        self.rebalances += 1
        if self._held:
            self._started = False
            client.unassign()


def accept_group_gap(kafka: str, group: str, topic: str, begins: dict[int, int], ends: dict[int, int]) -> Iterator[str]:
    """Move a group's positions that the log does not hold to its nearest end. The group must have no member."""
    client = KafkaConsumer({"bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False})
    try:
        for place in _from_the_beginning(client, [TopicPartition(topic, partition) for partition in begins]):
            nearest = min(max(place.offset, begins[place.partition]), ends[place.partition])
            if nearest != place.offset:
                client.commit(offsets=[TopicPartition(topic, place.partition, nearest)], asynchronous=False)
                yield f"{topic}[{place.partition}]: {group} goes on at {nearest} instead of {place.offset}"
    except KafkaException as error:
        raise ConsumerError(
            f"positions of {group} cannot be moved ({error.args[0].str()}); is the stage stopped?"
        ) from None
    finally:
        client.close()


def _from_the_beginning(client: Any, places: Sequence[TopicPartition]) -> list[TopicPartition]:  # noqa: ANN401 - untyped
    """Where the group stands, or the very first offset. Whether the log still holds it, fetching tells."""
    committed = client.committed(list(places), timeout=ASK_S)
    return [TopicPartition(place.topic, place.partition, max(0, place.offset)) for place in committed]


def _place(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0
