"""Where topics end and where groups stand, asked from the broker: the shell on confluent_kafka's admin client."""

from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from cli.failure import FailedError

ANSWER_S_MAX = 10.0
Offsets = dict[tuple[str, int], int]  # by topic and partition


class KafkaOffsets:
    """For example::

    offsets = KafkaOffsets(addresses.kafka)
    offsets.ends(["bpm.v1"])           # {("bpm.v1", 0): 1200, …}
    offsets.committed()                # {"strobe-view-sink": {("bpm_1s", 0): 340, …}, …}
    """

    def __init__(self, kafka: str) -> None:
        self._kafka = kafka
        self._client = AdminClient({"bootstrap.servers": kafka, "log_level": 0})

    def topics(self) -> dict[str, int]:
        """Partition counts of all topics that there are."""
        try:
            found = self._client.list_topics(timeout=ANSWER_S_MAX).topics
        except KafkaException as error:
            raise self._failed(error) from None
        return {name: len(topic.partitions) for name, topic in found.items()}

    def begins(self, topics: Iterable[str]) -> Offsets:
        return self._list(topics, OffsetSpec.earliest())

    def ends(self, topics: Iterable[str]) -> Offsets:
        return self._list(topics, OffsetSpec.latest())

    def committed(self) -> dict[str, Offsets]:
        """What every consumer group has committed."""
        try:
            groups = self._client.list_consumer_groups(request_timeout=ANSWER_S_MAX).result()
            return {group.group_id: self._of_group(group.group_id) for group in groups.valid}
        except KafkaException as error:
            raise self._failed(error) from None

    def setting(self, topic: str, key: str) -> str:
        """One setting of a topic, as the broker applies it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            futures = self._client.describe_configs([resource], request_timeout=ANSWER_S_MAX)
            return str(futures[resource].result()[key].value)
        except KafkaException as error:
            raise self._failed(error) from None

    def _of_group(self, group: str) -> Offsets:
        futures = self._client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_S_MAX
        )
        places: list[TopicPartition] = futures[group].result().topic_partitions
        return {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}

    def _list(self, topics: Iterable[str], spec: OffsetSpec) -> Offsets:
        counts = self.topics()
        wanted = {
            TopicPartition(topic, partition): spec for topic in topics for partition in range(counts.get(topic, 0))
        }
        if not wanted:
            return {}
        try:
            futures = self._client.list_offsets(wanted, request_timeout=ANSWER_S_MAX)
            return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}
        except KafkaException as error:
            raise self._failed(error) from None

    def _failed(self, error: KafkaException) -> FailedError:
        return FailedError(f"Kafka at {self._kafka} does not answer ({error.args[0].str()}); see ./strobe status")
