"""The publisher: bounded, honest about what Kafka has, and the same partition for a source as Java's own clients."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from doros_file import make_doros_file

from producers import publisher as publisher_module
from producers.publisher import Publisher, PublishError, StoppedError, TooLargeError
from schemas.admin import Admin
from schemas.codec import Codec
from schemas.registry import Registry
from schemas.settings import Settings
from schemas.status import Status, read_status
from schemas.stream import Stream, build_stream
from schemas.topics import stream_topic

if TYPE_CHECKING:
    from tests.conftest import Stack

STREAMS = Path(__file__).parents[1] / "schemas" / "streams"
READING = {"instrument_id": "bpm001", "top_in": 1.0, "bot_in": 1.1, "bot_out": 0.9, "top_out": None}
PATIENCE_S = 60.0


def fresh(stream: str = "bpm", partitions: int = 5) -> Stream:
    """The shipped stream with a topic of its own."""
    avro = json.loads((STREAMS / f"{stream}.avsc").read_text())
    avro["strobe"] |= {"topic": f"test.{uuid.uuid4().hex}", "partitions": partitions}
    return build_stream(avro, "test.avsc")


def created(stack: "Stack", stream: Stream) -> Stream:
    Admin(stack.settings().kafka).ensure([stream_topic(stream, stack.settings())])
    return stream


def consumed(settings: Settings, topic: str) -> list[Message]:
    """Everything in the topic, partition by partition."""
    admin = Admin(settings.kafka)
    consumer = Consumer(
        {"bootstrap.servers": settings.kafka, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    )
    messages = []
    for partition, end in admin.end_offsets(topic).items():
        consumer.assign([TopicPartition(topic, partition, 0)])
        while end and (not messages or messages[-1].partition() != partition or messages[-1].offset() < end - 1):
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None
            messages.append(message)
    consumer.close()
    return messages


def murmur2(data: bytes) -> int:
    """Kafka's own hash, from org.apache.kafka.common.utils.Utils; pinned below by the values of its tests."""
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    digest = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) // 4 * 4, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mix & mask
        digest = (digest * mix & mask) ^ ((word ^ word >> 24) * mix & mask)
    rest = data[len(data) // 4 * 4 :]
    if rest:
        digest = (digest ^ int.from_bytes(rest, "little")) * mix & mask
    digest = (digest ^ digest >> 13) * mix & mask
    return digest ^ digest >> 15


def test_the_oracle_of_partitions_is_java_s_murmur2() -> None:
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: np.uint32(murmur2(key)).astype(np.int32).item() for key in known} == known


class FakeProducer:
    """Kafka's client as far as the publisher uses it: a queue of a few, a broker that answers when told to."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.room = 3
        self.queue: list[Any] = []
        self.given: list[tuple[str, bytes, str]] = []
        self.answers = True

    def produce(self, topic: str, value: bytes, key: str, on_delivery: Any) -> None:
        if len(self.queue) >= self.room:
            raise BufferError
        self.given.append((topic, value, key))
        self.queue.append(on_delivery)

    def poll(self, _timeout_s: float) -> int:
        if self.answers:
            for on_delivery in self.queue:
                on_delivery(None, None)
            self.queue.clear()
        return 0

    def flush(self, timeout_s: float) -> int:
        return self.poll(timeout_s)

    def list_topics(self, **_options: float) -> Any:
        return SimpleNamespace(topics={"bpm.v1": None})


class FakeRegistry:
    def register(self, _subject: str, _schema: dict[str, Any]) -> int:
        return 7


@pytest.fixture
def bpm() -> Stream:
    return build_stream(json.loads((STREAMS / "bpm.avsc").read_text()), "bpm.avsc")


def faked(stream: Stream, **options: Any) -> tuple[Publisher, FakeProducer]:
    made: list[FakeProducer] = []

    def make(config: dict[str, Any]) -> FakeProducer:
        made.append(FakeProducer(config))
        return made[0]

    publisher = Publisher(Settings(), stream, FakeRegistry(), make_producer=make, **options)  # type: ignore[arg-type]
    return publisher, made[0]


def test_a_full_queue_waits_and_drops_nothing(bpm: Stream) -> None:
    publisher, producer = faked(bpm)
    with publisher:
        publisher.send_payloads(["crate1"] * 20, [bytes([number]) for number in range(20)])
    assert [value for _, value, _ in producer.given] == [bytes([number]) for number in range(20)]
    assert publisher.acknowledged == 20


def test_a_wait_for_room_ends_when_asked_to_stop(bpm: Stream) -> None:
    publisher, producer = faked(bpm, stopping=lambda: True)
    producer.answers = False
    with pytest.raises(StoppedError):
        publisher.send_payloads(["crate1"] * 20, [b"x"] * 20)
    assert len(producer.given) == producer.room


def test_what_was_not_acknowledged_at_the_end_is_said(bpm: Stream) -> None:
    publisher, producer = faked(bpm)
    producer.answers = False
    with pytest.raises(PublishError, match="2 records were not acknowledged") as raised, publisher:
        publisher.send_payloads(["crate1"] * 2, [b"x"] * 2)
    assert "\n" not in str(raised.value)


def test_a_too_large_record_is_refused_before_anything_is_sent(bpm: Stream) -> None:
    publisher, producer = faked(bpm)
    with pytest.raises(
        TooLargeError, match=r"record of crate2: \d+ bytes are more than the \d+ that topic bpm.v1"
    ) as raised:
        publisher.send_payloads(["crate1", "crate2"], [b"x", bytes(publisher.record_bytes_max + 1)])
    assert "\n" not in str(raised.value)
    assert producer.given == []


def test_records_go_out_as_the_contract_says(bpm: Stream) -> None:
    publisher, producer = faked(bpm)
    wanted = {"partitioner": "murmur2", "enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
    assert {key: producer.config[key] for key in wanted} == wanted
    with publisher:
        publisher.send_record(source="crate1", run=1, trigger=2, time=3.0, readings=[READING])
    ((topic, payload, key),) = producer.given
    assert (topic, key, payload[:5]) == ("bpm.v1", "crate1", b"\0\0\0\0\7")


@pytest.mark.stack
def test_a_source_s_partition_is_that_of_java_s_clients(stack: "Stack") -> None:
    settings, stream = stack.settings(), created(stack, fresh(partitions=7))
    sources = [f"crate{number}" for number in range(50)] + ["", "Büro", "x" * 200]
    with Publisher(settings, stream) as publisher:
        for source in sources:
            publisher.send_record(source=source, run=1, trigger=1, time=time.time(), readings=[READING])
    assert publisher.acknowledged == len(sources)
    found = {message.key().decode(): message.partition() for message in consumed(settings, stream.topic)}
    assert found == {source: (murmur2(source.encode()) & 0x7FFFFFFF) % 7 for source in sources}


@pytest.mark.stack
def test_the_example_of_the_module_runs_as_it_stands(stack: "Stack", tmp_path: Path) -> None:
    stream = created(stack, fresh())
    (tmp_path / "test.avsc").write_text(json.dumps(stream.avro))
    example = textwrap.dedent(str(publisher_module.__doc__).split("::\n\n")[1].split("\n\nWhat it guarantees")[0])
    environ = stack.environ() | {"STROBE_STREAMS": str(tmp_path)}
    subprocess.run([sys.executable, "-c", example], env=environ, check=True, timeout=PATIENCE_S)
    assert triggers_of(stack, stream) == {"my-crate": list(range(100))}


@pytest.mark.stack
def test_what_is_sent_is_what_the_codec_reads(stack: "Stack") -> None:
    settings, stream = stack.settings(), created(stack, fresh())
    with Publisher(settings, stream) as publisher:
        publisher.send_record(source="mine", run=5, trigger=6, time=1727573829.040156, readings=[READING])
    (message,) = consumed(settings, stream.topic)
    columns = Codec(stream, Registry(settings.registry).schema).decode_one(message.value())
    assert (columns.run[0], columns.trigger[0], columns.time_us[0]) == (5, 6, 1727573829040156)
    assert columns.values["bot_in"].values[0] == np.float32(1.1)
    assert not columns.values["top_out"].valid[0]


@pytest.mark.stack
def test_a_stock_avro_serializer_s_message_is_read_as_ours(stack: "Stack") -> None:
    settings, stream = stack.settings(), created(stack, fresh())
    client = SchemaRegistryClient({"url": settings.registry})
    serializer = AvroSerializer(client, json.dumps(stream.avro))
    record = {
        "source": "theirs",
        "run": 5,
        "trigger_id": 6,
        "time": 1727573829040156,
        "readings": [{**READING, "status": 2}],
    }
    payload = serializer(record, SerializationContext(stream.topic, MessageField.VALUE))
    stock = Producer({"bootstrap.servers": settings.kafka})
    stock.produce(stream.topic, payload, "theirs")
    stock.flush(PATIENCE_S)
    with Publisher(settings, stream) as publisher:  # the same subject: the schema is there already
        publisher.send_record(
            source="theirs", run=5, trigger=6, time=1727573829.040156, readings=[{**READING, "status": 2}]
        )
    theirs, ours = consumed(settings, stream.topic)[:2]
    assert theirs.value() == ours.value()
    columns = Codec(stream, Registry(settings.registry).schema).decode_one(theirs.value())
    assert columns.status.tolist() == [2]
    assert columns.instruments == ["bpm001"]


@pytest.mark.stack
def test_a_record_that_the_broker_refuses_is_counted_and_said(stack: "Stack") -> None:
    settings, stream = stack.settings(), fresh(partitions=1)
    spec = stream_topic(stream, settings)
    Admin(settings.kafka).ensure([replace(spec, config=spec.config | {"max.message.bytes": "1000"})])
    publisher = Publisher(settings, stream)
    with pytest.raises(PublishError, match=r"1 records were not acknowledged .*too large") as raised, publisher:
        publisher.send_record(source="c", run=1, trigger=1, time=1.0, readings=[READING] * 500)
    assert (publisher.failed, publisher.acknowledged) == (1, 0)
    assert "\n" not in str(raised.value)


@pytest.mark.stack
def test_a_topic_that_is_not_there_is_named_and_not_made(stack: "Stack") -> None:
    settings, stream = stack.settings(), fresh()
    with pytest.raises(PublishError, match=f"topic {stream.topic} does not exist .* python -m schemas setup"):
        Publisher(settings, stream).connect()
    with pytest.raises(Exception, match=stream.topic):
        Admin(settings.kafka).partition_count(stream.topic)


class Child:
    """`python -m producers …` as a process, with its status."""

    def __init__(self, stack: "Stack", stream: Stream, folder: Path, *arguments: str) -> None:
        (folder / "streams").mkdir(exist_ok=True)
        (folder / "streams" / "test.avsc").write_text(json.dumps(stream.avro))
        self.status_file = folder / "status.json"
        environ = stack.environ() | {
            "STROBE_STREAMS": str(folder / "streams"),
            "STROBE_STATUS_FILE": str(self.status_file),
        }
        command = [sys.executable, "-m", "producers", *arguments]
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until(self, wanted: str, condition: Any) -> Status:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = read_status(self.status_file)
            if status is not None and condition(status):
                return status
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        pytest.fail(f"never {wanted}: {read_status(self.status_file)}")

    def end(self, number: int | None = None) -> tuple[str, str]:
        if number is not None:
            os.kill(self.process.pid, number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        return out, err


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()


def triggers_of(stack: "Stack", stream: Stream) -> dict[str, list[int]]:
    codec = Codec(stream, Registry(stack.settings().registry).schema)
    triggers: dict[str, list[int]] = {}
    for message in consumed(stack.settings(), stream.topic):
        triggers.setdefault(message.key().decode(), []).append(int(codec.decode_one(message.value()).trigger[0]))
    return triggers


@pytest.mark.stack
def test_a_ring_of_so_many_triggers_arrives_whole(stack: "Stack", tmp_path: Path, children: list[Child]) -> None:
    stream = created(stack, fresh())
    child = Child(stack, stream, tmp_path, "ring", "--instruments=12", "--rate=0", "--triggers=500", "--json")
    children.append(child)
    figures = json.loads(child.end()[0].splitlines()[-1])
    assert figures["acknowledged"] == figures["records"] == 4 * 500
    assert figures["readings"] == 12 * 500
    assert figures["failed"] == 0
    assert triggers_of(stack, stream) == {f"crate{number}": list(range(500)) for number in range(1, 5)}


@pytest.mark.stack
def test_two_processes_with_a_part_each_send_what_one_sends(
    stack: "Stack", tmp_path: Path, children: list[Child]
) -> None:
    options = (
        "--instruments=12",
        "--rate=0",
        "--triggers=200",
        "--start=2026-01-31T12:00:00Z",
        "--dropouts=0.1",
        "--late=0.1",
    )
    sent = []
    for owned in (["--own=1-4"], ["--own=1,3", "--own=2,4"]):
        stream = created(stack, fresh())
        for own in owned:
            child = Child(stack, stream, tmp_path, "ring", *options, own)
            children.append(child)
            child.end()
        by_source: dict[str, list[bytes]] = {}
        for message in consumed(stack.settings(), stream.topic):
            by_source.setdefault(message.key().decode(), []).append(message.value()[5:])  # less the schema's id
        sent.append(by_source)
    assert sent[0] == sent[1]


@pytest.mark.stack
def test_sigterm_ends_a_ring_in_order_with_everything_acknowledged(
    stack: "Stack", tmp_path: Path, children: list[Child]
) -> None:
    stream = created(stack, fresh())
    child = Child(stack, stream, tmp_path, "ring", "--instruments=12", "--rate=200", "--late=0.1", "--late-by=20s")
    children.append(child)
    child.until("sends", lambda status: status.records > 500)
    asked_s = time.monotonic()
    child.end(signal.SIGTERM)
    assert time.monotonic() - asked_s < 10.0
    status = read_status(child.status_file)
    assert status is not None
    assert status.records == status.counters["sent"]
    count = status.counters["triggers"]
    assert {source: sorted(found) for source, found in triggers_of(stack, stream).items()} == {
        f"crate{number}": list(range(count)) for number in range(1, 5)
    }


@pytest.mark.stack
def test_a_broker_that_dies_in_the_middle_costs_nothing(stack: "Stack", tmp_path: Path, children: list[Child]) -> None:
    stream = created(stack, fresh())
    child = Child(stack, stream, tmp_path, "ring", "--instruments=12", "--rate=100")
    children.append(child)
    child.until("sends", lambda status: status.records > 200)
    stack.kill("kafka")
    try:
        waiting = child.until("says what it waits for", lambda status: status.waiting_for is not None)
        child.until("queues", lambda status: status.lag > 200)
    finally:
        stack.start("kafka")
    assert "Kafka" in str(waiting.waiting_for)
    child.until("goes on", lambda status: status.records > waiting.records + 1000 and status.waiting_for is None)
    child.end(signal.SIGTERM)
    for found in triggers_of(stack, stream).values():
        assert found == list(range(len(found))), "each once and in order"
    assert len(triggers_of(stack, stream)) == 4


@pytest.mark.stack
def test_asked_to_stop_while_the_broker_is_away_it_ends_and_says_what_kafka_does_not_have(
    stack: "Stack", tmp_path: Path, children: list[Child]
) -> None:
    stream = created(stack, fresh())
    child = Child(stack, stream, tmp_path, "ring", "--instruments=12", "--rate=100")
    children.append(child)
    child.until("sends", lambda status: status.records > 200)
    stack.kill("kafka")
    try:
        child.until("queues", lambda status: status.lag > 100)
        asked_s = time.monotonic()
        os.kill(child.process.pid, signal.SIGTERM)
        _, err = child.process.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - asked_s < 10.0
    finally:
        stack.start("kafka")
    status = read_status(child.status_file)
    assert status is not None
    assert child.process.returncode == 1
    assert f"producers: {status.lag} records were not acknowledged by Kafka" in err.splitlines()[-1]
    assert status.lag + status.records == status.counters["sent"]


@pytest.mark.stack
def test_a_measured_file_arrives_whole(stack: "Stack", tmp_path: Path, children: list[Child]) -> None:
    stream = created(stack, fresh("doros"))
    made = make_doros_file(tmp_path / "doros.h5", turns=2000)
    child = Child(
        stack, stream, tmp_path, "file", str(made.path), "--stream=doros", "--mapping=lhc-doros", "--pace=max", "--json"
    )
    children.append(child)
    out, err = child.end()
    assert json.loads(out)["acknowledged"] == 3 * made.turns
    assert "88.9246" in err
    triggers = triggers_of(stack, stream)
    assert triggers == {monitor: list(range(made.turns)) for monitor in made.amplitudes}


@pytest.mark.stack
def test_keys_of_one_source_never_part(stack: "Stack", tmp_path: Path, children: list[Child]) -> None:
    stream = created(stack, fresh(partitions=6))
    child = Child(stack, stream, tmp_path, "ring", "--instruments=40", "--sources=20", "--rate=0", "--triggers=50")
    children.append(child)
    child.end()
    places = {(message.key(), message.partition()) for message in consumed(stack.settings(), stream.topic)}
    assert set(Counter(key for key, _ in places).values()) == {1}


def test_a_delivery_that_fails_is_counted(bpm: Stream) -> None:
    class Refused:
        def key(self) -> bytes:
            return b"crate1"

    publisher, _ = faked(bpm)
    publisher._on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), Refused())
    assert (publisher.failed, publisher.acknowledged) == (1, 0)
    assert "crate1" in str(publisher.last_error)
