"""Workers on a real Kafka, killed and rebalanced: nothing is missed, and nothing is committed before it is safe."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import Stack
from offsets_checker import Findings, check

ROOT = Path(__file__).parent.parent
PARTITIONS = 4
CODECS = ["none", "lz4", "zstd", "gzip", "snappy"]
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
DRAIN_S_MAX = 60.0
JOIN_S_MAX = 60.0
STOP_S_MAX = 12.0


class Run:
    """A source topic that is being filled, an output topic, and workers that come and go."""

    def __init__(self, kafka: str, folder: Path) -> None:
        self.kafka = kafka
        self.source, self.output = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "output"))
        self.group, self.log = f"group-of-{self.source}", folder / "steps.log"
        self.sent = [0] * PARTITIONS
        self.random = random.Random(7)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stderr = (folder / "stderr.log").open("wb")
        self._full = threading.Event()
        self._admin = AdminClient({"bootstrap.servers": kafka})
        self.create(self.source, self.output)

    def create(self, *names: str) -> None:
        topics = [NewTopic(name, PARTITIONS, 1, config=LOG_APPEND_TIME) for name in names]
        for future in self._admin.create_topics(topics).values():
            future.result()

    def delete(self, name: str) -> None:
        for future in self._admin.delete_topics([name]).values():
            future.result()

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Numbered messages into every partition, in every compression, until the block ends."""
        thread = threading.Thread(target=self._produce)
        thread.start()
        try:
            yield
        finally:
            self._full.set()
            thread.join()

    def _produce(self) -> None:
        for i in range(1_000_000):
            if self._full.is_set():
                return
            config = {"compression.type": CODECS[i % len(CODECS)], "linger.ms": 10, "batch.size": 16_384}
            # Idempotent, so that a retry does not change the order: workers check that numbers follow each other.
            producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True, **config})
            for _ in range(100):
                for partition in range(PARTITIONS):
                    for _ in range(10):
                        number = self.sent[partition].to_bytes(8, "big")
                        producer.produce(self.source, number + bytes(24), partition=partition)
                        self.sent[partition] += 1
                producer.poll(0.01)
            assert producer.flush(30) == 0

    def start(self) -> None:
        """A further worker; returns when all partitions have been restored after its coming."""
        before = self._restored()
        arguments = [self.kafka, self.group, self.source, self.output, str(self.log)]
        command = [sys.executable, str(ROOT / "tests" / "offsets_worker.py"), *arguments]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._workers.append(subprocess.Popen(command, env=environ, stdout=self._stderr, stderr=self._stderr))
        until = time.monotonic() + JOIN_S_MAX
        while self._restored() < before + PARTITIONS:
            assert time.monotonic() < until
            time.sleep(0.1)

    def _restored(self) -> int:
        return self.log.read_text().count("R ") if self.log.exists() else 0

    def end_one(self, how: signal.Signals) -> int:
        worker = self._workers.pop(self.random.randrange(len(self._workers)))
        worker.send_signal(how)
        return worker.wait(STOP_S_MAX)

    def drain(self) -> None:
        """Wait until all that was sent is committed."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": self.group})
        places = [TopicPartition(self.source, partition) for partition in range(PARTITIONS)]
        until = time.monotonic() + DRAIN_S_MAX
        committed: list[int] = []
        while committed != self.sent and time.monotonic() < until:
            time.sleep(0.2)
            committed = [place.offset for place in consumer.committed(places, timeout=10)]
        consumer.close()
        assert committed == self.sent

    def end_all(self) -> list[int]:
        return [self.end_one(signal.SIGTERM) for _ in list(self._workers)]

    def findings(self) -> Findings:
        self._stderr.close()
        found = check(self.log)
        assert found.violations == []
        assert {p: len(done) for p, done in found.processed.items()} == dict(enumerate(self.sent))
        return found

    def truncate(self) -> None:
        """Delete all records, as retention would."""
        ends = [TopicPartition(self.source, partition, end) for partition, end in enumerate(self.sent)]
        for future in self._admin.delete_records(ends).values():
            future.result()

    def said(self) -> list[str]:
        """The lines that are ours to say, of all workers."""
        # Anywhere in a line: Faust may have written a terminal's control characters just before.
        return re.findall(r"processors: .*", (self.log.parent / "stderr.log").read_text())

    def ended(self) -> int:
        """How the only worker ended by itself."""
        return self._workers.pop().wait(JOIN_S_MAX)

    def alive(self) -> bool:
        return all(worker.poll() is None for worker in self._workers)


@pytest.fixture
def run(kafka: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(kafka, tmp_path)
    yield made
    for worker in made._workers:
        worker.kill()
        worker.wait()


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> str:
    """The stack's Kafka, or the one that STROBE_TEST_KAFKA names."""
    named = os.environ.get("STROBE_TEST_KAFKA")
    if named:
        return named
    return str(request.getfixturevalue("stack").settings().kafka)


@pytest.mark.stack
def test_nothing_is_missed_or_committed_early_when_a_worker_is_killed_again_and_again(run: Run) -> None:
    with run.producing():
        run.start()
        for _ in range(3):
            time.sleep(run.random.uniform(1, 4))
            run.end_one(signal.SIGKILL)
            run.start()
        time.sleep(2)
    run.drain()
    assert run.end_all() == [0]
    found = run.findings()
    assert found.owners >= 4 * PARTITIONS
    assert found.redelivered <= sum(run.sent) / 4


@pytest.mark.stack
def test_nothing_is_missed_or_committed_early_when_partitions_move_between_workers(run: Run) -> None:
    with run.producing():
        run.start()
        run.start()
        for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            time.sleep(run.random.uniform(1, 4))
            code = run.end_one(how)
            assert code == (0 if how == signal.SIGTERM else -signal.SIGKILL)
            time.sleep(run.random.uniform(0, 2))
            run.start()
        time.sleep(2)
    run.drain()
    assert run.end_all() == [0, 0]
    found = run.findings()
    assert found.owners >= 5 * PARTITIONS
    assert found.redelivered <= sum(run.sent) / 4


@pytest.mark.stack
def test_a_broker_that_crashes_is_waited_for_and_nothing_is_missed(stack: Stack, tmp_path: Path) -> None:
    run = Run(stack.settings().kafka, tmp_path)
    with run.producing():
        run.start()
        time.sleep(2)
        stack.kill("kafka")
        time.sleep(8)
        stack.start("kafka")
        time.sleep(5)
    run.drain()
    assert run.alive()
    assert run.end_all() == [0]
    run.findings()


@pytest.mark.stack
def test_a_topic_that_is_deleted_under_a_worker_stops_it_with_one_line(run: Run) -> None:
    with run.producing():
        run.start()
        time.sleep(1)
    run.drain()
    run.delete(run.source)
    assert run.ended() == 1
    (line,) = run.said()
    assert f"topic {run.source} does not exist" in line


@pytest.mark.stack
def test_records_deleted_before_they_were_read_stop_the_worker_with_one_line(run: Run) -> None:
    with run.producing():
        run.start()
        time.sleep(1)
        assert run.end_all() == [0]
        time.sleep(1)
    run.truncate()
    run.start()
    assert run.ended() == 1
    (line,) = run.said()
    assert "is not in the log" in line
