"""What server.properties says, and that it says it in Kafka's own names."""

from pathlib import Path

from deploy.local.kafka import MESSAGE_BYTES_MAX, properties


def settings() -> dict[str, str]:
    text = properties(29092, 29093, Path("/srv/home/data/kafka/logs"))
    return {name: value for name, _, value in (line.partition("=") for line in text.splitlines())}


def test_the_broker_listens_on_loopback_only() -> None:
    listeners = settings()["listeners"] + "," + settings()["advertised.listeners"]
    assert {part.split("//")[1].split(":")[0] for part in listeners.split(",")} == {"127.0.0.1"}


def test_positions_outlast_a_long_shutdown_and_topics_are_made_on_purpose_only() -> None:
    assert int(settings()["offsets.retention.minutes"]) >= 365 * 24 * 60
    assert settings()["auto.create.topics.enable"] == "false"
    assert int(settings()["message.max.bytes"]) == MESSAGE_BYTES_MAX == 10 * 2**20


def test_each_setting_is_named_once() -> None:
    lines = properties(1, 2, Path("/x")).splitlines()
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
