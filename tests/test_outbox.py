"""Sending on a fake producer: what is counted, what waits for room, and what cannot be sent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from processors.outbox import DeliveryError, Outbox
from processors.records import Message


class Producer:
    """Keeps what it is given until it is polled; has room for `room` messages."""

    def __init__(self, room: int = 1000) -> None:
        self.room, self.sent = room, []  # type: ignore[var-annotated]
        self._waiting: list[tuple[Any, Any]] = []
        self.error: KafkaError | None = None
        self.refusal: KafkaError | None = None

    def produce(self, topic: str, **fields: Any) -> None:
        if self.refusal is not None:
            raise KafkaException(self.refusal)
        if len(self._waiting) >= self.room:
            raise BufferError
        self.sent.append((topic, fields["partition"], fields["key"]))
        self._waiting.append(
            (fields["on_delivery"], _Sent(topic, fields["partition"], len(self.sent) - 1, fields["value"]))
        )

    def poll(self, timeout: float) -> int:
        del timeout
        waiting, self._waiting = self._waiting, []
        for delivered, message in waiting:
            delivered(self.error, message)
        return len(waiting)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0


class _Sent:
    def __init__(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self._topic, self._partition, self._offset, self._value = topic, partition, offset, value

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def messages(count: int, topic: str = "bpm_1s.partials") -> list[Message]:
    return [Message(topic, i % 4, b"%d" % i, b"value") for i in range(count)]


def with_outbox(producer: Producer, scene: Callable[[Outbox, list[str]], Awaitable[None]]) -> list[BaseException]:
    failures: list[BaseException] = []

    async def play() -> None:
        outbox = Outbox({}, asyncio.get_running_loop(), failures.append, lambda _: producer)
        try:
            await scene(outbox, [])
        finally:
            outbox.stop(0)

    asyncio.run(play())
    return failures


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.005)


def test_done_is_called_once_all_messages_of_a_call_are_safe() -> None:
    async def scene(outbox: Outbox, done: list[str]) -> None:
        ends: dict[tuple[str, int], int] = {}
        outbox.send(messages(10), lambda: done.append("first"), ends)
        outbox.send([], lambda: done.append("nothing"))
        outbox.send(messages(1), lambda: done.append("second"))
        assert done == []
        await until(lambda: len(done) == 3)
        assert done.index("first") < done.index("second")
        assert (outbox.acknowledged, outbox.unacknowledged) == (11, 0)
        assert max(ends.values()) == 10  # one past the last offset of the ten

    assert with_outbox(Producer(), scene) == []


def test_messages_keep_their_order_when_the_producer_s_queue_is_full() -> None:
    producer = Producer(room=3)

    async def scene(outbox: Outbox, done: list[str]) -> None:
        outbox.send(messages(50), lambda: done.append("first"))
        outbox.send(messages(50), lambda: done.append("second"))
        await until(lambda: len(done) == 2)

    assert with_outbox(producer, scene) == []
    assert [key for _, _, key in producer.sent] == 2 * [b"%d" % i for i in range(50)]


def test_a_message_that_is_never_taken_fails_naming_topic_view_and_remedy() -> None:
    producer = Producer()
    producer.error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)

    async def scene(outbox: Outbox, done: list[str]) -> None:
        outbox.send(messages(1), lambda: done.append("never"))
        await asyncio.sleep(0.3)
        assert done == []

    (failure,) = with_outbox(producer, scene)
    assert isinstance(failure, DeliveryError)
    assert "topic bpm_1s.partials" in str(failure)
    assert "view bpm_1s" in str(failure)


def test_a_message_that_the_client_itself_refuses_fails_alike() -> None:
    producer = Producer()
    producer.refusal = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)

    async def scene(outbox: Outbox, done: list[str]) -> None:
        outbox.send(messages(1), lambda: done.append("never"))

    (failure,) = with_outbox(producer, scene)
    assert isinstance(failure, DeliveryError)
