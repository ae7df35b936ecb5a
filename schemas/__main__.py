"""`python -m schemas setup`: registers every stream's schema and makes its topic. Safe to repeat, safe for two at once.

Exit codes: 0 done; 1 a server is away or refuses; 2 a file, a setting or a topic is wrong. Errors are one line each.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from schemas.admin import Admin, AdminError, WrongTopicError
from schemas.registry import Registry, RegistryAwayError, RegistryError
from schemas.settings import Settings, SettingsError
from schemas.stream import SchemaError, Stream, load_streams
from schemas.topics import seen_topic, stream_topic, subject

DONE, SERVER_TROUBLE, WRONG_SETUP = 0, 1, 2
WAIT_S, WAIT_S_MAX = 30.0, 3600.0


@dataclass(frozen=True)
class Done:
    """What setup found or made for one stream."""

    stream: str
    topic: str
    topic_id: str
    partitions: int
    subject: str
    schema_id: int

    def __str__(self) -> str:
        return (
            f"{self.stream}: topic {self.topic} with {self.partitions} partitions,"
            f" schema {self.schema_id} as {self.subject}"
        )


def setup(streams: Mapping[str, Stream], settings: Settings, registry: Registry, admin: Admin) -> Iterator[Done]:
    """Bring registry and broker into line with the streams, one after the other."""
    for stream in streams.values():
        schema_id = registry.register(subject(stream.topic), stream.avro)  # first: it refuses what is incompatible
        admin.ensure([stream_topic(stream, settings)])
        partitions = admin.partition_count(stream.topic)
        admin.ensure([seen_topic(stream, partitions, settings)])
        yield Done(
            stream.name, stream.topic, admin.topic_id(stream.topic), partitions, subject(stream.topic), schema_id
        )


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m schemas",
        description="Contracts of the pipeline: registers schemas and makes topics, as schemas/streams/*.avsc say.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("setup", help="register every stream's schema and make its topics")
    command.add_argument("--json", action="store_true", help="one JSON object per stream instead of a sentence")
    command.add_argument(
        "--wait", type=_seconds, default=WAIT_S, metavar="SECONDS", help="how long to wait for servers (default 30)"
    )
    chosen = parser.parse_args(arguments)
    try:
        settings = Settings.from_environ(environ)
        streams = load_streams(settings.streams)
        registry = Registry(settings.registry, chosen.wait)
        admin = Admin(settings.kafka, chosen.wait)
        for done in setup(streams, settings, registry, admin):
            sys.stdout.write((json.dumps(asdict(done)) if chosen.json else str(done)) + "\n")
    except RegistryAwayError as error:
        return _fail(error, SERVER_TROUBLE)
    except (SettingsError, SchemaError, RegistryError, WrongTopicError) as error:
        return _fail(error, WRONG_SETUP)
    except AdminError as error:
        return _fail(error, SERVER_TROUBLE)
    return DONE


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= WAIT_S_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {WAIT_S_MAX:g}")
    return seconds


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"schemas: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
