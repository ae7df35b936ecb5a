"""Flat rows: fastavro's bytes out, the same columns back, and one exception for whatever is wrong."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MICROS, damaged, encoded, instants_us, names

from schemas.batch import Vector
from schemas.codec import UndecodableError, UnknownSchemaIdError
from schemas.encoder import EncodeError
from schemas.flat import FlatCodec

ROW: dict[str, Any] = {
    "type": "record",
    "name": "bpm_1s",
    "namespace": "strobe.views",
    "strobe": {"view": "bpm_1s", "group": ["instrument_id"]},
    "fields": [
        {"name": "generation", "type": "int"},
        {"name": "revision", "type": "long"},
        {"name": "closed", "type": "boolean"},
        {"name": "mark_offset", "type": ["null", "long"], "default": None},
        {"name": "window_start", "type": MICROS},
        {"name": "seen", "type": ["null", MICROS], "default": None},
        {"name": "instrument_id", "type": ["null", "string"], "default": None},
        {"name": "x_mean", "type": ["null", "double"], "default": None, "strobe": {"unit": "1"}},
        {"name": "x_last", "type": ["float", "null"]},
    ],
}
rows = st.lists(
    st.fixed_dictionaries(
        {
            "generation": st.integers(-(2**31), 2**31 - 1),
            "revision": st.integers(-(2**63), 2**63 - 1),
            "closed": st.booleans(),
            "mark_offset": st.none() | st.integers(-(2**63), 2**63 - 1),
            "window_start": instants_us,
            "seen": st.none() | instants_us,
            "instrument_id": st.none() | names,
            "x_mean": st.none() | st.floats(allow_nan=False),
            "x_last": st.none() | st.floats(width=32, allow_nan=False),
        }
    ),
    max_size=4,
)
DTYPES = {
    "generation": np.int32,
    "revision": np.int64,
    "closed": np.bool_,
    "mark_offset": np.int64,
    "window_start": np.int64,
    "seen": np.int64,
    "instrument_id": object,
    "x_mean": np.float64,
    "x_last": np.float32,
}


def columns_of(given: list[dict[str, Any]]) -> dict[str, Vector]:
    columns = {}
    for name, dtype in DTYPES.items():
        column = [row[name] for row in given]
        valid = np.array([value is not None for value in column], np.bool_)
        empty = None if dtype is object else 0
        values = np.empty(len(column), dtype)
        values[:] = [empty if value is None else value for value in column]
        columns[name] = Vector(values, valid)
    return columns


def rows_of(columns: dict[str, Vector]) -> list[dict[str, Any]]:
    count = len(next(iter(columns.values())).valid)
    return [
        {
            name: vector.values[i].item() if vector.values.dtype != object else vector.values[i]
            for name, vector in columns.items()
            if vector.valid[i]
        }
        for i in range(count)
    ]


@settings(max_examples=100)
@given(rows)
def test_rows_are_encoded_as_fastavro_does_and_come_back(given: list[dict[str, Any]]) -> None:
    codec = FlatCodec(ROW, 7)
    payloads = codec.encode(columns_of(given))
    assert payloads == [encoded(ROW, row, 7) for row in given]
    decoded = codec.decode(payloads)
    assert [vector.values.dtype for vector in decoded.values()] == [np.dtype(dtype) for dtype in DTYPES.values()]
    assert rows_of(decoded) == [{name: part for name, part in row.items() if part is not None} for row in given]


GOOD = {
    "generation": 1,
    "revision": 300,
    "closed": True,
    "mark_offset": None,
    "window_start": 1_700_000_000_000_000,
    "seen": 5,
    "instrument_id": "bpm001",
    "x_mean": 0.5,
    "x_last": None,
}


@settings(max_examples=300)
@given(damaged(encoded(ROW, GOOD, 7)))
def test_a_damaged_row_leads_to_one_exception_or_to_a_row(bad: bytes) -> None:
    with suppress(UndecodableError):
        assert {len(vector.values) for vector in FlatCodec(ROW, 7).decode([bad]).values()} == {1}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "null"),
        (b"", "not-framed"),
        (b"\0\0\0\0", "not-framed"),
        (b"\1" + encoded(ROW, GOOD, 7)[1:], "not-framed"),
        (encoded(ROW, GOOD, 8), "unknown-schema"),
        (encoded(ROW, GOOD, 7)[:-1], "truncated"),
        (encoded(ROW, GOOD, 7) + b"\0", "trailing"),
        (
            encoded(
                {**ROW, "fields": [{"name": "generation", "type": "long"}, *ROW["fields"][1:]]},
                {**GOOD, "generation": 2**40},
                7,
            ),
            "bad-number",
        ),
        (encoded(ROW, GOOD, 7).replace(b"bpm", b"b\xffm"), "bad-row"),
    ],
)
def test_an_undecodable_row_says_why(payload: Any, reason: str) -> None:
    with pytest.raises(UndecodableError) as caught:
        FlatCodec(ROW, 7).decode([payload])
    assert caught.value.reason == reason


def test_rows_of_an_older_schema_read_with_null_in_the_new_column() -> None:
    older = {**ROW, "fields": [field for field in ROW["fields"] if field["name"] not in ("x_mean", "seen")]}
    payload = encoded(older, {name: part for name, part in GOOD.items() if name not in ("x_mean", "seen")}, 3)

    def schema(schema_id: int) -> dict[str, Any]:
        if schema_id != 3:
            raise UnknownSchemaIdError(schema_id)
        return older

    codec = FlatCodec(ROW, 7, schema)
    decoded = codec.decode([payload, encoded(ROW, GOOD, 7)])
    assert decoded["x_mean"].valid.tolist() == [False, True]
    assert decoded["revision"].values.tolist() == [300, 300]
    with pytest.raises(UndecodableError, match="schema id 4 is not known"):
        codec.decode([encoded(ROW, GOOD, 4)])


def test_a_schema_that_lacks_a_column_is_incompatible() -> None:
    older = {**ROW, "fields": ROW["fields"][1:]}
    payload = encoded(older, {name: part for name, part in GOOD.items() if name != "generation"}, 3)
    with pytest.raises(UndecodableError, match="incompatible"):
        FlatCodec(ROW, 7, lambda _: older).decode([payload])


def test_columns_that_do_not_fit_are_refused_by_name() -> None:
    columns = columns_of([GOOD])
    codec = FlatCodec(ROW, 7)
    with pytest.raises(EncodeError, match=r"column 'revision' .* is not among those given"):
        codec.encode({name: vector for name, vector in columns.items() if name != "revision"})
    with pytest.raises(EncodeError, match="column 'closed' holds a null"):
        codec.encode({**columns, "closed": Vector(np.zeros(1, np.bool_), np.zeros(1, np.bool_))})
    with pytest.raises(EncodeError, match="column 'seen' has not 1 rows"):
        codec.encode({**columns, "seen": Vector(np.zeros(2, np.int64), np.zeros(2, np.bool_))})
    with pytest.raises(EncodeError, match="generation: a value does not fit"):
        codec.encode({**columns, "generation": Vector(np.full(1, 2**40), np.ones(1, np.bool_))})


def test_a_schema_with_a_nested_field_is_refused() -> None:
    nested = {**ROW, "fields": [{"name": "inner", "type": {"type": "array", "items": "int"}}]}
    with pytest.raises(ValueError, match=r"'inner' .* is not flat"):
        FlatCodec(nested, 7)
