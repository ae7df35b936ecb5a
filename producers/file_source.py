"""Measured data from HDF5, CSV and Parquet files, a bounded part at a time. Knows neither Kafka nor pace."""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from producers.mapping import Mapping, Origin, fields_of
from producers.nearest import nearest
from producers.rows import Rows, build_rows, joined, records, times_us
from schemas.batch import Vector
from schemas.encoder import Outgoing
from schemas.stream import Field, Stream

PART_ROWS = 4096  # rows of each group, or of the file, in memory at once
CSV_BLOCK_BYTES = 1 << 20


class FileError(ValueError):
    """A file that cannot be read as the mapping says: file, place and remedy, in one line."""


@dataclass
class FileSource:
    """A measured file as records.

    For example::

        stream = load_streams(folder)["doros"]
        source = FileSource(path, stream, load_mapping("lhc-doros", stream))
        for outgoing in source.records():
            publisher.send(outgoing)
    """

    path: Path
    stream: Stream
    mapping: Mapping

    def records(self) -> Iterator[Outgoing]:
        """Give the records in the order of the file; of several groups in the order of time."""
        read = {"hdf5": self._hdf5, "csv": self._csv, "parquet": self._parquet}[self.mapping.format]
        try:
            yield from records(read(), self.stream, str(self.path))
        except (OSError, pa.ArrowException) as error:
            why = str(error).split("\n", 1)[0]
            raise FileError(
                f"{self.path}: cannot be read as {self.mapping.format} ({why}); check file and mapping"
            ) from None

    def total_rows(self) -> int | None:
        """Count the rows of the file, where that is cheap."""
        try:
            if self.mapping.format == "parquet":
                return int(pyarrow.parquet.ParquetFile(self.path).metadata.num_rows)
            if self.mapping.format == "hdf5":
                with h5py.File(self.path) as file:
                    return sum(self._group_rows(group) for group in self._groups(file))
        except (OSError, pa.ArrowException):
            return None  # reading will say why
        return None

    def _csv(self) -> Iterator[Rows]:
        kinds = {
            "string": pa.string(),
            "float": pa.float32(),
            "double": pa.float64(),
            "int": pa.int32(),
            "long": pa.int64(),
        }
        types = {
            origin.name: kinds[field.type]
            for field in self._columns_read()
            if (origin := self.mapping.origins[field.name]).kind == "column" and field.type in kinds
        }
        with pyarrow.csv.open_csv(
            self.path,
            read_options=pyarrow.csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True),
        ) as reader:
            yield from self._tables(reader)

    def _parquet(self) -> Iterator[Rows]:
        file = pyarrow.parquet.ParquetFile(self.path)
        yield from self._tables(file.iter_batches(PART_ROWS))

    def _tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Rows]:
        first = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            rows = np.arange(first, first + batch.num_rows)
            columns = {name: self._column(name, origin, rows, batch) for name, origin in self.mapping.origins.items()}
            yield build_rows(columns, self.stream, str(self.path), first)
            first += batch.num_rows

    def _column(self, name: str, origin: Origin, rows: NDArray[np.int64], batch: pa.RecordBatch) -> Vector:
        if origin.kind != "column":
            return self._constant(name, origin, rows, None)
        if origin.name not in batch.schema.names:
            raise FileError(
                f"{self.path}: has no column {origin.name} for {name}; {nearest(origin.name, batch.schema.names)}"
            )
        column = batch.column(origin.name)
        valid = np.asarray(column.is_valid())
        if pa.types.is_timestamp(column.type):
            values = column.cast(pa.timestamp(column.type.unit)).fill_null(0).to_numpy(zero_copy_only=False)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            values = np.array(column.fill_null("").to_pylist(), object)
        elif pa.types.is_dictionary(column.type):
            values = np.array(column.cast(column.type.value_type).fill_null("").to_pylist(), object)
        else:
            values = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
        return Vector(self._timed(name, origin, values, rows), valid)

    def _hdf5(self) -> Iterator[Rows]:
        with h5py.File(self.path) as file:
            groups = self._groups(file)
            yield from in_order_of_time([self._group(group) for group in groups])

    def _groups(self, file: h5py.File) -> list[h5py.Group]:
        if not self.mapping.groups:
            return [file]
        names = [name for name in file if fnmatch.fnmatchcase(name, self.mapping.groups)]
        if not names:
            raise FileError(
                f"{self.path}: has no group {self.mapping.groups}; there are {', '.join(list(file)[:10]) or 'none'}"
            )
        return [file[name] for name in names]

    def _group_rows(self, group: h5py.Group) -> int:
        lengths = {
            origin.name: len(self._dataset(group, name, origin))
            for name, origin in self.mapping.origins.items()
            if origin.kind == "column"
        }
        if len(set(lengths.values())) != 1:
            raise FileError(f"{self.path}: {group.name}: datasets differ in length: {lengths}; map one group's equals")
        return next(iter(lengths.values()))

    def _group(self, group: h5py.Group) -> Iterator[Rows]:
        count = self._group_rows(group)
        place = f"{self.path}: {group.name}"
        for first in range(0, count, PART_ROWS):
            rows = np.arange(first, min(first + PART_ROWS, count))
            columns = {}
            for name, origin in self.mapping.origins.items():
                if origin.kind == "column":
                    values = self._dataset(group, name, origin)[first : first + len(rows)]
                    columns[name] = Vector(self._timed(name, origin, values, rows), np.ones(len(rows), np.bool_))
                else:
                    columns[name] = self._constant(name, origin, rows, group)
            yield build_rows(columns, self.stream, place, first)

    def _dataset(self, group: h5py.Group, name: str, origin: Origin) -> h5py.Dataset:
        dataset = group.get(origin.name)
        if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 1:
            raise FileError(
                f"{self.path}: {group.name}: has no one-dimensional dataset {origin.name} for {name};"
                f" {nearest(origin.name, group)}"
            )
        return dataset

    def _constant(self, name: str, origin: Origin, rows: NDArray[np.int64], group: h5py.Group | None) -> Vector:
        """Give the values of a field that does not stand in a column."""
        valid = np.ones(len(rows), np.bool_)
        if origin.kind == "row":
            return Vector(rows, valid)
        value: Any = origin.value
        if origin.kind == "scalar":
            if group is None:
                raise FileError(f"{self.path}: {name}: only HDF5 has scalars; map a column or a value")
            value = self._dataset(group, name, origin)[0]
        elif origin.kind == "group":
            value = "" if group is None else group.name.rsplit("/", 1)[-1]
        values = np.full(len(rows), value, object if isinstance(value, str) else None)
        return Vector(self._timed(name, origin, values, rows), valid)

    def _timed(self, name: str, origin: Origin, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        if name != self.stream.time.name:
            return values
        if values.dtype.kind == "O" or (values.dtype.kind != "M" and origin.unit is None):
            raise FileError(
                f"{self.path}: {name}: holds neither date and time nor a number with a unit;"
                ' say unit = "s", "ms", "us" or "ns"'
            )
        return times_us(values, origin, rows)

    def _columns_read(self) -> list[Field]:
        return [field for field in fields_of(self.stream).values() if field.name in self.mapping.origins]


def in_order_of_time(groups: list[Iterator[Rows]]) -> Iterator[Rows]:
    """Merge groups by time with one part of each in memory; within a group the order stays as it is."""
    waiting: list[tuple[int, Rows]] = []
    for number, group in enumerate(groups):
        waiting += [(number, part) for part in [next(group, None)] if part is not None]
    while waiting:
        # What any group still brings comes after the last time of the part that ends first.
        horizon = min(int(part.time_us.max()) for _, part in waiting)
        ready: list[Rows] = []
        left: list[tuple[int, Rows]] = []
        for number, part in waiting:
            count = int(np.searchsorted(np.maximum.accumulate(part.time_us), horizon, "right"))
            ready.append(part.take(slice(0, count)))
            rest: Rows | None = part.take(slice(count, None)) if count < len(part) else next(groups[number], None)
            if rest is not None:
                left.append((number, rest))
        rows = joined(ready)
        yield rows.take(np.argsort(rows.time_us, kind="stable"))
        waiting = left
