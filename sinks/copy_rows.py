"""Columns as bytes of PostgreSQL's COPY BINARY format, without a loop over rows. Knows no database.

All rows of a batch are laid side by side as if every field were there and as wide as the widest, in a template whose
field counts and lengths are set once; values are assigned column by column (NumPy swaps the bytes). Only where a
field is NULL or a text shorter than its neighbours, the surplus bytes are dropped with one mask over all bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Bools, Int64s

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # signature, flags 0, no extension
TRAILER = b"\xff\xff"
READ_BYTES = 262_144  # handed to libpq at once: 1.5 times the rate of its own 8 KiB
PIECE_BYTES = 4 * 2**20  # of the template that is filled at once: stays near the cache, bounds hostile widths
NULL = -1  # the length of a field that is NULL

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in µs since 1970
TIMESTAMP_LEAST_US = -210_866_803_200_000_000  # 4714-11-24 BC in µs since 1970: the first that timestamptz can hold
MINUS_INFINITY = -(1 << 63)

FIXED: dict[str, str] = {  # PostgreSQL type -> its bytes in COPY BINARY; text and bytea have their own length
    "boolean": ">u1",
    "smallint": ">i2",
    "integer": ">i4",
    "bigint": ">i8",
    "real": ">f4",
    "double precision": ">f8",
    "timestamp with time zone": ">i8",
}
VARIABLE = ("text", "bytea")


class Words:
    """Byte strings by code, laid end to end, so that a column of codes becomes a column of texts by gathering.

    The list that it follows only grows (`schemas.batch.Columns.instruments`), so each word is encoded once.
    """

    def __init__(self, words: Sequence[str | int | bytes] = ()) -> None:
        self._count = 0
        self._bytes = np.empty(0, np.uint8)
        self._starts: Int64s = np.zeros(1, np.int64)
        self.follow(words)

    def follow(self, words: Sequence[str | int | bytes]) -> "Words":
        """Take in what was appended since the last call."""
        new = [word if isinstance(word, bytes) else str(word).encode() for word in words[self._count :]]
        if new:
            self._count = len(words)
            ends = self._starts[-1] + np.cumsum([len(word) for word in new], dtype=np.int64)
            self._starts = np.concatenate((self._starts, ends))
            self._bytes = np.concatenate((self._bytes, np.frombuffer(b"".join(new), np.uint8)))
        return self

    def lengths(self, codes: NDArray[Any]) -> Int64s:
        lengths: Int64s = self._starts[codes + 1] - self._starts[codes]
        return lengths

    def gather(self, codes: NDArray[Any], width: int) -> NDArray[np.uint8]:
        """One row of `width` bytes for each code; what follows a shorter word is meaningless."""
        places = self._starts[codes][:, None] + np.arange(width)
        gathered: NDArray[np.uint8] = self._bytes[np.minimum(places, len(self._bytes) - 1)]
        return gathered


class Cells(NamedTuple):
    """A column to be copied. Of a timestamp the values are µs since 1970, of a text codes into `words`."""

    values: NDArray[Any]
    valid: Bools | None = None  # None: no value is missing
    words: Words | None = None


class RowCopier:
    """Makes COPY BINARY bytes of rows whose columns have the given PostgreSQL types.

    For example::

        copier = RowCopier(["timestamp with time zone", "text", "real"])
        cursor.copy_expert(sql, CopyFile(copier.pieces([Cells(time_us), Cells(codes, None, words), Cells(x)])))

    One copier serves one COPY at a time: the pieces are views of its template.
    """

    def __init__(self, types: Sequence[str]) -> None:
        unknown = [kind for kind in types if kind not in FIXED and kind not in VARIABLE]
        if unknown:
            raise ValueError(f"type {unknown[0]} cannot be copied; known are {', '.join((*FIXED, *VARIABLE))}")
        self.types = list(types)
        self._widths: tuple[int, ...] | None = None
        self._template: NDArray[Any] = np.empty(0, np.uint8)
        self._varied: set[int] = set()  # columns whose lengths in the template may be those of an earlier batch

    def pieces(self, columns: Sequence[Cells]) -> Iterator[NDArray[np.uint8]]:
        """The rows as bytes, some at a time. Each piece is to be used before the next is asked for."""
        if len(columns) != len(self.types):
            raise ValueError(f"{len(columns)} columns given for {len(self.types)}")
        count = len(columns[0].values)
        widths = self._wanted_widths(columns)
        step = max(1, PIECE_BYTES // (2 + sum(widths) + 4 * len(widths)))
        self._prepare(widths, min(step, count))
        for first in range(0, count, step):
            rows = slice(first, min(first + step, count))
            yield self._fill(
                [Cells(c.values[rows], None if c.valid is None else c.valid[rows], c.words) for c in columns]
            )

    def _wanted_widths(self, columns: Sequence[Cells]) -> tuple[int, ...]:
        widths = []
        for kind, cells in zip(self.types, columns, strict=True):
            if cells.words is None:
                widths.append(np.dtype(FIXED[kind]).itemsize)
            else:
                lengths = cells.words.lengths(cells.values if cells.valid is None else cells.values[cells.valid])
                widths.append(int(lengths.max(initial=0)))
        return tuple(widths)

    def _prepare(self, widths: tuple[int, ...], count: int) -> None:
        """Set the counts and lengths, which stay the same from batch to batch."""
        if widths == self._widths and len(self._template) >= count:
            return
        layout: list[Any] = [("count", ">i2")]
        for i, (kind, width) in enumerate(zip(self.types, widths, strict=True)):
            layout += [(f"length{i}", ">i4"), (f"value{i}", FIXED.get(kind, ("u1", (width,))))]
        self._widths = widths
        self._varied.clear()
        self._template = np.zeros(count, np.dtype(layout))
        self._template["count"] = len(self.types)
        for i, width in enumerate(widths):
            self._template[f"length{i}"] = width

    def _fill(self, columns: Sequence[Cells]) -> NDArray[np.uint8]:
        rows = self._template[: len(columns[0].values)]
        kept: NDArray[np.bool_] | None = None
        for i, (kind, cells) in enumerate(zip(self.types, columns, strict=True)):
            width = (self._widths or ())[i]
            if cells.words is None:
                rows[f"value{i}"] = timestamps(cells.values) if kind.startswith("timestamp") else cells.values
                if cells.valid is None:
                    rows[f"length{i}"] = width  # an earlier batch may have left NULLs there
                    continue
                lengths = np.full(len(rows), width, np.int64)
            else:
                codes = cells.values if cells.valid is None else np.where(cells.valid, cells.values, 0)
                lengths = cells.words.lengths(codes) if width else np.zeros(len(rows), np.int64)
                if width:
                    rows[f"value{i}"] = cells.words.gather(codes, width)
            there = lengths
            if cells.valid is not None and not cells.valid.all():
                lengths, there = np.where(cells.valid, lengths, NULL), np.where(cells.valid, lengths, 0)
            rows[f"length{i}"] = lengths
            self._varied.add(i)
            if (there != width).any():
                if kept is None:
                    kept = np.ones((len(rows), rows.dtype.itemsize), np.bool_)
                begin = rows.dtype.fields[f"value{i}"][1]  # type: ignore[index]  # a structured type has fields
                kept[:, begin : begin + width] = np.arange(width) < there[:, None]
        flat = rows.view(np.uint8).reshape(len(rows), -1)
        return flat.reshape(-1) if kept is None else flat[kept]


def timestamps(time_us: NDArray[Any]) -> Int64s:
    """µs since 1970 as timestamptz counts them. What lies before its first day becomes -infinity, not an error; what
    lies after its last cannot occur, 64 bits of µs end sooner.
    """
    time_us = np.asarray(time_us, np.int64)
    early = time_us < TIMESTAMP_LEAST_US
    return np.where(early, MINUS_INFINITY, time_us - POSTGRES_EPOCH_US)


class CopyFile:
    """What `copy_expert` reads from: header, pieces, trailer, in slices of the size it asks for."""

    def __init__(self, pieces: Iterator[NDArray[np.uint8]]) -> None:
        self._pieces = self._all(pieces)
        self._piece = memoryview(b"")
        self._at = 0

    def read(self, size: int = READ_BYTES, /) -> bytes:
        while self._at >= len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece, self._at = piece, 0
        part = self._piece[self._at : self._at + size]
        self._at += len(part)
        return bytes(part)

    def readline(self, size: int = READ_BYTES, /) -> bytes:
        """Never called; psycopg2 asks for files, and files have it."""
        raise NotImplementedError(size)

    @staticmethod
    def _all(pieces: Iterator[NDArray[np.uint8]]) -> Iterator[memoryview]:
        yield memoryview(HEADER)
        for piece in pieces:
            yield memoryview(piece.data)
        yield memoryview(TRAILER)
