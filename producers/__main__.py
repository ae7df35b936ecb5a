"""`python -m producers ring|file`: what is to be sent, from the command line. Wires; the work is in the other files."""

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from producers.crates import Crates, default_run
from producers.faults import FaultError
from producers.file_source import FileError, FileSource
from producers.mapping import MappingError, load_mapping
from producers.options import (
    MistakeError,
    build_parser,
    chosen_stream,
    file_pace,
    owned_crates,
    require_buttons,
    ring_faults,
    ring_model,
    ring_speed,
    ring_start_us,
)
from producers.publisher import Publisher, PublishError, StoppedError, TooLargeError
from producers.rows import RowsError
from producers.stage import Stage
from schemas.encoder import EncodeError
from schemas.registry import RegistryError
from schemas.settings import Settings, SettingsError
from schemas.stream import SchemaError, Stream

MISTAKES = (MistakeError, SettingsError, SchemaError, FaultError, MappingError, FileError, RowsError, EncodeError)
FAILURES = (PublishError, RegistryError, TooLargeError)


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 all sent and acknowledged, 1 not so, 2 a mistake in what was asked."""
    stopping = threading.Event()
    try:
        options = build_parser().parse_args(arguments)
        settings = Settings.from_environ(os.environ)
        logging.basicConfig(
            level=settings.log_level.upper(),
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log every question to the registry
        stream = chosen_stream(settings, options.stream)
        command = ring if options.command == "ring" else file
        return command(options, settings, stream, stopping)
    except MISTAKES as mistake:
        print(f"producers: {mistake}", file=sys.stderr)
        return 2
    except FAILURES as failure:
        print(f"producers: {failure}", file=sys.stderr)
        return 1


@contextmanager
def kept_on(kind: type[Exception]) -> Iterator[None]:
    """Say why it stopped early, and go on to the end: what Kafka did not get still counts."""
    try:
        yield
    except kind as stopped:
        print(f"producers: {stopped}", file=sys.stderr)


def ring(options: argparse.Namespace, settings: Settings, stream: Stream, stopping: threading.Event) -> int:
    require_buttons(stream)
    model, faults, owned = ring_model(options), ring_faults(options), owned_crates(options)
    start_us, run, speed = ring_start_us(options, model), options.run, ring_speed(options)
    publisher = Publisher(settings, stream, stopping=stopping.is_set)
    with stopped_by_signals(stopping, publisher), Stage(settings, publisher, stopping) as stage, kept_on(StoppedError):
        publisher.connect()  # before the start is taken: it may have to wait
        begin_us = time.time_ns() // 1000 if start_us is None else start_us
        if run is None:
            run = default_run(begin_us, model.seed) if options.start else time.time_ns() // 1000
        crates = Crates(model, faults, begin_us, run, owned)
        stage.send_ring(crates, float(model.rate_hz) * speed, options.triggers)
    return ended(stage, as_json=options.json)


def file(options: argparse.Namespace, settings: Settings, stream: Stream, stopping: threading.Event) -> int:
    pace = file_pace(options.pace)
    if not options.path.is_file():
        raise MistakeError(f"{options.path}: no such file")
    source = FileSource(options.path, stream, load_mapping(options.mapping, stream))
    console = Console(stderr=True)
    if source.mapping.assumption:
        console.print(
            f"Assumption of {source.mapping.file}: {source.mapping.assumption}", soft_wrap=True, highlight=False
        )
    publisher = Publisher(settings, stream, stopping=stopping.is_set)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} readings"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        stopped_by_signals(stopping, publisher),
        Stage(settings, publisher, stopping) as stage,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(options.path.name, total=source.total_rows())
        with kept_on(StoppedError):
            stage.send_file(source.records(), pace, lambda readings: progress.advance(task, readings))
    return ended(stage, as_json=options.json)


def ended(stage: Stage, *, as_json: bool) -> int:
    """Say what was sent; an error if Kafka does not have all of it."""
    status = stage.status
    if as_json:
        print(json.dumps({"records": status.records, "readings": status.readings, **status.counters}))
    else:
        print(f"producers: {status.records:,} records acknowledged, {status.readings:,} readings", file=sys.stderr)
    stage.check()
    return 0


@contextmanager
def stopped_by_signals(stopping: threading.Event, publisher: Publisher) -> Iterator[None]:
    """SIGTERM and SIGINT: stop at the next trigger; while nothing is connected yet, at once."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        if not publisher.connected:
            raise StoppedError("stopped before anything was sent")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
