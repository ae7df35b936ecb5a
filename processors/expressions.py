"""Typed expressions over a stream's columns, and programs that evaluate several of them at once.

Knows neither SQL's text nor names: `binding` makes expressions, `arithmetic` knows what an operation does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from processors.arithmetic import DTYPES, OPERATIONS, Column
from schemas.batch import Columns, Int64s, Vector
from schemas.stream import Field

TEXT, TIME = "text", "timestamp with time zone"
PG_TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": TEXT,
    "timestamp": TIME,
}
FLOATS = ("real", "double precision")
NUMBERS = ("integer", "bigint", *FLOATS)


@dataclass(frozen=True)
class Input:
    """A column of the stream. `role` says where it stands in Columns."""

    field: Field
    role: str  # "value", or a field of Columns: "source", "run", "trigger", "time", "instrument", "status"

    @property
    def type(self) -> str:
        return PG_TYPES[self.field.type]


@dataclass(frozen=True)
class Constant:
    """A value that is the same for every reading. Types `numeric` and `unknown` only until something is beside it."""

    value: bool | int | float | str | None
    type: str


@dataclass(frozen=True)
class Operation:
    """An operation of `arithmetic` on expressions whose types fit it."""

    name: str
    arguments: tuple["Expression", ...]
    type: str


Expression = Input | Constant | Operation


def canonical(expression: Expression) -> str:
    """Write an expression so that equal texts compute equal values, whatever its columns are said to mean."""
    if isinstance(expression, Input):
        return f"{expression.field.name}::{expression.type}"
    if isinstance(expression, Constant):
        return f"{expression.value!r}::{expression.type}"
    return f"{expression.name}({', '.join(map(canonical, expression.arguments))})::{expression.type}"


def terms(condition: Expression) -> list[Expression]:
    """Split a condition into those that must all be true."""
    if isinstance(condition, Operation) and condition.name == "and":
        return [term for argument in condition.arguments for term in terms(argument)]
    return [condition]


class Program:
    """Expressions as a list of steps: what several of them contain is computed once.

    For example::

        columns, failed = Program([x, y]).run(readings, rows)
    """

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self._steps: list[tuple[Expression, tuple[int, ...]]] = []
        self._place: dict[Expression, int] = {}
        self._results = [self._add(expression) for expression in expressions]

    def _add(self, expression: Expression) -> int:
        if expression not in self._place:
            arguments = expression.arguments if isinstance(expression, Operation) else ()
            places = tuple(self._add(argument) for argument in arguments)
            self._place[expression] = len(self._steps)
            self._steps.append((expression, places))
        return self._place[expression]

    def run(self, columns: Columns, rows: Int64s) -> list[Column]:
        """Evaluate every expression for the readings `rows`."""
        done: list[Column] = []
        with np.errstate(all="ignore"):  # what matters of it is in the masks
            for step, places in self._steps:
                if isinstance(step, Operation):
                    done.append(OPERATIONS[step.name](tuple(done[place] for place in places), step.type))
                elif isinstance(step, Input):
                    done.append(_read(step, columns, rows))
                else:
                    done.append(_repeat(step))
        return [done[place] for place in self._results]


def _read(column: Input, columns: Columns, rows: Int64s) -> Column:
    # All readings of a batch are wanted almost always; then nothing need be copied.
    chosen = slice(None) if len(rows) == len(columns) else rows
    if column.role == "value":
        values, valid = columns.values[column.field.name]
        return Column(values[chosen], valid[chosen])
    if column.role in ("instrument", "source"):
        names = columns.instruments if column.role == "instrument" else columns.sources
        codes = getattr(columns, column.role)[chosen]
        values = np.array(names, DTYPES.get(column.type, np.str_) if names else None)[codes] if len(codes) else codes
    elif column.role == "time":
        values = columns.time_us[chosen]
    else:
        values = getattr(columns, column.role)[chosen].astype(DTYPES[column.type], copy=False)
    return Column(values, np.ones(len(values), np.bool_))


def _repeat(constant: Constant) -> Column:
    there = np.array([constant.value is not None])
    if constant.type in DTYPES:
        return Column(np.array([constant.value or 0], DTYPES[constant.type]), there)
    return Column(np.array([constant.value or ""]), there)


def as_doubles(column: Column, kind: str, count: int) -> Vector:
    """Return a column as aggregates take it: doubles, one per reading. Of what is no number only `valid` matters."""
    values = np.empty(count, np.float64)
    values[:] = column.values if kind in NUMBERS else 0.0
    valid = np.empty(count, np.bool_)
    valid[:] = column.valid
    return Vector(values, valid)
