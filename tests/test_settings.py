"""Settings come from the environment, and one that cannot be used ends in one line with its name and the remedy."""

from pathlib import Path

import pytest

from schemas.settings import Settings, SettingsError
from schemas.stream import load_streams


def test_an_empty_environment_gives_the_local_servers() -> None:
    assert Settings.from_environ({}) == Settings()


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert Settings.from_environ({"STROBE_KAFKA": "", "STROBE_PARTITIONS": "", "STROBE_STREAMS": ""}) == Settings()


def test_every_variable_arrives() -> None:
    settings = Settings.from_environ(
        {
            "STROBE_KAFKA": "k1:9092,k2:9092",
            "STROBE_REGISTRY": "http://r:8081",
            "STROBE_DATABASE": "postgresql://w@d/strobe",
            "STROBE_STREAMS": "/etc/streams",
            "STROBE_VIEWS": "/etc/views",
            "STROBE_PARTITIONS": "12",
            "STROBE_REPLICATION": "3",
            "STROBE_MAX_SKEW_S": "0.5",
            "STROBE_OUT_OF_ORDERNESS_S": "0",
            "STROBE_STATUS_FILE": "/run/status.json",
            "STROBE_LOG_LEVEL": "debug",
        }
    )
    assert settings == Settings(
        kafka="k1:9092,k2:9092",
        registry="http://r:8081",
        database="postgresql://w@d/strobe",
        streams=Path("/etc/streams"),
        views=Path("/etc/views"),
        partitions=12,
        replication=3,
        max_skew_s=0.5,
        out_of_orderness_s=0.0,
        status_file=Path("/run/status.json"),
        log_level="debug",
    )


@pytest.mark.parametrize("name", ["PARTITIONS", "REPLICATION", "MAX_SKEW_S", "OUT_OF_ORDERNESS_S"])
@pytest.mark.parametrize("value", ["four", "-1", "nan", "inf", "1e999"])
def test_a_number_that_is_none_is_refused_by_name_in_one_line(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"STROBE_{name}='{value}'.*unset it for") as error:
        Settings.from_environ({f"STROBE_{name}": value})
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["PARTITIONS", "REPLICATION"])
@pytest.mark.parametrize("value", ["0", "0.9", "2.5"])
def test_a_count_that_is_no_whole_number_above_zero_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"STROBE_{name}"):
        Settings.from_environ({f"STROBE_{name}": value})


def test_an_unknown_log_level_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(SettingsError, match="STROBE_LOG_LEVEL='loud': choose debug, info, warning or error"):
        Settings.from_environ({"STROBE_LOG_LEVEL": "loud"})


def test_the_streams_that_are_shipped_lie_where_the_settings_point() -> None:
    assert {"bpm", "doros"} <= load_streams(Settings().streams).keys()
