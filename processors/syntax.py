"""A view's definition as a tree: what its author wrote, and where. Knows neither the parser nor the streams."""

from dataclasses import dataclass
from typing import Literal as Choice

QUOTED_CHARACTERS_MAX = 150  # of a message's first part, so that it stays readable


class ViewError(ValueError):
    """A view that cannot be loaded: file:line:column, the construct, and what to write instead, in one line."""


@dataclass(frozen=True)
class Place:
    """A file's text, to say where something stands in it."""

    file: str
    text: str

    def refusal(self, at: int, wrong: str, remedy: str) -> ViewError:
        """Make the one error there is. `at` counts characters from 0."""
        before = self.text[:at]
        line, column = before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1
        return ViewError(f"{self.file}:{line}:{column}: {_one_line(wrong)}; {remedy}")


def _one_line(text: str) -> str:
    text = " ".join(text.split())  # what is quoted of the author's text may hold line ends
    return text if len(text) <= QUOTED_CHARACTERS_MAX else text[:QUOTED_CHARACTERS_MAX] + "…"


@dataclass(frozen=True)
class Name:
    """A column, perhaps with the relation it is of."""

    at: int
    name: str
    relation: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Literal:
    """A constant as written; what it becomes depends on what stands beside it."""

    at: int
    value: bool | int | str | None  # int: a whole number; str: what `kind` says
    kind: Choice["boolean", "integer", "bigint", "numeric", "unknown"]  # unknown: 'quoted' or NULL, as in PostgreSQL


@dataclass(frozen=True)
class Apply:
    """An operator or a function and what it is applied to. Operators: + - * / = <> < <= > >= and or not …"""

    at: int
    function: str
    arguments: tuple["Expression", ...]
    star: bool = False  # count(*)


@dataclass(frozen=True)
class Cast:
    """CAST(argument AS type), by PostgreSQL's long name of the type."""

    at: int
    argument: "Expression"
    type: str


Expression = Name | Literal | Apply | Cast


@dataclass(frozen=True)
class Item:
    """One column of a SELECT list."""

    at: int
    name: str  # "" where the author gave none
    expression: Expression


@dataclass(frozen=True)
class Relation:
    """A stream or a common table expression, by name."""

    at: int
    name: str
    alias: str = ""


@dataclass(frozen=True)
class Interval:
    """A quoted interval."""

    at: int
    text: str


@dataclass(frozen=True)
class Window:
    """TUMBLE(of, time, size) or HOP(of, time, hop, size), as RisingWave orders the arguments."""

    at: int
    function: str  # "tumble" or "hop"
    of: "Relation | Select"
    time: Name
    intervals: tuple[Interval, ...]
    alias: str = ""


@dataclass(frozen=True)
class Select:
    """SELECT items FROM source [WHERE where] [GROUP BY group]."""

    at: int
    items: tuple[Item, ...]
    source: "Relation | Window | Select"
    where: Expression | None
    group: tuple[Name, ...]
    alias: str = ""


@dataclass(frozen=True)
class Option:
    """name = value of WITH (…)."""

    at: int
    name: str
    value: int | str


@dataclass(frozen=True)
class Definition:
    """CREATE MATERIALIZED VIEW name WITH (options) AS WITH tables query."""

    at: int
    name: str
    options: tuple[Option, ...]
    tables: tuple[tuple[Relation, Select], ...]
    query: Select
