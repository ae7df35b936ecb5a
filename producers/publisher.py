"""The one way from an instrument to a stream's topic. Knows Kafka's client; what the readings mean, it does not.

To send from an instrument of your own::

    import os, time
    from pathlib import Path
    from producers.publisher import Publisher
    from schemas.settings import Settings
    from schemas.stream import load_streams

    settings = Settings.from_environ(os.environ)
    with Publisher(settings, load_streams(settings.streams)["bpm"]) as publisher:
        run = time.time_ns() // 1000  # a new one at each start of the trigger counter
        for trigger in range(100):
            readings = [{"instrument_id": "bpm001", "top_in": 1.0, "bot_in": 1.1, "bot_out": 0.9, "top_out": 1.0}]
            publisher.send_record(source="my-crate", run=run, trigger=trigger, time=time.time(), readings=readings)

What it guarantees: a record is given to Kafka once, in the order of sending for its source (key = source, Java's
partitioner, idempotent producer, acks=all); what is not acknowledged when the publisher is closed is counted in
`outstanding`, and what Kafka refuses in `failed`. While the broker is away records wait here, QUEUE_BYTES of them at
most, then `send` waits.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from producers.reading_columns import check_names, record_outgoing
from schemas.encoder import Encoder, Outgoing
from schemas.registry import Registry
from schemas.settings import Settings
from schemas.stream import Stream
from schemas.topics import stream_topic

log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20  # records that wait for the broker
QUEUE_RECORDS = 500_000  # the same, counted; librdkafka keeps some 200 bytes besides for each
FLUSH_S = 8.0  # for what is outstanding when the publisher is closed; a stage has 10 s to stop
TOPIC_WAIT_S = 0.5, 8.0  # first and longest pause while the broker does not answer at the start
METADATA_S = 5.0  # for one answer
POLL_S = 0.1  # between looks at the queue while it is full
FRAME_BYTES = 512  # what Kafka adds to a record that travels alone: batch header, key, lengths


class PublishError(RuntimeError):
    """Records cannot be published: what is wrong and the remedy, in one line."""


class TooLargeError(ValueError):
    """A record that the topic does not take: how large it is, the bound, and the remedy."""


class StoppedError(RuntimeError):
    """The publisher was asked to stop while it waited; the records at hand were not taken."""


class MakeProducer(Protocol):
    """Makes a client of Kafka; `confluent_kafka.Producer` is one."""

    def __call__(self, config: dict[str, Any], /) -> Producer: ...


class Publisher:
    """Sends records of one stream; see the module for an example and the guarantee."""

    def __init__(
        self,
        settings: Settings,
        stream: Stream,
        registry: Registry | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        make_producer: MakeProducer = Producer,
    ) -> None:
        self.stream = stream
        self.servers = settings.kafka
        self.stopping = stopping
        self.taken = 0  # records that stand, or stood, in the queue
        self.acknowledged = 0  # records that Kafka has
        self.failed = 0  # records that Kafka refused
        self.trouble: str | None = None  # what outside is waited for
        self.last_error: str | None = None
        self._encoder: Encoder | None = None
        self._registry = registry or Registry(settings.registry)
        self._registry_url = settings.registry
        spec = stream_topic(stream, settings)
        self.record_bytes_max = int(spec.config["max.message.bytes"]) - FRAME_BYTES
        self._producer = make_producer(
            {
                "bootstrap.servers": settings.kafka,
                "client.id": f"strobe-producer-{stream.name}",
                "partitioner": "murmur2",  # Java's default for keyed records: others' producers agree where a source is
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 0,  # a record waits as long as the broker is away; the queue is what is bounded
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "queue.buffering.max.kbytes": QUEUE_BYTES >> 10,
                "message.max.bytes": int(spec.config["max.message.bytes"]),
                "linger.ms": 5,
                # Amplitudes are noise in their last bits: live, lz4 saves 12 % of the bytes. A topic's own
                # compression.type can be set where disk matters more than the broker's processor.
                "compression.type": "none",
                "reconnect.backoff.ms": 100,
                "reconnect.backoff.max.ms": 2000,
                "allow.auto.create.topics": False,
                "socket.keepalive.enable": True,
                "log_level": 2,  # what it would print of lost connections comes to `error_cb` as well
                "error_cb": self._on_error,
            }
        )

    def connect(self) -> Encoder:
        """Register the schema and make sure of the topic, waiting for a broker that is away; `send` does so too."""
        if self._encoder is None:
            self.trouble = f"schema registry at {self._registry_url}"
            schema_id = self._registry.register(f"{self.stream.topic}-value", self.stream.avro)
            self.trouble = f"Kafka at {self.servers}"
            self._check_topic()
            self.trouble = None
            self._encoder = Encoder(self.stream, schema_id)
        return self._encoder

    def send(self, outgoing: Outgoing) -> None:
        """Encode and send; waits while the queue is full."""
        self.send_payloads(outgoing.source, self.encode(outgoing))

    def encode(self, outgoing: Outgoing) -> list[bytes]:
        check_names(self.stream, outgoing)
        return self.connect().encode(outgoing)

    def send_record(
        self,
        *,
        source: str,
        run: int,
        trigger: int,
        time: datetime | float,
        readings: list[dict[str, Any]],
        **values: Any,  # noqa: ANN401 - fields of the record
    ) -> None:
        """Send one record of readings by field name; `time` is a datetime with its zone, or seconds since 1970."""
        self.send(record_outgoing(self.stream, source, run, trigger, time, readings, values))

    def send_payloads(self, sources: list[str], payloads: list[bytes]) -> None:
        """Send what is encoded already. A record that is too large is refused before any of them is sent."""
        for source, payload in zip(sources, payloads, strict=True):
            if len(payload) + len(source) > self.record_bytes_max:
                raise TooLargeError(
                    f"record of {source}: {len(payload)} bytes are more than the {self.record_bytes_max} that topic"
                    f" {self.stream.topic} takes; send fewer readings in a record"
                )
        topic, produce = self.stream.topic, self._producer.produce
        for source, payload in zip(sources, payloads, strict=True):
            while True:
                try:
                    produce(topic, payload, source, on_delivery=self._on_delivery)
                    self.taken += 1
                    break
                except BufferError:
                    self._wait_for_room()
                except KafkaException as error:  # the client cannot go on, say after its topic was created anew
                    raise PublishError(
                        f"Kafka at {self.servers} takes no more records of {topic}: {error.args[0].str()}; start anew"
                    ) from None
        self._producer.poll(0)

    @property
    def connected(self) -> bool:
        return self._encoder is not None

    @property
    def outstanding(self) -> int:
        """Count the records that wait for the broker's answer."""
        return self.taken - self.acknowledged - self.failed

    def poll(self) -> None:
        """Take in what the broker answered; to be called now and then while there is nothing to send."""
        self._producer.poll(0)

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        """Wait for the broker's answers; how many are still outstanding then."""
        self._producer.flush(timeout_s)
        return self.outstanding

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left = self.flush()
        if (left or self.failed) and kind is None:
            raise PublishError(
                f"{left + self.failed} records were not acknowledged by Kafka at {self.servers}"
                f" ({self.last_error or self.trouble or 'no answer'}); send them again"
            )

    def _wait_for_room(self) -> None:
        if self.trouble is None:
            log.debug("the queue is full; waiting for Kafka at %s", self.servers)
        self._producer.poll(POLL_S)
        if self.stopping():
            raise StoppedError(f"stopped while Kafka at {self.servers} took no records")

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:  # noqa: ANN401 - of the library
        if error is None:
            self.acknowledged += 1
            self.trouble = None
            return
        self.failed += 1
        self.last_error = f"record of {message.key()!r} refused: {error.str()}"
        if self.failed & (self.failed - 1) == 0:  # each is counted; the log gets the 1st, 2nd, 4th, 8th …
            log.error("%s (%d records so far)", self.last_error, self.failed)

    def _on_error(self, error: KafkaError) -> None:
        """Note trouble with the connection: the library tries again by itself, with back-off."""
        trouble = f"Kafka at {self.servers} ({error.str()})"
        if self.trouble is None or "(" not in self.trouble:
            log.warning("waiting for %s", trouble)
        self.trouble = trouble

    def _check_topic(self) -> None:
        """Wait until the broker answers, then make sure that the topic is there."""
        pause_s, longest_s = TOPIC_WAIT_S
        while True:
            try:
                topics = self._producer.list_topics(timeout=METADATA_S).topics  # all: to ask for one would create it
                break
            except KafkaException as error:
                self._on_error(error.args[0])
            until_s = time.monotonic() + pause_s
            while time.monotonic() < until_s:
                if self.stopping():
                    raise StoppedError(f"stopped while Kafka at {self.servers} did not answer")
                self._producer.poll(POLL_S)
            pause_s = min(2 * pause_s, longest_s)
        if self.stream.topic not in topics:
            raise PublishError(
                f"topic {self.stream.topic} does not exist at {self.servers}; create it: python -m schemas setup"
            )
