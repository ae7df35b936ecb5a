"""A database of one test module's own on the shared server, and batches made without Kafka."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

from schemas.batch import RawBatch, Vector
from schemas.encoder import Encoder, Outgoing
from schemas.stream import Stream, build_stream

SCHEMA_ID = 7
START_US = 1_790_000_000_000_000


class Databases:
    """URLs of one database, by role."""

    def __init__(self, stack: Any, name: str) -> None:
        self._stack = stack
        self.name = name

    def url(self, role: str = "owner") -> str:
        return str(self._stack.database(role).rsplit("/", 1)[0] + "/" + self.name)

    @contextmanager
    def open(self, role: str = "owner") -> Iterator[Connection]:
        connection = psycopg2.connect(self.url(role))
        try:
            yield connection
            connection.commit()
        finally:
            connection.close()

    def rows(self, sql: str, *parameters: Any, role: str = "owner") -> list[tuple[Any, ...]]:
        with self.open(role) as connection, connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def value(self, sql: str, *parameters: Any, role: str = "owner") -> Any:
        return self.rows(sql, *parameters, role=role)[0][0]


@contextmanager
def fresh_database(stack: Any, *, extension: bool = True) -> Iterator[Databases]:
    databases = Databases(stack, f"sinks_{uuid.uuid4().hex[:12]}")
    superuser = psycopg2.connect(stack.database("superuser"))
    superuser.autocommit = True
    with superuser.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {databases.name} OWNER strobe_owner")
    if extension:
        with databases.open("superuser") as inside, inside.cursor() as cursor:
            cursor.execute("CREATE EXTENSION timescaledb")
    try:
        yield databases
    finally:
        with superuser.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {databases.name} WITH (FORCE)")
        superuser.close()


def tank_avro(
    *, instrument: str = "string", values: tuple[str, ...] = ("level", "flow"), **strobe: Any
) -> dict[str, Any]:
    """A stream that is not the ring's: one array of readings, two values of which may be null."""
    fields = [{"name": "tank", "type": instrument, "strobe": {"role": "instrument", "meaning": "the tank"}}]
    fields += [
        {"name": name, "type": ["null", "double"], "default": None,
         "strobe": {"role": "value", "unit": "m", "meaning": f"the {name}"}} for name in values
    ]  # fmt: skip
    return {
        "type": "record", "name": "TankTrigger", "doc": "Levels of the tanks.",
        "strobe": {"stream": "tanks", "topic": "tanks.v1", **strobe},
        "fields": [
            {"name": "source", "type": "string", "strobe": {"role": "source"}},
            {"name": "run", "type": "long", "strobe": {"role": "run"}},
            {"name": "shot", "type": "long", "strobe": {"role": "trigger"}},
            {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}, "strobe": {"role": "time"}},
            {"name": "readings", "strobe": {"role": "readings"},
             "type": {"type": "array", "items": {"type": "record", "name": "TankReading", "fields": fields}}},
        ],
    }  # fmt: skip


def tank_stream(**options: Any) -> Stream:
    return build_stream(tank_avro(**options), "tanks.avsc")


def payloads(stream: Stream, triggers: list[int], *, tanks: int = 3, ahead_us: int = 0) -> list[bytes]:
    """One record per trigger number, with a reading of each tank; the value tells trigger and tank."""
    n = len(triggers)
    texts = stream.instrument.type == "string"
    names: Any = [f"tank{k}" for k in range(tanks)] * n if texts else np.tile(np.arange(tanks), n)
    values = np.repeat(np.array(triggers, np.float64), tanks) + np.tile(np.arange(tanks) / 8, n)
    return Encoder(stream, SCHEMA_ID).encode(
        Outgoing(
            source=["hall"] * n,
            run=np.ones(n, np.int64),
            trigger=np.array(triggers, np.int64),
            time_us=START_US + 100_000 * np.array(triggers, np.int64) + ahead_us,
            counts=np.full(n, tanks, np.int64),
            instrument=names,
            status=np.zeros(n * tanks, np.int32),
            values={
                field.name: Vector(values, np.arange(n * tanks) % 5 != 0 if field.name == "flow" else values > -1)
                for field in stream.values
            },
        )
    )


def batch(first: int, values: list[bytes], *, topic: str = "tanks.v1", partition: int = 0) -> RawBatch:
    """As a fetch from `first` on would bring the payloads; appended 50 ms after the trigger of that offset."""
    sizes = np.array([len(value) for value in values], np.int64)
    offsets = np.arange(first, first + len(values), dtype=np.int64)
    return RawBatch(
        topic=topic,
        partition=partition,
        first=first,
        next=first + len(values),
        data=np.frombuffer(b"".join(values), np.uint8),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        offsets=offsets,
        append_us=START_US + 100_000 * offsets + 50_000,
    )
