"""Where every setting comes from: one table of environment variables, read by every stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


class SettingsError(ValueError):
    """A setting that cannot be used, with its name and the remedy."""


@dataclass(frozen=True)
class Settings:
    """What a stage must know of its surroundings.

    For example::

        settings = Settings.from_environ(os.environ)  # in __main__.py only
    """

    kafka: str = "127.0.0.1:19092"  # STROBE_KAFKA: bootstrap servers, host:port[,host:port]
    registry: str = "http://127.0.0.1:18081/apis/ccompat/v7"  # STROBE_REGISTRY: Confluent-compatible URL
    database: str = "postgresql://strobe_owner@127.0.0.1:15432/strobe"  # STROBE_DATABASE: URL, role included
    streams: Path = Path(__file__).parent / "streams"  # STROBE_STREAMS: folder of *.avsc
    views: Path = Path(__file__).parent.parent / "processors" / "views"  # STROBE_VIEWS: folder of *.sql
    partitions: int = 4  # STROBE_PARTITIONS: of each topic that is created
    replication: int = 1  # STROBE_REPLICATION: of each topic that is created
    max_skew_s: float = 60.0  # STROBE_MAX_SKEW_S: how far event time may lie ahead of the append time
    out_of_orderness_s: float = 2.0  # STROBE_OUT_OF_ORDERNESS_S: how far the watermark stays behind
    status_file: Path | None = None  # STROBE_STATUS_FILE: where the stage writes its figures every second
    log_level: str = "info"  # STROBE_LOG_LEVEL: debug, info, warning or error

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        def number(name: str, default: float, least: float) -> float:
            text = environ.get(name)
            if not text:
                return default
            try:
                value = float(text)
            except ValueError:
                raise SettingsError(f"{name}={text!r} is not a number; unset it for {default:g}") from None
            if not least <= value < float("inf"):
                raise SettingsError(f"{name}={text!r} must be at least {least:g}; unset it for {default:g}")
            return value

        def count(name: str, default: int) -> int:
            value = number(name, default, 1)
            if value != int(value):
                raise SettingsError(f"{name}={value:g} must be a whole number; unset it for {default}")
            return int(value)

        level = environ.get("STROBE_LOG_LEVEL") or cls.log_level
        if level not in ("debug", "info", "warning", "error"):
            raise SettingsError(f"STROBE_LOG_LEVEL={level!r}: choose debug, info, warning or error")
        status_file = environ.get("STROBE_STATUS_FILE")
        return cls(
            kafka=environ.get("STROBE_KAFKA") or cls.kafka,
            registry=environ.get("STROBE_REGISTRY") or cls.registry,
            database=environ.get("STROBE_DATABASE") or cls.database,
            streams=Path(environ.get("STROBE_STREAMS") or cls.streams),
            views=Path(environ.get("STROBE_VIEWS") or cls.views),
            partitions=count("STROBE_PARTITIONS", cls.partitions),
            replication=count("STROBE_REPLICATION", cls.replication),
            max_skew_s=number("STROBE_MAX_SKEW_S", cls.max_skew_s, 0),
            out_of_orderness_s=number("STROBE_OUT_OF_ORDERNESS_S", cls.out_of_orderness_s, 0),
            status_file=Path(status_file) if status_file else None,
            log_level=level,
        )
