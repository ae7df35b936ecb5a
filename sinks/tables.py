"""Which tables follow from a stream or a view: names, types, units, meanings. Knows no database.

Raw rows carry where they came from (partition, offset, index): provenance, a way to verify, and the order in which a
recomputation absorbs them. No unique index is needed for exactly once, so COPY stays fast.

How much that is, at 120 instruments and 10 Hz (1,200 rows/s; measured with TimescaleDB 2.19):

    a row of `bpm`: 110 bytes of table, 56 of index          198 kB/s, 17 GB a day: 20 GB last 28 hours
    a row of `bpm_1s`: 420 bytes of table, 50 of key          56 kB/s, 4.9 GB a day
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.stream import Stream

US = 1_000_000
HOUR_US = 3600 * US
DAY_US = 24 * HOUR_US

# A chunk should keep its hot index pages in memory, and not be so small that a month of chunks slows planning. At
# 1,200 rows/s an hour is 4.3 million rows (0.7 GB); 100,000 instruments touch a page each whatever the interval.
# An operator may change it (set_chunk_time_interval): it is set when the table is made and never again.
RAW_CHUNK_US = HOUR_US
RAW_KEEP_US = 7 * DAY_US  # what the topic keeps at most; 120 GB at 1,200 rows/s, so set strobe.retention to the disk
VIEW_CHUNK_WINDOWS = 14_400  # per group: four hours of a view that hops by a second, ten days of one by a minute
VIEW_KEEP_WINDOWS = 604_800  # per group: a week of a view that hops by a second, 14 months of one by a minute

TYPES: dict[str, str] = {  # of a stream's field -> of its column
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "timestamp": "timestamp with time zone",
}
TIMESTAMP = TYPES["timestamp"]


class ViewSchemaError(ValueError):
    """A schema in the registry that says it is a view's, and is not as it must be."""


@dataclass(frozen=True)
class Column:
    """A column; `comment` is unit and meaning as the operator reads them."""

    name: str
    type: str  # as PostgreSQL writes it in full (format_type)
    required: bool
    comment: str


@dataclass(frozen=True)
class Table:
    """A table that the pipeline fills. `time` names the column by which a hypertable is cut into chunks."""

    schema: str
    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    time: str | None = None
    chunk_us: int = 0
    keep_us: int = 0
    index: tuple[str, ...] = ()  # instrument first, then time, newest first
    fillfactor: int = 100

    @property
    def path(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def types(self) -> list[str]:
        return [column.type for column in self.columns]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


@dataclass(frozen=True)
class View:
    """A continuous view as its topic's schema describes it."""

    name: str
    stream: str
    generation: int
    fingerprint: str
    group: tuple[str, ...]
    pane_us: int
    size_us: int
    hop_us: int
    lateness_us: int
    meaning: str
    group_columns: tuple[Column, ...]
    outputs: tuple[Column, ...]


def quoted(name: str) -> str:
    """A name as SQL wants it, be it a word of SQL or not."""
    return '"' + name.replace('"', '""') + '"'


def unit_and_meaning(unit: str, meaning: str) -> str:
    """The comment of a column: `amplitude, top inner button [V]`."""
    return f"{meaning} [{unit}]" if unit and unit != "1" else meaning


def _role_columns(stream: Stream) -> list[Column]:
    fields = [stream.time, stream.instrument, stream.source, stream.run, stream.trigger]
    fields += [stream.status] if stream.status else []
    roles = [Column(f.name, TYPES[f.type], required=True, comment=unit_and_meaning(f.unit, f.meaning)) for f in fields]
    return roles + [
        Column(f.name, TYPES[f.type], required=False, comment=unit_and_meaning(f.unit, f.meaning))
        for f in stream.values
    ]


_PROVENANCE = (
    Column("kafka_partition", "integer", required=True, comment="partition of the record in the stream's topic"),
    Column("kafka_offset", "bigint", required=True, comment="offset of the record in that partition"),
    Column("reading_index", "integer", required=True, comment="of the reading within its record, from 0"),
    Column("incarnation", "smallint", required=True, comment="life of the topic (strobe.incarnations)"),
)


def raw_table(stream: Stream) -> Table:
    """`<stream>`: a row for each good reading."""
    return Table(
        schema="public",
        name=stream.name,
        comment=stream.meaning or f"Readings of the stream {stream.name}.",
        columns=(*_role_columns(stream), *_PROVENANCE),
        time=stream.time.name,
        chunk_us=RAW_CHUNK_US,
        keep_us=RAW_KEEP_US,
        index=(stream.instrument.name, stream.time.name),
    )


def latest_table(stream: Stream) -> Table:
    """`<stream>_latest`: the newest reading of each instrument, by event time."""
    return Table(
        schema="public",
        name=f"{stream.name}_latest",
        comment=f"The newest reading of each instrument, by event time. {stream.meaning}".strip(),
        columns=(*_role_columns(stream), *_PROVENANCE),
        key=(stream.instrument.name,),
        fillfactor=40,  # each row is updated many times a second: room for the next versions in the same page
    )


_VERSION = (
    Column("generation", "integer", required=True, comment="of the view's definition; the higher one counts"),
    Column("revision", "bigint", required=True, comment="readings absorbed in the window; the higher one counts"),
    Column("closed", "boolean", required=True, comment="true: every source partition has passed the window's end"),
    Column("live", "boolean", required=True, comment="false: the row does not satisfy HAVING"),
)
_WINDOW = (
    Column("window_start", TIMESTAMP, required=True, comment="begin of the window, UTC, inclusive"),
    Column("window_end", TIMESTAMP, required=True, comment="end of the window, UTC, exclusive"),
)


def view_table(view: View) -> Table:
    """`strobe.<view>_rows`: every row of the view with its version, also those that are not shown."""
    return Table(
        schema="strobe",
        name=f"{view.name}_rows",
        comment=f"Rows of the view {view.name} with their versions.",
        columns=(*view.group_columns, *_WINDOW, *_VERSION, *view.outputs),
        key=(*view.group, "window_start"),
        time="window_start",
        chunk_us=max(HOUR_US, VIEW_CHUNK_WINDOWS * view.hop_us),
        keep_us=VIEW_KEEP_WINDOWS * view.hop_us,
        fillfactor=70,  # an open window's row is updated four times a second
    )


def shown_columns(view: View) -> tuple[Column, ...]:
    """What the operator sees of a view: group, window, outputs, then how final the row is."""
    closed, revision = _VERSION[2], _VERSION[1]
    return (*view.group_columns, *_WINDOW, *view.outputs, closed, revision)


def view_of(schema: Mapping[str, Any], subject: str) -> View | None:
    """Read a view from its topic's schema; None where the schema is not a view's. Raises ViewSchemaError."""
    about = schema.get("strobe")
    if not isinstance(about, dict) or "view" not in about:
        return None
    try:
        fields = {field["name"]: field for field in schema["fields"]}
        group = tuple(about["group"])
        own = {column.name for column in (*_VERSION, *_WINDOW)} | {"mark_partition", "mark_offset"}
        return View(
            name=about["view"],
            stream=about["stream"],
            generation=int(about["generation"]),
            fingerprint=str(about["fingerprint"]),
            group=group,
            pane_us=int(about["pane_us"]),
            size_us=int(about["size_us"]),
            hop_us=int(about["hop_us"]),
            lateness_us=int(about["lateness_us"]),
            meaning=schema.get("doc", ""),
            group_columns=tuple(_column(fields[name], required=True) for name in group),
            outputs=tuple(
                _column(field, required=False)
                for name, field in fields.items()
                if name not in own and name not in group
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ViewSchemaError(
            f"subject {subject}: the schema of a view lacks or misstates {error}; run `python -m processors setup`"
        ) from None


def _column(field: Mapping[str, Any], *, required: bool) -> Column:
    kind = field["type"]
    if isinstance(kind, list):
        kind = next(branch for branch in kind if branch != "null")
    if isinstance(kind, dict):
        kind = "timestamp" if kind.get("logicalType", "").startswith("timestamp") else kind["type"]
    about = field.get("strobe", {})
    comment = unit_and_meaning(about.get("unit", ""), about.get("meaning", field.get("doc", "")))
    return Column(field["name"], TYPES[kind], required, comment)
