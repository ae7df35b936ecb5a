"""COPY BINARY bytes are read by PostgreSQL itself, and come back as they were."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sink_database import fresh_database

from sinks.copy_rows import HEADER, TRAILER, Cells, CopyFile, RowCopier, Words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

TYPES = ["timestamp with time zone", "text", "bytea", "boolean", "smallint", "integer", "bigint", "real",
         "double precision"]  # fmt: skip
NAMES = [f"c{i}" for i in range(len(TYPES))]


def copied(columns: list[Cells], types: list[str], read_bytes: int = 1000) -> bytes:
    file = CopyFile(RowCopier(types).pieces(columns))
    return b"".join(iter(lambda: file.read(read_bytes), b""))


def by_hand(rows: list[list[bytes | None]]) -> bytes:
    """The format as PostgreSQL's manual describes it, value by value."""
    out = [HEADER]
    for row in rows:
        out.append(len(row).to_bytes(2, "big"))
        for value in row:
            out.append((-1 if value is None else len(value)).to_bytes(4, "big", signed=True))
            out.append(value or b"")
    return b"".join([*out, TRAILER])


rows_of_texts = st.lists(
    st.tuples(st.one_of(st.none(), st.text(max_size=9)), st.one_of(st.none(), st.integers(0, 255)))
)


@given(rows_of_texts, st.integers(1, 40))
def test_bytes_are_those_of_the_format_written_value_by_value(
    rows: list[tuple[str | None, int | None]], read_bytes: int
) -> None:
    texts = [text or "" for text, _ in rows]
    there = np.array([text is not None for text, _ in rows], np.bool_)
    numbers = Cells(
        np.array([number or 0 for _, number in rows], np.int64), np.array([n is not None for _, n in rows], np.bool_)
    )
    columns = [Cells(np.arange(len(rows)), there, Words(texts)), numbers]
    expected = [
        [None if text is None else text.encode(), None if n is None else n.to_bytes(8, "big")] for text, n in rows
    ]
    assert copied(columns, ["text", "bigint"], read_bytes) == by_hand(expected)


def test_a_copier_forgets_the_nulls_of_the_batch_before() -> None:
    copier = RowCopier(["integer", "text"])
    words = Words(["a", "long"])

    def copy(valid: list[bool] | None, codes: list[int]) -> bytes:
        mask = None if valid is None else np.array(valid)
        columns = [Cells(np.array([1, 2]), mask), Cells(np.array(codes), mask, words)]
        return b"".join(piece.tobytes() for piece in copier.pieces(columns))

    whole = copy([True, True], [0, 1])
    assert len(copy([False, True], [0, 1])) < len(whole)
    assert copy([True, True], [0, 1]) == whole
    assert len(copy([False, False], [0, 1])) < len(whole)
    assert copy(None, [0, 1]) == whole
    assert len(copy([False, True], [0, 1])) < len(whole)
    assert copy(None, [0, 1]) == whole


def test_words_are_followed_as_their_list_grows() -> None:
    names = ["a"]
    words = Words(names)
    names += ["", "ccc"]
    words.follow(names)
    assert words.lengths(np.array([2, 0, 1])).tolist() == [3, 1, 0]


def test_one_very_long_text_does_not_widen_more_rows_than_fit_the_bound() -> None:
    words = Words(["x", "y" * 3_000_000])
    codes = np.zeros(200, np.int64)
    codes[77] = 1
    pieces = [len(piece) for piece in RowCopier(["text"]).pieces([Cells(codes, None, words)])]
    assert sum(pieces) == 200 * 6 + 199 + 3_000_000
    assert max(pieces) < 8 * 2**20


def test_an_unknown_type_and_a_wrong_number_of_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="type money cannot be copied"):
        RowCopier(["money"])
    with pytest.raises(ValueError, match="2 columns given for 1"):
        list(RowCopier(["integer"]).pieces([Cells(np.zeros(1)), Cells(np.zeros(1))]))


@pytest.fixture(scope="module")
def connection(stack: Any) -> "Iterator[Connection]":
    with fresh_database(stack, extension=False) as databases, databases.open() as connection:
        with connection.cursor() as cursor:
            columns = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, TYPES, strict=True))
            cursor.execute(f"CREATE TABLE copied ({columns})")
        yield connection


@pytest.mark.stack
def test_postgresql_reads_every_type_to_the_last_bit(connection: "Connection") -> None:
    count = 5000
    rng = np.random.default_rng(1)
    whole = rng.integers(-(1 << 62), 1 << 62, count)
    time_us = rng.integers(-(1 << 57), 1 << 60, count)
    bits32 = rng.integers(0, 1 << 32, count, np.uint64).astype(np.uint32).view(np.float32)
    bits64 = rng.integers(0, 1 << 63, count, np.uint64).view(np.float64)
    words = Words(["", "bpm001", "Wärme 🌡", "x" * 300])
    raw = Words([b"", b"\0\xff", b"abc"])
    there = [None, *(rng.random(count) < 0.9 for _ in TYPES[1:])]
    values: list[Any] = [
        time_us, rng.integers(0, 4, count), rng.integers(0, 3, count), rng.random(count) < 0.5,
        whole.astype(np.int16), whole.astype(np.int32), whole, bits32, bits64,
    ]  # fmt: skip
    columns = [
        Cells(value, valid, {1: words, 2: raw}.get(i))
        for i, (value, valid) in enumerate(zip(values, there, strict=True))
    ]
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE copied")
        cursor.copy_expert("COPY copied FROM STDIN (FORMAT binary)", CopyFile(RowCopier(TYPES).pieces(columns)))
        cursor.execute(
            "SELECT (extract(epoch FROM c0) * 1000000)::bigint, c1, c2, c3, c4, c5, c6, float4send(c7), float8send(c8)"
            " FROM copied"
        )
        found = cursor.fetchall()
    expected: list[Any] = [
        time_us.tolist(),
        [["", "bpm001", "Wärme 🌡", "x" * 300][i] for i in values[1]],
        [[b"", b"\0\xff", b"abc"][i] for i in values[2]],
        *(value.tolist() for value in values[3:7]),
        [value.to_bytes(4, "big") for value in bits32.view(np.uint32).tolist()],
        [value.to_bytes(8, "big") for value in bits64.view(np.uint64).tolist()],
    ]
    for i, column in enumerate(expected):
        valid = there[i]
        wanted = column if valid is None else [v if ok else None for v, ok in zip(column, valid, strict=True)]
        got = [bytes(row[i]) if isinstance(row[i], memoryview) else row[i] for row in found]
        assert got == wanted, TYPES[i]


@pytest.mark.stack
def test_an_instant_before_what_a_timestamptz_can_hold_becomes_minus_infinity(connection: "Connection") -> None:
    times = Cells(np.array([-210_866_803_200_000_000, -210_866_803_200_000_001, (1 << 63) - 1, 0]))
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE copied")
        file = CopyFile(RowCopier(["timestamp with time zone"]).pieces([times]))
        cursor.copy_expert("COPY copied (c0) FROM STDIN (FORMAT binary)", file)
        cursor.execute("SET timezone = 'UTC'")
        cursor.execute("SELECT c0::text FROM copied")
        assert [text for (text,) in cursor.fetchall()] == [
            "4714-11-24 00:00:00+00 BC", "-infinity", "294247-01-10 04:00:54.775807+00", "1970-01-01 00:00:00+00",
        ]  # fmt: skip
