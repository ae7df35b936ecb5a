"""The outer SELECT of a view: its windows, its groups and what it aggregates, checked. Knows no states."""

from dataclasses import dataclass
from typing import Literal

from processors import syntax
from processors.aggregates import AGGREGATES
from processors.aggregates.shape import Aggregate
from processors.binding import Scope
from processors.expressions import TEXT, Expression, Input
from processors.options import check_name
from processors.relations import Readings, implied_name, refuse_aggregates
from processors.spans import SpanError, span_us
from processors.syntax import Apply, Item, Name, Place, Select, ViewError, Window

PANE_US_MIN = 1_000  # shorter ones would hold less than a reading each
PANES_MAX = 86_400  # in one window: a day by the second
OUTPUTS_MAX = 500  # columns; PostgreSQL allows 1,600 in a table, fewer when they are wide
BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True)
class GroupColumn:
    """A column that names a group."""

    name: str
    type: Literal["text", "bigint"]
    field: str  # of the stream


@dataclass(frozen=True)
class Aggregation:
    """An aggregate of the SELECT list, its argument bound."""

    name: str
    aggregate: Aggregate
    argument: Expression | None


@dataclass(frozen=True)
class Chosen:
    """What an outer SELECT asks for."""

    hop_us: int
    size_us: int
    group: tuple[GroupColumn, ...]
    aggregations: tuple[Aggregation, ...]


class Selection:
    """Reads one outer SELECT over the readings that its FROM gives."""

    def __init__(self, place: Place, query: Select, readings: Readings) -> None:
        self.place = place
        self.query = query
        self.readings = readings
        self.scope = Scope(place, readings.columns, readings.names)

    def chosen(self, window: Window) -> Chosen:
        hop_us, size_us = self.window(window)
        columns = self.columns(self.group())
        return Chosen(
            hop_us,
            size_us,
            tuple(column for column in columns if isinstance(column, GroupColumn)),
            tuple(column for column in columns if isinstance(column, Aggregation)),
        )

    def window(self, window: Window) -> tuple[int, int]:
        """Check the window; its hop and its size in microseconds."""
        time = self.scope.column(window.time)
        if not isinstance(time, Input) or time.role != "time":
            name = self.readings.stream.time.name
            raise self.place.refusal(
                window.time.at, f"windows go over the stream's time, not {window.time}", f"write {name}"
            )
        spans: list[int] = []
        for interval in window.intervals:
            try:
                spans.append(span_us(interval.text))
            except SpanError as error:
                raise self.place.refusal(interval.at, str(error), "write INTERVAL '1 second'") from None
            if spans[-1] < PANE_US_MIN:
                raise self.place.refusal(
                    interval.at, f"a window of {spans[-1]} µs is too short", f"use at least {PANE_US_MIN} microseconds"
                )
        hop_us, size_us = spans[0], spans[-1]
        if size_us % hop_us:
            raise self.place.refusal(
                window.intervals[-1].at,
                f"the size {window.intervals[-1].text!r} is no multiple of the hop {window.intervals[0].text!r}",
                "write HOP(stream, time, hop, size)",
            )
        if size_us // hop_us > PANES_MAX:
            raise self.place.refusal(
                window.intervals[0].at,
                f"a window of {size_us // hop_us} hops is too long",
                f"use at most {PANES_MAX}: a longer hop",
            )
        return hop_us, size_us

    def group(self) -> dict[str, Input]:
        """Check GROUP BY; the columns that name a group."""
        query, instrument = self.query, self.readings.stream.instrument.name
        wanted = f"GROUP BY {instrument}, window_start, window_end"
        group: dict[str, Input] = {}
        for name in query.group:
            if name.name in BOUNDS:
                continue
            column = self.scope.column(name)
            if not isinstance(column, Input) or column.role != "instrument":
                raise self.place.refusal(name.at, f"GROUP BY {name} is not supported", f"write {wanted}")
            group[name.name] = column
        if len(group) != 1 or not {name.name for name in query.group} & set(BOUNDS):
            at = query.group[0].at if query.group else query.at
            missing = "without the instrument" if not group else "without the window"
            raise self.place.refusal(
                at,
                f"GROUP BY is {missing}" if len(group) < 2 else "GROUP BY names the instrument twice",
                f"write {wanted}",
            )
        return group

    def columns(self, group: dict[str, Input]) -> list[GroupColumn | Aggregation]:
        """Check the SELECT list: group columns and aggregates, in its order."""
        found: list[GroupColumn | Aggregation] = []
        names: set[str] = set()
        grouped = {name.name for name in self.query.group}
        for item in self.query.items:
            column = item.expression
            name = item.name or implied_name(column)
            if isinstance(column, Name) and column.name in BOUNDS:
                if name != column.name or column.name not in grouped:
                    raise self.place.refusal(
                        item.at, f"{column} is renamed, or not in GROUP BY", f"write {column}, and GROUP BY {column}"
                    )
            else:
                found.append(self.column(item, name, group))
                check_name(self.place, item.at, name, "column", taken=())
            if name in names:
                raise self.place.refusal(item.at, f"there is another column {name}", "give it another name with AS")
            names.add(name)
        for missing in (*group, *BOUNDS):
            if not any(isinstance(i.expression, Name) and i.expression.name == missing for i in self.query.items):
                raise self.place.refusal(self.query.at, f"the SELECT list is without {missing}", "add it")
        if len(names) > OUTPUTS_MAX:
            raise self.place.refusal(self.query.at, f"{len(names)} columns are too many", f"use at most {OUTPUTS_MAX}")
        if not any(isinstance(column, Aggregation) for column in found):
            raise self.place.refusal(self.query.at, "the SELECT list is without an aggregate", "add count(*) AS count")
        return found

    def column(self, item: Item, name: str, group: dict[str, Input]) -> GroupColumn | Aggregation:
        node = item.expression
        if isinstance(node, Name):
            column = self.scope.column(node)
            if node.name not in group or not isinstance(column, Input):
                raise self.place.refusal(
                    node.at, f"{node} stands neither in GROUP BY nor in an aggregate", f"write avg({node}), for example"
                )
            return GroupColumn(name, "text" if column.type == TEXT else "bigint", column.field.name)
        if not isinstance(node, Apply) or node.function not in AGGREGATES:
            raise self.no_aggregate(node)
        return Aggregation(name, AGGREGATES[node.function], self.argument(node))

    def no_aggregate(self, node: syntax.Expression) -> ViewError:
        if isinstance(node, Apply) and node.function.isidentifier() and node.function not in ("and", "or", "not"):
            known = f"use one of {', '.join(AGGREGATES)}"
            return self.place.refusal(node.at, f"{node.function} is no aggregate of views", known)
        return self.place.refusal(
            node.at,
            "an expression that is no aggregate is not supported",
            "write the aggregate alone, and compute in a query on the view",
        )

    def argument(self, node: Apply) -> Expression | None:
        if node.star and node.function == "count":
            return None
        if node.star or len(node.arguments) != 1:
            raise self.place.refusal(
                node.at, f"{node.function} does not take {'*' if node.star else f'{len(node.arguments)} arguments'}",
                f"write {node.function}(value)",
            )  # fmt: skip
        refuse_aggregates(self.place, node.arguments[0])
        argument = self.scope.bind(node.arguments[0])
        if node.function == "count" and argument.type not in ("unknown", "numeric"):
            return argument
        if argument.type not in ("real", "double precision"):
            raise self.place.refusal(
                node.at, f"{node.function}({argument.type}) is not supported", "cast the argument to double precision"
            )
        return argument
