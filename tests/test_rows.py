"""The schema of a view's topic: rows and marks, with unit and meaning of every column."""

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from processors.plan import Plan, build_plan, load_views
from processors.rows import row_schema
from schemas.stream import load_streams

ROOT = Path(__file__).parent.parent
STREAMS = load_streams(ROOT / "schemas" / "streams")
VIEWS = load_views(ROOT / "processors" / "views", STREAMS)
ENGINE = ["generation", "revision", "closed", "live", "mark_partition", "mark_offset", "window_start", "window_end"]


def written_and_read(schema: dict[str, Any], record: dict[str, Any]) -> Any:
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, schema, record)
    payload.seek(0)
    return fastavro.schemaless_reader(payload, schema, None)


@pytest.mark.parametrize("plan", VIEWS.values(), ids=lambda plan: plan.name)
def test_fields_stand_in_the_order_of_engine_group_and_columns(plan: Plan) -> None:
    schema = row_schema(plan, STREAMS[plan.stream])
    names = [field["name"] for field in schema["fields"]]
    assert names == [*ENGINE, "instrument_id", *(output.name for output in plan.outputs)]
    assert schema["name"] == plan.name
    assert schema["strobe"]["view"] == plan.name
    assert schema["strobe"]["group"] == ["instrument_id"]
    assert schema["strobe"]["fingerprint"] == plan.fingerprint
    assert schema["strobe"]["size_us"] == plan.size_us
    for field in schema["fields"][len(ENGINE) :]:
        assert field["strobe"].keys() == {"unit", "meaning"}
        assert field["strobe"]["meaning"]


def test_a_row_and_a_mark_pass_through_the_schema() -> None:
    plan = VIEWS["doros_1s"]
    schema = row_schema(plan, STREAMS[plan.stream])
    row = dict.fromkeys(ENGINE, 1) | {"closed": True, "live": True, "mark_partition": None, "mark_offset": None}
    row |= {"instrument_id": "BPM.1", "count": 3} | {o.name: 0.5 for o in plan.outputs if o.name != "count"}
    mark = row | {"mark_partition": 2, "mark_offset": 2**40} | {output.name: None for output in plan.outputs}
    for record in (row, mark):
        read = written_and_read(schema, record)
        assert {k: v for k, v in read.items() if not k.startswith("window_")}.items() <= record.items()


def test_a_mark_may_leave_all_columns_out() -> None:
    schema = row_schema(VIEWS["bpm_1s"], STREAMS["bpm"])
    assert all(field["default"] is None for field in schema["fields"] if isinstance(field["type"], list))
    assert all(isinstance(field["type"], list) for field in schema["fields"][len(ENGINE) + 1 :])


def test_a_renamed_group_column_keeps_its_meaning() -> None:
    sql = """CREATE MATERIALIZED VIEW v AS
    SELECT instrument_id AS monitor, window_start, window_end, count(*) AS count
    FROM TUMBLE(bpm, time, INTERVAL '1 second') GROUP BY instrument_id, window_start, window_end"""
    schema = row_schema(build_plan(sql, "v.sql", STREAMS), STREAMS["bpm"])
    field = schema["fields"][len(ENGINE)]
    assert field == {"name": "monitor", "type": "string", "strobe": {"unit": "", "meaning": "beam position monitor"}}
