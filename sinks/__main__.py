"""`python -m sinks migrate | raw | views | accept-topic | accept-gap`: the way into TimescaleDB.

Exit codes: 0 done, or stopped when asked to; 1 a server is away or refuses; 2 a setting, a table, a topic or a
position is not as it must be. Errors are one line each.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial

from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

from schemas.admin import Admin, AdminError, MissingTopicError, WrongTopicError
from schemas.codec import Codec
from schemas.flat import FlatCodec
from schemas.names import TooManyNamesError
from schemas.registry import Registry, RegistryAwayError, RegistryError
from schemas.settings import Settings, SettingsError
from schemas.status import Status
from schemas.stream import SchemaError, Stream, load_streams
from sinks.accept import accept_gap, accept_topic
from sinks.batches import WrongTimestampError
from sinks.consumer import Consumer, ConsumerError, accept_group_gap
from sinks.ddl import TableError
from sinks.health import Report
from sinks.migrate import COMMANDS, load_migrations, migrate
from sinks.raw_stage import GROUP as RAW_GROUP
from sinks.raw_stage import LostRecordsError, RawStage
from sinks.raw_store import WrongIncarnationError
from sinks.tables import View, ViewSchemaError, view_of
from sinks.timescale import DatabaseAwayError, DatabaseSetupError, connect, connect_patiently
from sinks.view_stage import GROUP as VIEW_GROUP
from sinks.view_stage import DamagedRowError, Decoders, LostRowsError, ViewStage

DONE, SERVER_TROUBLE, WRONG_SETUP = 0, 1, 2
ASK_S = 5.0  # a question to the broker or the registry while the stage runs

AWAY = (DatabaseAwayError, RegistryAwayError, AdminError, RegistryError, ConsumerError)
WRONG = (
    SettingsError, SchemaError, DatabaseSetupError, TableError, ViewSchemaError, WrongTopicError, MissingTopicError,
    WrongTimestampError, WrongIncarnationError, LostRecordsError, DamagedRowError,
    LostRowsError, TooManyNamesError,
)  # fmt: skip


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    options = parsed(arguments)
    try:
        settings = Settings.from_environ(environ)
        logging.basicConfig(
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # the registry's client tells every request
        COMMANDS_BY_NAME[options.command](settings, options)
    except WRONG as error:
        return fail(error, WRONG_SETUP)
    except AWAY as error:
        return fail(error, SERVER_TROUBLE)
    except KeyboardInterrupt:
        return DONE
    return DONE


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sinks", description="The way into TimescaleDB. Where everything is: STROBE_* variables."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "migrate",
        help="bring tables, views and rights up to this version and to the schemas (as strobe_owner)",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.add_parser("raw", help="store every reading of every stream, until stopped (as strobe_writer)")
    commands.add_parser("views", help="store the rows of every continuous view, until stopped (as strobe_writer)")
    topic = commands.add_parser("accept-topic", help="go on with a stream's topic that was deleted and made anew")
    topic.add_argument("stream", metavar="STREAM")
    gap = commands.add_parser("accept-gap", help="go on past records that Kafka does not hold any more")
    gap.add_argument("name", metavar="STREAM|VIEW")
    return parser.parse_args(arguments)


def run_migrate(settings: Settings, options: argparse.Namespace) -> None:
    del options
    streams = load_streams(settings.streams)
    views = registered_views(Registry(settings.registry))
    connection = connect_patiently(settings.database, "strobe migrate")
    done = 0
    for line in migrate(connection, load_migrations(), streams.values(), views):
        done += 1
        sys.stdout.write(line + "\n")
    connection.close()
    if not done:
        sys.stdout.write("nothing to do\n")


def run_raw(settings: Settings, options: argparse.Namespace) -> None:
    del options
    streams = load_streams(settings.streams)
    admin = Admin(settings.kafka)
    for stream in streams.values():
        admin.partition_count(stream.topic)  # a missing topic is told here, with the remedy
    connect_patiently(settings.database, "strobe raw sink").close()
    stopping = stop_on_signals()
    registry = Registry(settings.registry, wait_s=ASK_S)
    consumer = Consumer(settings.kafka, RAW_GROUP, [stream.topic for stream in streams.values()], held=True)
    try:
        RawStage(
            streams,
            consumer,
            partial(connect_raw, settings.database),
            lambda stream: Codec(stream, registry.schema),
            Admin(settings.kafka, wait_s=ASK_S).topic_id,
            Report(Status("raw-sink"), settings.status_file),
            round(settings.max_skew_s * 1e6),
        ).run(stopping)
    finally:
        consumer.close()


def connect_raw(url: str) -> Connection:
    """Its position moves in the transaction of the rows: what a crash of the server takes is read again."""
    return connect(url, "strobe raw sink", relaxed=True)


def connect_views(url: str) -> Connection:
    """Its position is in Kafka, which is told of rows only when they are safe: no relaxed commits.

    Measured: 120 rows take 3 to 8 ms instead of 2 to 4, 2000 rows 19 ms either way.
    """
    return connect(url, "strobe view sink", relaxed=False)


def run_views(settings: Settings, options: argparse.Namespace) -> None:
    del options
    registry = Registry(settings.registry)
    topics = [view.name for view in registered_views(registry)]
    if not topics:
        raise DatabaseSetupError("no view is registered; run `python -m processors setup`")
    admin = Admin(settings.kafka)
    for topic in topics:
        admin.partition_count(topic)
    connect_patiently(settings.database, "strobe view sink").close()
    stopping = stop_on_signals()
    asking = Registry(settings.registry, wait_s=ASK_S)
    consumer = Consumer(settings.kafka, VIEW_GROUP, topics, held=False)
    try:
        ViewStage(
            consumer,
            partial(connect_views, settings.database),
            Decoders(asking.schema, FlatCodec),
            Report(Status("view-sink"), settings.status_file),
        ).run(stopping)
    finally:
        consumer.close()


def run_accept_topic(settings: Settings, options: argparse.Namespace) -> None:
    stream = named(settings, options.stream)
    connection = connect_patiently(settings.database, "strobe accept-topic")
    sys.stdout.write(accept_topic(connection, stream, Admin(settings.kafka).topic_id(stream.topic)) + "\n")


def run_accept_gap(settings: Settings, options: argparse.Namespace) -> None:
    admin, streams, name = Admin(settings.kafka), load_streams(settings.streams), options.name
    if name in streams:
        stream = streams[name]
        connection = connect_patiently(settings.database, "strobe accept-gap")
        begins, ends = admin.begin_offsets(stream.topic), admin.end_offsets(stream.topic)
        lines = list(accept_gap(connection, stream, admin.topic_id(stream.topic), begins, ends))
    else:
        views = {view.name for view in registered_views(Registry(settings.registry))}
        if name not in views:
            raise SettingsError(f"no stream or view {name!r}; known are {', '.join([*streams, *sorted(views)])}")
        lines = list(
            accept_group_gap(settings.kafka, VIEW_GROUP, name, admin.begin_offsets(name), admin.end_offsets(name))
        )
    for line in lines or [f"{name}: no gap; every position is within its log"]:
        sys.stdout.write(line + "\n")


COMMANDS_BY_NAME = {
    "migrate": run_migrate,
    "raw": run_raw,
    "views": run_views,
    "accept-topic": run_accept_topic,
    "accept-gap": run_accept_gap,
}


def registered_views(registry: Registry) -> list[View]:
    """The views, found by what their topics' schemas say of themselves."""
    views = []
    for subject in registry.subjects():
        if not subject.endswith("-value"):
            continue
        try:
            _, schema = registry.latest(subject)
        except RegistryAwayError:
            raise
        except RegistryError:
            continue  # someone else's subject: not Avro
        view = view_of(schema, subject)
        if view is not None:
            views.append(view)
    return views


def named(settings: Settings, name: str) -> Stream:
    streams = load_streams(settings.streams)
    if name not in streams:
        raise SettingsError(f"no stream {name!r}; known are {', '.join(streams)}")
    return streams[name]


def stop_on_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"sinks: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
