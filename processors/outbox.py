"""Sends what the cores publish, and says when all of a flush is safe with the broker. Knows no view and no position."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from processors.records import Message

log = logging.getLogger(__name__)

QUEUE_MESSAGES_MAX = 200_000  # that wait for the broker; more wait here, in order, and the flush with them
QUEUE_KBYTES_MAX = 131_072
MESSAGE_BYTES_MAX = 4 * 2**20  # as the topics' max.message.bytes
LINGER_MS = 2  # collects the messages of a flush, which are handed over in less
ROOM_WAIT_S = 0.005
POLL_S = 0.1

CONFIG: dict[str, Any] = {
    "enable.idempotence": True,  # a writer's records stay in order whatever is repeated
    "acks": "all",
    "message.timeout.ms": 0,  # a broker that is away is waited for; what is not acknowledged is not committed
    "compression.type": "lz4",
    "linger.ms": LINGER_MS,
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
    "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
}


class DeliveryError(RuntimeError):
    """A message that the broker will never take."""


class Client(Protocol):
    """What is used of confluent_kafka.Producer."""

    def produce(self, topic: str, **fields: Any) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...


class _Sending:
    """Messages that are to be acknowledged together."""

    def __init__(self, messages: Sequence[Message], done: Callable[[], None], ends: dict[tuple[str, int], int]) -> None:
        self.waiting = deque(messages)
        self.missing = len(messages)
        self.done = done
        self.ends = ends


class Outbox:
    """Sends messages in the order of the calls; `done` is called on the event loop once all of a call are safe.

    For example::

        outbox = Outbox({"bootstrap.servers": settings.kafka}, loop, failed)
        outbox.send(flush.messages, done)

    Never blocks: where the producer's queue is full, the rest waits for room. `failed` is called on the event loop
    with a DeliveryError for a message that cannot be sent at all, after which nothing counts any more.
    """

    def __init__(
        self,
        config: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], None],
        make_client: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self.acknowledged = 0
        self.unacknowledged = 0  # that were handed over by `send`
        self._loop, self._failed = loop, failed
        self._client: Client = make_client({**CONFIG, **config, "error_cb": self._note, "log_level": 0})
        self._queue: deque[_Sending] = deque()
        self._waiting_for_room = False
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="outbox", daemon=True)
        self._poller.start()

    def send(
        self, messages: Sequence[Message], done: Callable[[], None], ends: dict[tuple[str, int], int] | None = None
    ) -> None:
        """Send; `ends` is filled with one past the last acknowledged offset, by topic and partition."""
        if not messages:
            self._loop.call_soon(done)
            return
        self.unacknowledged += len(messages)
        self._queue.append(_Sending(messages, done, {} if ends is None else ends))
        if not self._waiting_for_room:
            self._hand_over()

    def stop(self, timeout_s: float) -> int:
        """Wait for what was sent, at most so long; returns how many messages are still unacknowledged."""
        left = self._client.flush(timeout_s)
        self._stopped.set()
        return left

    def _hand_over(self) -> None:
        self._waiting_for_room = False
        while self._queue:
            sending = self._queue[0]
            delivered = self._counter(sending)
            while sending.waiting:
                message = sending.waiting[0]
                try:
                    self._client.produce(
                        message.topic,
                        key=message.key,
                        value=message.value,
                        partition=message.partition,
                        on_delivery=delivered,
                    )
                except BufferError:
                    self._waiting_for_room = True
                    self._loop.call_later(ROOM_WAIT_S, self._hand_over)
                    return
                except KafkaException as error:  # refused by the client itself: too large, unknown partition
                    self._failed(_delivery_error(error.args[0], message.topic, len(message.value or b"")))
                    return
                sending.waiting.popleft()
            self._queue.popleft()

    def _counter(self, sending: _Sending) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:  # on the polling thread, as all of them
            if error is not None:
                failure = _delivery_error(error, message.topic(), len(message.value() or b""))
                self._loop.call_soon_threadsafe(self._failed, failure)
                return
            place = (message.topic(), message.partition())
            sending.ends[place] = max(message.offset() + 1, sending.ends.get(place, 0))
            sending.missing -= 1
            if sending.missing == 0:
                self._loop.call_soon_threadsafe(self._finished, sending, count)

        count = sending.missing
        return delivered

    def _finished(self, sending: _Sending, count: int) -> None:
        self.acknowledged += count
        self.unacknowledged -= count
        sending.done()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._client.poll(POLL_S)

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._loop.call_soon_threadsafe(self._failed, DeliveryError(f"the producer gave up: {error.str()}"))
        else:
            log.info("Kafka: %s", error.str())


def _delivery_error(error: KafkaError, topic: str, size: int) -> DeliveryError:
    remedy = ""
    if error.name() in ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
        view = topic.removesuffix(".partials")
        remedy = f"; {size} bytes, at most {MESSAGE_BYTES_MAX} are possible: let a row of view {view} hold less"
    return DeliveryError(f"topic {topic} does not take a message: {error.str()}{remedy}")
