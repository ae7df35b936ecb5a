"""Of which processes a pipeline consists, with which command and surroundings each. Starts none. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.home import Home
from cli.servers import Addresses
from cli.supervisor import Stage

ROOT = Path(__file__).resolve().parent.parent

PRODUCER, PROCESSORS, RAW_SINK, VIEW_SINK = "producer", "processors", "raw-sink", "view-sink"
STOP_ORDER = (PRODUCER, PROCESSORS, VIEW_SINK, RAW_SINK)  # up the stream first: each then drains what the last one left


@dataclass(frozen=True)
class OneShot:
    """A job that runs to its end before the stages start."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Ring:
    """What the simulated ring is asked to send."""

    instruments: int = 120
    rate_hz: float = 10.0
    sources: int = 4
    seed: int = 1

    def arguments(self) -> tuple[str, ...]:
        return (
            *("--instruments", str(self.instruments), "--rate", f"{self.rate_hz:g}"),
            *("--sources", str(self.sources), "--seed", str(self.seed)),
        )


def surroundings(addresses: Addresses, environ: Mapping[str, str], role: str | None) -> dict[str, str]:
    """The environment of a child: ours, with the addresses; the database only for whom it concerns."""
    child = {name: value for name, value in environ.items() if name not in ("STROBE_DATABASE", "STROBE_STATUS_FILE")}
    child |= {"STROBE_KAFKA": addresses.kafka, "STROBE_REGISTRY": addresses.registry}
    child |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if role is not None:
        child["STROBE_DATABASE"] = addresses.databases[role]
    return child


def one_shots(addresses: Addresses, environ: Mapping[str, str]) -> list[OneShot]:
    """In this order: topics and schemas, what the views need, the tables."""
    python = (sys.executable, "-m")
    return [
        OneShot("schemas setup", (*python, "schemas", "setup"), surroundings(addresses, environ, None)),
        OneShot("processors setup", (*python, "processors", "setup"), surroundings(addresses, environ, None)),
        OneShot("sinks migrate", (*python, "sinks", "migrate"), surroundings(addresses, environ, "owner")),
    ]


def stages(home: Home, addresses: Addresses, environ: Mapping[str, str], ring: Ring | None) -> list[Stage]:
    """In the order in which a trigger passes them; without a producer when there is no ring."""

    def stage(name: str, *command: str, role: str | None = None) -> Stage:
        status_file = home.status_file(name)
        around = {**surroundings(addresses, environ, role), "STROBE_STATUS_FILE": str(status_file)}
        return Stage(name, (sys.executable, "-m", *command), around, status_file, home.log_file(name), ROOT)

    producer: Sequence[Stage] = (stage(PRODUCER, "producers", "ring", *ring.arguments()),) if ring else ()
    return [
        *producer,
        stage(PROCESSORS, "processors"),
        stage(RAW_SINK, "sinks", "raw", role="writer"),
        stage(VIEW_SINK, "sinks", "views", role="writer"),
    ]
