"""The Avro schema of a view's topic: finished rows, and the marks of late readings among them."""

from typing import Any

from processors.plan import GroupColumn, Plan
from schemas.stream import Stream

NAMESPACE = "strobe.views"
TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
AVRO_TYPES = {"bigint": "long", "double precision": "double", "text": "string"}
ENGINE_FIELDS: tuple[dict[str, Any], ...] = (
    {"name": "generation", "type": "int", "doc": "of the view's definition"},
    {"name": "revision", "type": "long", "doc": "number of readings absorbed in the window: it only grows"},
    {"name": "closed", "type": "boolean", "doc": "every source has passed the window's end"},
    {"name": "live", "type": "boolean", "doc": "false: the row is withdrawn, readers leave it out"},
    {
        "name": "mark_partition",
        "type": ["null", "int"],
        "default": None,
        "doc": "not null: no row but the mark of a late reading; the window is its pane, its columns are null",
    },
    {"name": "mark_offset", "type": ["null", "long"], "default": None, "doc": "of the late reading in the stream"},
    {"name": "window_start", "type": TIMESTAMP, "doc": "included"},
    {"name": "window_end", "type": TIMESTAMP, "doc": "not included"},
)


def row_schema(plan: Plan, stream: Stream) -> dict[str, Any]:
    """Describe the records of the view's topic, with unit and meaning of every column."""
    columns = [_column(output.name, output.pg_type, output.unit, output.meaning) for output in plan.outputs]
    return {
        "type": "record",
        "name": plan.name,
        "namespace": NAMESPACE,
        "doc": f"Rows of the continuous view {plan.name} over the stream {stream.name}, and marks of late readings.",
        "strobe": {
            "view": plan.name,
            "stream": plan.stream,
            "generation": plan.generation,
            "fingerprint": plan.fingerprint,
            "group": [column.name for column in plan.group],
            "pane_us": plan.pane_us,
            "size_us": plan.size_us,
            "hop_us": plan.hop_us,
            "lateness_us": plan.lateness_us,
        },
        "fields": [*map(dict, ENGINE_FIELDS), *(_group(column, stream) for column in plan.group), *columns],
    }


def _group(column: GroupColumn, stream: Stream) -> dict[str, Any]:
    about = {"unit": stream.instrument.unit, "meaning": stream.instrument.meaning}
    return {"name": column.name, "type": AVRO_TYPES[column.type], "strobe": about}


def _column(name: str, pg_type: str, unit: str, meaning: str) -> dict[str, Any]:
    about = {"unit": unit, "meaning": meaning}
    return {"name": name, "type": ["null", AVRO_TYPES[pg_type]], "default": None, "strobe": about}
