"""Topics as they are described: what is kept, for how long, and what must never be deleted."""

from io import BytesIO
from pathlib import Path

import fastavro
import pytest

from processors.plan import load_views
from processors.records import group_bytes, row_key
from processors.rows import row_schema
from schemas.settings import Settings
from schemas.stream import Stream, build_stream, load_streams
from schemas.topics import (
    RECORD_BYTES_MAX,
    STREAM_BYTES,
    VIEW_BYTES,
    VIEW_RETENTION_HOURS,
    TopicSpec,
    partials_topic,
    seen_topic,
    stream_topic,
    subject,
    view_topic,
)

STREAMS = load_streams(Path(__file__).parent.parent / "schemas" / "streams")
SETTINGS = Settings()
DAY_S = 86_400
KAFKA_BYTES = 61 + 10 + 8  # of a batch, of a record in it, of a key: a batch holds one record at 10 Hz


def every_topic() -> list[TopicSpec]:
    bpm = STREAMS["bpm"]
    return [
        stream_topic(bpm, SETTINGS),
        seen_topic(bpm, 4, SETTINGS),
        partials_topic("bpm_1s", SETTINGS),
        view_topic("bpm_1s", SETTINGS),
    ]


def with_attributes(stream: Stream, **attributes: int) -> Stream:
    avro = stream.avro | {"strobe": stream.avro["strobe"] | attributes}
    return build_stream(avro, "changed.avsc")


@pytest.mark.parametrize("spec", every_topic(), ids=lambda spec: spec.name)
def test_every_topic_is_stamped_by_the_broker(spec: TopicSpec) -> None:
    assert spec.required["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.parametrize("spec", every_topic(), ids=lambda spec: spec.name)
def test_every_topic_takes_a_record_of_the_largest_size(spec: TopicSpec) -> None:
    assert int(spec.config["max.message.bytes"]) == RECORD_BYTES_MAX


def test_a_stream_is_never_compacted_because_its_key_is_the_source() -> None:
    assert stream_topic(STREAMS["bpm"], SETTINGS).config["cleanup.policy"] == "delete"


def test_age_never_deletes_what_a_restart_builds_on() -> None:
    for spec in (partials_topic("bpm_1s", SETTINGS), seen_topic(STREAMS["bpm"], 4, SETTINGS)):
        assert spec.config["cleanup.policy"] == "compact"
        assert not spec.config.keys() & {"retention.ms", "retention.bytes"}


def test_partials_and_rows_of_a_view_are_hashed_to_the_same_partitions() -> None:
    partials, rows = partials_topic("bpm_1s", SETTINGS), view_topic("bpm_1s", SETTINGS)
    assert partials.partitions == rows.partitions
    assert partials.growth == rows.growth == "exact"


def test_the_topic_of_seen_triggers_follows_the_stream_partition_by_partition() -> None:
    spec = seen_topic(STREAMS["bpm"], 7, SETTINGS)
    assert (spec.name, spec.partitions, spec.growth) == ("bpm.v1.seen", 7, "follows")


def test_the_schema_decides_on_partitions_and_hours_where_it_speaks() -> None:
    spec = stream_topic(with_attributes(STREAMS["bpm"], partitions=12, retention_hours=24), SETTINGS)
    assert spec.partitions == 12
    assert int(spec.config["retention.ms"]) == DAY_S * 1000
    assert stream_topic(STREAMS["bpm"], SETTINGS).partitions == SETTINGS.partitions


def test_all_partitions_together_keep_the_bytes_that_are_stated() -> None:
    for partitions in (1, 3, 4, 12):
        spec = stream_topic(with_attributes(STREAMS["bpm"], partitions=partitions), SETTINGS)
        kept_bytes = int(spec.config["retention.bytes"]) * partitions
        assert STREAM_BYTES - partitions < kept_bytes <= STREAM_BYTES


def test_twenty_gigabytes_last_the_days_that_the_arithmetic_states() -> None:
    record = {
        "source": "crate-1",
        "run": 1_763_689_500_000,
        "trigger_id": 123_456,
        "time": 1_763_689_500_000_000,
        "readings": [
            {"instrument_id": f"bpm-{n:03}", "status": 0, "top_in": 0.5, "bot_in": 0.5, "bot_out": 0.5, "top_out": 0.5}
            for n in range(30)
        ],
    }
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(STREAMS["bpm"].avro), record)
    record_bytes = 5 + len(body.getvalue()) + KAFKA_BYTES
    assert 970 < record_bytes < 990
    days = STREAM_BYTES / (record_bytes * 4 * 10 * DAY_S)
    assert 5.8 < days < 6.0


def test_a_views_topic_keeps_the_rows_of_its_hours_once_they_are_compacted() -> None:
    plan = load_views(Settings().views, STREAMS)["bpm_1s"]
    filled = {"instrument_id": "bpm001", "mark_partition": None, "mark_offset": None, "closed": True, "live": True}
    schema = row_schema(plan, STREAMS["bpm"])
    body = BytesIO()
    row = {field["name"]: 1 for field in schema["fields"]} | filled
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), row)
    key = row_key(1_763_689_500, bytes(16), group_bytes(["bpm001"]))
    row_bytes = 5 + len(body.getvalue()) + len(key) + 10  # Kafka's own, in a batch of many
    assert 280 < row_bytes < 320
    assert row_bytes * 120 * VIEW_RETENTION_HOURS * 3600 < VIEW_BYTES


def test_an_acknowledged_record_outlives_a_broker_where_there_are_three() -> None:
    three = Settings(replication=3)
    assert stream_topic(STREAMS["bpm"], three).config["min.insync.replicas"] == "2"
    assert stream_topic(STREAMS["bpm"], SETTINGS).config["min.insync.replicas"] == "1"


def test_a_subject_is_named_after_its_topic() -> None:
    assert subject("bpm.v1") == "bpm.v1-value"
