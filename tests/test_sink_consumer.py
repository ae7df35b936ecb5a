"""A sink's consumer begins where its group stands, and never passes over what was deleted in silence."""

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sinks.consumer import Consumer, PositionLostError, accept_group_gap

pytestmark = pytest.mark.stack

RECORDS = 10
WAIT_S_MAX = 30.0


@pytest.fixture
def topic(stack: Any) -> str:
    """A topic of one partition with records 0 to 9."""
    name = f"consumed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": stack.local.kafka})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S_MAX)
    producer = Producer({"bootstrap.servers": stack.local.kafka})
    for number in range(RECORDS):
        producer.produce(name, str(number).encode(), partition=0)
    assert producer.flush(WAIT_S_MAX) == 0
    return name


def first_offset(consumer: Consumer) -> int:
    until = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < until:
        for messages in consumer.gather_soon(0.2, 0.01).values():
            return int(messages[0].offset() or 0)
    raise AssertionError("nothing came")


def begun(stack: Any, topic: str, group: str) -> int:
    consumer = Consumer(stack.local.kafka, group, [topic], held=False)
    try:
        return first_offset(consumer)
    finally:
        consumer.close()


def test_a_group_begins_at_the_first_record_then_where_it_committed(stack: Any, topic: str) -> None:
    group = f"group-of-{topic}"
    consumer = Consumer(stack.local.kafka, group, [topic], held=False)
    assert first_offset(consumer) == 0
    consumer.commit({(topic, 0): 3}, wait=True)
    consumer.close()
    assert begun(stack, topic, group) == 3


@pytest.mark.parametrize("committed", [None, 3])
def test_records_that_were_deleted_unread_stop_it_until_an_operator_accepts(
    stack: Any, topic: str, committed: int | None
) -> None:
    group = f"group-of-{topic}"
    if committed is not None:
        consumer = Consumer(stack.local.kafka, group, [topic], held=False)
        assert first_offset(consumer) == 0
        consumer.commit({(topic, 0): committed}, wait=True)
        consumer.close()
    admin = AdminClient({"bootstrap.servers": stack.local.kafka})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(WAIT_S_MAX)
    with pytest.raises(PositionLostError, match=topic):
        begun(stack, topic, group)
    assert list(accept_group_gap(stack.local.kafka, group, topic, {0: 6}, {0: RECORDS})) == [
        f"{topic}[0]: {group} goes on at 6 instead of {committed or 0}"
    ]
    assert begun(stack, topic, group) == 6
    assert list(accept_group_gap(stack.local.kafka, group, topic, {0: 6}, {0: RECORDS})) == []


def test_what_comes_while_idle_is_handed_over_and_fetching_goes_on_behind_it(stack: Any, topic: str) -> None:
    """As in a rebalance while the caller waits: the partition gained is not paused yet."""
    consumer = Consumer(stack.local.kafka, f"group-of-{topic}", [topic], held=False)
    until = time.monotonic() + WAIT_S_MAX
    brought: list[Any] = []
    while not brought and time.monotonic() < until:
        brought = consumer.idle(0.2)
    consumer.pause()
    assert [(place, message.offset()) for place, message in brought] == [((topic, 0), 0)]
    assert consumer.idle(0.5) == []
    consumer.resume()
    assert first_offset(consumer) == 1
    consumer.close()
