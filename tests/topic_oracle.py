"""What the tables must hold, worked out in SQL from the topic itself. Shares no code with the engine.

The topic is read with confluent-kafka and decoded with fastavro; judgement of duplicates, watermarks, lateness,
windows and aggregates are PostgreSQL's.
"""

import io
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import fastavro
import psycopg2.extras
from confluent_kafka import Consumer, TopicPartition

SECOND_US = 1_000_000
READ_S_MAX = 60.0
QUANTITIES = {
    "top_in": "top_in::float8",
    "bot_in": "bot_in::float8",
    "bot_out": "bot_out::float8",
    "top_out": "top_out::float8",
    "x": "((top_out::float8 + bot_out) - (top_in::float8 + bot_in))"
    " / nullif(top_in::float8 + bot_in + bot_out + top_out, 0)",
    "y": "((top_in::float8 + top_out) - (bot_in::float8 + bot_out))"
    " / nullif(top_in::float8 + bot_in + bot_out + top_out, 0)",
}


def read_topic(kafka: str, topic: str) -> list[tuple[int, int, int, bytes]]:
    """(partition, offset, append time in µs, payload) of every record."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "oracle", "enable.partition.eof": False})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p, end in ends.items() if end])
    records: list[tuple[int, int, int, bytes]] = []
    until = time.monotonic() + READ_S_MAX
    while len(records) < sum(ends.values()):
        messages = consumer.consume(10_000, timeout=0.5)
        assert messages or time.monotonic() < until, f"{topic}: {len(records)} of {sum(ends.values())} records came"
        records += [(m.partition(), m.offset(), m.timestamp()[1] * 1000, m.value()) for m in messages]
    consumer.close()
    return records


def schema_id_of(registry: str, subject: str) -> int:
    url = f"{registry}/subjects/{subject}/versions/latest"
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - a server of the test
        return int(json.load(answer)["id"])


class TopicOracle:
    """Tables `oracle.reading` and `oracle.letter`, filled from the bpm topic."""

    def __init__(
        self, database: str, *, max_skew_us: int = 60 * SECOND_US, out_of_orderness_us: int = 2 * SECOND_US
    ) -> None:
        self.connection = psycopg2.connect(database)
        self.connection.autocommit = True
        self.max_skew_us, self.out_of_orderness_us = max_skew_us, out_of_orderness_us

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

    def value(self, sql: str, **parameters: Any) -> Any:
        return self.rows(sql, **parameters)[0][0]

    def load(self, kafka: str, topic: str, schema_file: Path, schema_id: int) -> None:
        """Decode the topic, then judge it. All its good records are of one schema."""
        # Without logical types: an event time far outside the calendar is a number like any other here.
        text = re.sub(r',\s*"logicalType":\s*"timestamp-micros"', "", schema_file.read_text())
        schema = fastavro.parse_schema(json.loads(text))
        readings, letters = [], []
        for partition, offset, append_us, payload in read_topic(kafka, topic):
            try:
                body = io.BytesIO(payload[5:])
                record: Any = fastavro.schemaless_reader(body, schema, None)
                assert payload[:5] == b"\0" + schema_id.to_bytes(4, "big"), "not Confluent's frame of the schema"
                assert not body.read(1), "bytes after the record"
            except Exception as error:  # noqa: BLE001 - fastavro raises what it likes on damaged input
                letters.append((partition, offset, type(error).__name__))
                continue
            for index, r in enumerate(record["readings"]):
                amplitudes = (r["top_in"], r["bot_in"], r["bot_out"], r["top_out"])
                identity = (record["run"], record["trigger_id"], record["time"], r["instrument_id"], r["status"])
                readings.append((partition, offset, index, append_us, *identity, *amplitudes))
        with self.connection.cursor() as cursor:
            cursor.execute("""
                DROP SCHEMA IF EXISTS oracle CASCADE; CREATE SCHEMA oracle;
                CREATE TABLE oracle.letter (p int, o bigint, why text);
                CREATE TABLE oracle.reading (p int, o bigint, i int, append_us bigint, run bigint, trigger_id bigint,
                    time_us bigint, instrument_id text, status int,
                    top_in real, bot_in real, bot_out real, top_out real);
            """)
            for table, rows in (("reading", readings), ("letter", letters)):
                lines = ("\t".join("\\N" if value is None else str(value) for value in row) + "\n" for row in rows)
                cursor.copy_expert(f"COPY oracle.{table} FROM STDIN", io.StringIO("".join(lines)))
            cursor.execute(
                """
                CREATE TABLE oracle.dead AS SELECT * FROM oracle.reading
                    WHERE time_us > append_us + %(skew)s OR time_us < 0;
                CREATE TABLE oracle.good AS
                    SELECT *, row_number() OVER (PARTITION BY p, run, instrument_id, trigger_id ORDER BY o, i) AS copy
                    FROM oracle.reading WHERE NOT (time_us > append_us + %(skew)s OR time_us < 0);
                CREATE TABLE oracle.stored AS
                    SELECT *, max(time_us) OVER (
                        PARTITION BY p ORDER BY o GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                    ) - %(disorder)s AS watermark_us
                    FROM oracle.good WHERE copy = 1;
                """,
                {"skew": self.max_skew_us, "disorder": self.out_of_orderness_us},
            )

    def watermark_us(self) -> int:
        """Of all partitions at rest: an idle one holds nothing back, so the furthest counts."""
        return int(self.value("SELECT max(time_us) FROM oracle.stored")) - self.out_of_orderness_us

    def late(self, pane_us: int, lateness_us: int) -> set[tuple[str, int]]:
        """(instrument, start of the pane) of readings later than lateness."""
        sql = """SELECT DISTINCT instrument_id, time_us / %(pane)s * %(pane)s FROM oracle.stored
                 WHERE (time_us / %(pane)s + 1) * %(pane)s + %(lateness)s <= watermark_us"""
        return {(str(i), int(start)) for i, start in self.rows(sql, pane=pane_us, lateness=lateness_us)}

    def windows(
        self, size_us: int, hop_us: int, instruments: list[str] | None = None
    ) -> dict[tuple[str, int], dict[str, Any]]:
        """Count and aggregates of every window with a reading that has ended, ends next, or tumbles."""
        watermark_us = self.watermark_us()
        last_end = (watermark_us // hop_us + 1) * hop_us if hop_us < size_us else 1 << 62
        values = ", ".join(f"{expression} AS {name}" for name, expression in QUANTITIES.items())
        columns = ", ".join(
            f"avg({q}) AS {q}_mean, stddev_samp({q}) AS {q}_stddev, min({q}) AS {q}_min, max({q}) AS {q}_max,"
            f" max(abs({q})) AS {q}_largest"
            for q in QUANTITIES
        )
        sql = f"""
            WITH reading AS (SELECT instrument_id, time_us, {values} FROM oracle.stored
                             WHERE %(instruments)s::text[] IS NULL OR instrument_id = ANY(%(instruments)s)),
            placed AS (SELECT reading.*, start_us FROM reading, LATERAL generate_series(
                time_us / %(hop)s * %(hop)s - %(size)s + %(hop)s, time_us / %(hop)s * %(hop)s, %(hop)s) AS start_us)
            SELECT instrument_id, start_us, count(*) AS count, start_us + %(size)s <= %(watermark)s AS closed, {columns}
            FROM placed WHERE start_us + %(size)s <= %(last)s GROUP BY 1, 2"""
        parameters = {
            "hop": hop_us,
            "size": size_us,
            "last": last_end,
            "watermark": watermark_us,
            "instruments": instruments,
        }
        with self.connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute(sql, parameters)
            return {(row["instrument_id"], row["start_us"]): dict(row) for row in cursor.fetchall()}
