"""A worker whose cores only note which offsets they took in: started as a process by test_transport_stack.py.

    python tests/offsets_worker.py KAFKA GROUP SOURCE OUTPUT LOG

One line a step is appended to LOG, so that it outlives kill -9: R(estored), T(aken), A(cknowledged), C(ommitted).
What a core publishes are the ranges it took in, to the same partition of OUTPUT.
"""

import logging
import os
import random
import sys
import time
from pathlib import Path

from processors.app import App
from processors.records import Checkpoint, Flush, Message
from schemas.admin import Admin
from schemas.batch import RawBatch
from schemas.settings import Settings

SHORT_SESSION = {"broker_session_timeout": 6.0, "broker_heartbeat_interval": 1.0}  # the broker's least
SLOW_S = 0.02  # the longest that a core takes for a batch, so that kills find work half done


def metadata_at(position: int) -> str:
    """Of many lengths, and not ASCII only: it must come back as it was committed."""
    return f"at {position} " + "µ" * (position % 97)


class Log:
    """Whole lines, at once, whoever writes beside us."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class OffsetsCore:
    """Publishes the range of offsets that it took in since its last flush."""

    def __init__(self, log: Log, output: str, partition: int, position: int, writer: bytes) -> None:
        self.position = position
        self.counters = {"readings": 0}
        self._log, self._output, self._partition, self._writer = log, output, partition, writer
        self._flushed = position
        self._in_flight: Flush | None = None

    def take(self, raw: RawBatch) -> None:
        assert raw.first == self.position
        time.sleep(random.random() * SLOW_S)
        data = raw.data.tobytes()
        numbers = [int.from_bytes(data[at : at + 8], "big") for at in raw.starts.tolist()]
        spans = f"{min(numbers)} {max(numbers)}" if numbers else "- -"
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
        self._log.write("T", self._writer.hex(), self._partition, raw.first, raw.next, len(numbers), spans)
        self.counters["readings"] += len(numbers)
        self.position = raw.next

    def flush(self) -> Flush | None:
        if self._in_flight is not None or self.position == self._flushed:
            return None
        span = f"{self._flushed} {self.position}".encode()
        message = Message(self._output, self._partition, self._writer + span, span)
        self._in_flight = Flush([message, message], Checkpoint(self.position, metadata_at(self.position)))
        self._flushed = self.position
        return self._in_flight

    def acknowledged(self, flush: Flush) -> Checkpoint:
        assert flush is self._in_flight
        self._in_flight = None
        self._log.write("A", self._writer.hex(), self._partition, flush.checkpoint.position)
        return flush.checkpoint

    def committed(self, checkpoint: Checkpoint) -> list[Message]:
        self._log.write("C", self._writer.hex(), self._partition, checkpoint.position)
        return []

    def heartbeat(self, *, idle: bool) -> list[Message]:
        self._log.write("I" if idle else "H", self._writer.hex(), self._partition, self.position)
        return []


class OffsetsRestore:
    """Reads which ranges are durable; a committed position that is not covered by them is noted as a violation."""

    def __init__(self, log: Log, output: str, partition: int, committed: tuple[int, str] | None) -> None:
        self._log, self._output, self._partition = log, output, partition
        self._position, metadata = committed or (0, metadata_at(0))
        assert metadata == metadata_at(self._position), committed
        self._spans: list[tuple[int, int]] = []

    def wanted(self) -> list[tuple[str, int]]:
        return [(self._output, self._partition)]

    def begin(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return ends

    def take(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        del topic, partition, offset
        assert value is not None
        first, after = map(int, value.split())
        self._spans.append((first, after))

    def finish(self, writer: bytes) -> OffsetsCore:
        durable = 0
        for first, after in sorted(self._spans):
            durable = max(durable, after) if first <= durable else durable
        self._log.write("R", writer.hex(), self._partition, self._position, durable)
        return OffsetsCore(self._log, self._output, self._partition, self._position, writer)


class OffsetsCores:
    """Takes the place of processors.restores.Restores."""

    def __init__(self, admin: Admin, log: Log, source: str, output: str) -> None:
        self._admin = admin
        self.topics = self.source_topics = [source]
        self._log, self._output = log, output

    def check(self) -> None:
        for topic in self.topics:
            self._admin.partition_count(topic)

    def make(
        self, topic: str, partition: int, committed: tuple[int, str] | None, log_start: int, log_end: int
    ) -> OffsetsRestore:
        del topic, log_start
        assert committed is None or committed[0] <= log_end
        return OffsetsRestore(self._log, self._output, partition, committed)


def main(kafka: str, group: str, source: str, output: str, path: str) -> None:
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = App(
        Settings(kafka=kafka), OffsetsCores(Admin(kafka), Log(Path(path)), source, output), group=group, **SHORT_SESSION
    )
    app.Worker(quiet=True, override_logging=False, redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main(*sys.argv[1:])
