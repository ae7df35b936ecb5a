"""Makes the topics as `schemas/topics.py` describes them, and asks the broker about them. Holds no rule of its own.

Every call waits at most `wait_s`, then says in one line which broker did not answer.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future  # noqa: TC003 - beside the others, and free
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from schemas.topics import TopicSpec

WAIT_S = 30.0  # a local broker starts in 4 s, one behind a restart takes longer
RECONNECT_MS_MAX = 500  # how often a broker that is away is tried
AWAY = ("_TRANSPORT", "_TIMED_OUT", "_RESOLVE", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT")  # librdkafka's words
LEADER_POLL_S = 0.05  # a new topic's leaders are known within a few tens of ms

T = TypeVar("T")


class AdminError(RuntimeError):
    """The broker refused: its reason, and the remedy, in one line."""


class BrokerAwayError(AdminError):
    """No broker answered in time."""


class MissingTopicError(AdminError):
    """A topic that was asked about does not exist."""


class WrongTopicError(AdminError):
    """A topic exists, but not as it must be; the message ends with the command that helps."""


class Admin:
    """Topics of one Kafka cluster.

    For example::

        admin = Admin(settings.kafka)
        admin.ensure([stream_topic(stream, settings) for stream in streams.values()])
        admin.topic_id("bpm.v1"), admin.end_offsets("bpm.v1")
    """

    def __init__(self, kafka: str, wait_s: float = WAIT_S) -> None:
        self.kafka = kafka
        self.wait_s = wait_s
        self._last_trouble = ""
        config: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "error_cb": self._note,
            "log_level": 0,  # its troubles are told by our one line
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        }
        self._client = AdminClient(config)

    def ensure(self, specs: Iterable[TopicSpec]) -> None:
        """Create the topics that are missing; refuse those that exist and are wrong. Safe for two at once."""
        wanted = list(specs)
        existing = self._partition_counts()
        missing = [spec for spec in wanted if spec.name not in existing]
        if missing:
            self._create(missing)
        self._await_leaders(wanted)
        counts = self._partition_counts()
        for spec in wanted:
            self._check(spec, counts[spec.name])

    def topic_id(self, name: str) -> str:
        """Kafka's UUID of the topic: another one means that the topic was deleted and made anew."""
        futures = self._client.describe_topics(TopicCollection([name]), request_timeout=self.wait_s)
        return str(self._result(futures[name], name).topic_id)

    def partition_count(self, name: str) -> int:
        counts = self._partition_counts()
        if name not in counts:
            raise MissingTopicError(_missing(name))
        return counts[name]

    def begin_offsets(self, name: str) -> dict[int, int]:
        """The first offset that is still kept, by partition."""
        return self._offsets(name, OffsetSpec.earliest())

    def end_offsets(self, name: str) -> dict[int, int]:
        """One past the last offset, by partition."""
        return self._offsets(name, OffsetSpec.latest())

    def _offsets(self, name: str, spec: OffsetSpec) -> dict[int, int]:
        wanted = {TopicPartition(name, partition): spec for partition in range(self.partition_count(name))}
        futures = self._client.list_offsets(wanted, request_timeout=self.wait_s)
        return {place.partition: self._result(future, name).offset for place, future in futures.items()}

    def _create(self, specs: list[TopicSpec]) -> None:
        new = [NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config) for spec in specs]
        for name, future in self._client.create_topics(new, request_timeout=self.wait_s).items():
            try:
                self._result(future, name)
            except AdminError as error:
                if _code(error) == "INVALID_REPLICATION_FACTOR":
                    raise AdminError(f"{error}; set STROBE_REPLICATION to the number of brokers or less") from error
                if _code(error) != "TOPIC_ALREADY_EXISTS":  # another setup was faster: checked below
                    raise

    def _check(self, spec: TopicSpec, count: int) -> None:
        if count < spec.partitions and spec.growth == "follows":
            futures = self._client.create_partitions(
                [NewPartitions(spec.name, spec.partitions)], request_timeout=self.wait_s
            )
            self._result(futures[spec.name], spec.name)
            self._await_leaders([spec])
        elif count < spec.partitions or (count > spec.partitions and spec.growth == "exact"):
            raise WrongTopicError(_wrong_count(spec, count))
        resource = ConfigResource(ResourceType.TOPIC, spec.name)
        found = self._result(
            next(iter(self._client.describe_configs([resource], request_timeout=self.wait_s).values())), spec.name
        )
        for key, value in spec.required.items():
            if set(found[key].value.split(",")) != set(value.split(",")):
                raise WrongTopicError(_wrong_config(spec.name, key, found[key].value, value, self.kafka))

    def _partition_counts(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self._topics().items()}

    def _topics(self) -> dict[str, TopicMetadata]:
        try:
            found: dict[str, TopicMetadata] = self._client.list_topics(timeout=self.wait_s).topics
        except KafkaException as error:
            raise self._trouble(error) from None
        return {name: topic for name, topic in found.items() if topic.error is None}

    def _await_leaders(self, specs: list[TopicSpec]) -> None:
        """A topic just made is refused by brokers that have not heard of it yet."""
        until = time.monotonic() + self.wait_s
        while True:
            topics = self._topics()
            lacking = [spec.name for spec in specs if not _led(topics.get(spec.name))]
            if not lacking:
                return
            if time.monotonic() > until:
                raise AdminError(f"topic {lacking[0]} has no leader after {self.wait_s:g} s; look at the broker's log")
            time.sleep(LEADER_POLL_S)

    def _result(self, future: "Future[T]", name: str) -> T:
        try:
            return future.result(timeout=self.wait_s + 1)  # the request's own bound comes first
        except TimeoutError:
            raise BrokerAwayError(self._away()) from None
        except KafkaException as error:
            raise self._trouble(error, name) from error

    def _trouble(self, error: KafkaException, name: str = "") -> AdminError:
        """Say what a failure of the library means to us."""
        cause: KafkaError = error.args[0]
        if cause.name() in ("UNKNOWN_TOPIC_OR_PART", "_NOENT"):
            return MissingTopicError(_missing(name))
        if cause.name() in AWAY:
            self._client.poll(0)  # hands over what `_note` collects
            return BrokerAwayError(self._away())
        return AdminError(f"Kafka at {self.kafka} refuses{f' topic {name}' if name else ''}: {cause.str()}")

    def _away(self) -> str:
        why = f" ({self._last_trouble})" if self._last_trouble else ""
        return f"Kafka at {self.kafka} did not answer within {self.wait_s:g} s{why}; start it, or set STROBE_KAFKA"

    def _note(self, error: KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":  # says less than the reason that came before it
            text = error.str()
            self._last_trouble = text[text.find(": ") + 2 :].split(" (after ")[0]


def _led(topic: TopicMetadata | None) -> bool:
    return topic is not None and all(part.error is None and part.leader >= 0 for part in topic.partitions.values())


def _code(error: AdminError) -> str:
    """The broker's word for what is behind an error of ours."""
    cause = error.__cause__
    return str(cause.args[0].name()) if isinstance(cause, KafkaException) else ""


def _missing(name: str) -> str:
    return f"topic {name} does not exist; run `python -m schemas setup` (views: `python -m processors setup`)"


def _wrong_count(spec: TopicSpec, count: int) -> str:
    if spec.growth == "exact":
        return (
            f"topic {spec.name} has {count} partitions and not {spec.partitions}: its groups would be sought in the"
            f" wrong ones; set STROBE_PARTITIONS={count}"
        )
    return (
        f"topic {spec.name} has {count} partitions, fewer than {spec.partitions}; set STROBE_PARTITIONS={count},"
        f' or "partitions": {count} in its .avsc'
    )


def _wrong_config(name: str, key: str, found: str, wanted: str, kafka: str) -> str:
    value = f"[{wanted}]" if "," in wanted else wanted
    return (
        f"topic {name} has {key}={found} and needs {wanted}: "
        f"kafka-configs.sh --bootstrap-server {kafka} --alter --entity-type topics --entity-name {name}"
        f" --add-config {key}={value}"
    )
