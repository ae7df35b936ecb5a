"""Ports of the local servers: read from the environment, checked before anything starts."""

import socket

import pytest

from deploy.local.error import LocalStackError
from deploy.local.ports import FREE_RANGE, HOST, Ports, free_ports, require_free


def test_ports_come_from_the_environment_one_by_one() -> None:
    ports = Ports.from_environ({"STROBE_KAFKA_PORT": "29092", "STROBE_REGISTRY_PORT": ""})
    assert ports == Ports(kafka=29092)


@pytest.mark.parametrize("text", ["-1", "65536", "kafka", "1.5"])
def test_a_port_that_is_none_is_refused_with_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(LocalStackError, match="STROBE_KAFKA_PORT"):
        Ports.from_environ({"STROBE_KAFKA_PORT": text})


def test_zero_picks_different_ports_where_the_kernel_gives_none_to_others() -> None:
    ports = Ports.any_free().settled()
    chosen = {ports.kafka, ports.controller, ports.database, ports.registry}
    assert len(chosen) == 4
    assert all(port in FREE_RANGE for port in chosen)


def test_named_ports_stay_as_they_are() -> None:
    assert Ports(kafka=29092, controller=0).settled().kafka == 29092


def test_a_taken_port_is_told_in_one_line_with_the_setting_that_changes_it() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(LocalStackError) as error:
            require_free(taken, "Kafka", "kafka")
    assert str(taken) in str(error.value)
    assert "STROBE_KAFKA_PORT" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_free_port_passes() -> None:
    require_free(free_ports(["kafka"])["kafka"], "Kafka", "kafka")
