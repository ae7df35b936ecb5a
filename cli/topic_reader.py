"""Reads a stream's topic by itself, with fastavro: the proof must not lean on the codec that it checks."""

import io
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cli.failure import FailedError
from cli.stream_map import NotThereError, StreamMap, ask
from cli.verify import WHOLE_RECORD, Place, Readings

SILENT_S_MAX = 30.0  # a broker that hands over nothing for so long is taken to be away
RECORDS_AT_ONCE = 2_000
POLL_S = 0.1
READINGS_MAX = 20_000_000  # held in memory at once: about 5 GB on the way
INT64 = range(-(1 << 63), 1 << 63)

Rows = list[tuple[int, int, int, int, int, int]]


class Names:
    """Codes of instruments, shared by topic and table. Numbers and texts that look alike are one."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, instrument: object) -> int:
        return self._codes.setdefault(str(instrument), len(self._codes))


class TopicReader:
    """For example::

    topic, unreadable = TopicReader(kafka, registry, stream, names).read(begins, ends)
    """

    def __init__(self, kafka: str, registry: str, stream: StreamMap, names: Names) -> None:
        self._kafka = kafka
        self._registry = registry
        self._stream = stream
        self._names = names
        self._schemas: dict[int, Any] = {}

    def read(self, begins: dict[int, int], ends: dict[int, int]) -> tuple[Readings, set[Place]]:
        """All identities of these offsets, and the places of what has none."""
        rows: Rows = []
        unreadable: set[Place] = set()
        for partition, offset, payload in self._messages(begins, ends):
            records = self._decoded(payload)
            if records is None:
                unreadable.add((partition, offset, WHOLE_RECORD))
                continue
            for index, (run, trigger, instrument) in enumerate(records):
                if run in INT64 and trigger in INT64:
                    rows.append((run, trigger, self._names.code(instrument), partition, offset, index))
                else:
                    unreadable.add((partition, offset, index))
            if len(rows) > READINGS_MAX:
                raise FailedError(
                    f"{self._stream.topic} holds more than {READINGS_MAX:,} readings in this span;"
                    " compare a shorter one with --last HOURS"
                )
        return Readings.of(rows), unreadable

    def _decoded(self, payload: bytes | None) -> list[tuple[Any, Any, Any]] | None:
        """(run, trigger, instrument) of each reading; None: not a record."""
        if payload is None or len(payload) < 5 or payload[0] != 0:
            return None
        schema = self._schema(int.from_bytes(payload[1:5], "big"))
        if schema is None:
            return None
        stream, body = self._stream, io.BytesIO(payload[5:])
        try:
            record: Any = fastavro.schemaless_reader(body, schema, None)
            if body.read(1):
                return None
            readings = record[stream.readings] if stream.readings else [record]
            return [(record[stream.run], record[stream.trigger], one[stream.instrument]) for one in readings]
        except Exception:  # noqa: BLE001 - damaged bytes lead fastavro to whatever exception
            return None

    def _schema(self, schema_id: int) -> Any:  # noqa: ANN401 - parsed by fastavro
        if schema_id not in self._schemas:
            try:
                text = ask(self._registry, f"/schemas/ids/{schema_id}")["schema"]
                self._schemas[schema_id] = fastavro.parse_schema(json.loads(text))
            except NotThereError:
                self._schemas[schema_id] = None
        return self._schemas[schema_id]

    def _messages(self, begins: dict[int, int], ends: dict[int, int]) -> Iterator[tuple[int, int, bytes | None]]:
        left = {partition: end for partition, end in ends.items() if begins.get(partition, 0) < end}
        if not left:
            return
        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka,
                "group.id": f"proof-{uuid.uuid4()}",  # asked for by the library; nothing is ever committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,  # the last offset may be of a control record, which is never handed over
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        topic = self._stream.topic
        consumer.assign([TopicPartition(topic, partition, begins.get(partition, 0)) for partition in left])
        try:
            heard_s = time.monotonic()
            while left:
                messages = consumer.consume(RECORDS_AT_ONCE, POLL_S)  # waits for so many, or so long
                if messages:
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > SILENT_S_MAX:
                    raise FailedError(f"Kafka at {self._kafka} hands over nothing of {topic} for {SILENT_S_MAX:.0f} s")
                for message in messages:
                    partition, offset = message.partition(), message.offset()
                    if partition is None or offset is None:
                        continue
                    trouble = message.error()
                    if trouble is None and offset < ends[partition]:
                        yield partition, offset, message.value()
                    elif trouble is not None and trouble.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                        raise FailedError(f"{topic} cannot be read: {trouble.str()}")
                    at_end = trouble is not None or offset >= ends[partition] - 1
                    if at_end and left.pop(partition, None) is not None:
                        consumer.incremental_unassign([TopicPartition(topic, partition)])
        except KafkaException as error:
            raise FailedError(f"{topic} cannot be read: {error.args[0].str()}") from None
        finally:
            consumer.close()
