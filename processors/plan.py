"""From a view's SQL to what the processors need to keep it: group, windows, states, outputs. Knows not Kafka."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from processors import syntax
from processors.aggregates import AGGREGATES, Aggregate
from processors.arithmetic import Column
from processors.binding import Scope, nearest
from processors.expressions import TEXT, Expression, Input, Operation, Program, as_doubles, canonical
from processors.options import Options, check_name, read_options
from processors.relations import Readings, Relations, implied_name
from processors.spans import SpanError, span_us
from processors.sql import parse_view
from processors.states import ALL_READINGS, StateLayout
from processors.syntax import Apply, Definition, Item, Name, Place, ViewError, Window
from processors.wording import describe
from schemas.batch import Bools, Columns, Int64s, Vector
from schemas.stream import Stream

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
class Output:
    """A column that an aggregate fills."""

    name: str
    pg_type: str  # "bigint" or "double precision"
    unit: str
    meaning: str


@dataclass
class Evaluated:
    """The readings that a view takes in, and what it aggregates of them."""

    rows: Int64s  # indices into the columns, ascending
    inputs: list[Vector]  # doubles, aligned with rows; one for each distinct argument
    failed: int = 0  # readings left out because an expression failed, where PostgreSQL would raise an error


@dataclass(frozen=True)
class Plan:
    """A view, ready to be kept.

    For example::

        plan = build_plan(text, "views/bpm_1s.sql", streams)
        evaluated = plan.evaluate(columns, good)
        plan.layout.absorb(table, rows_of(evaluated.rows), evaluated.inputs)
    """

    name: str
    stream: str
    generation: int
    fingerprint: str  # of what the view computes; formatting, comments and emit_every do not change it
    group: tuple[GroupColumn, ...]
    pane_us: int
    size_us: int
    hop_us: int
    lateness_us: int
    emit_every_us: int
    layout: StateLayout = field(repr=False, compare=False)
    outputs: tuple[Output, ...]
    where: Expression | None = field(repr=False, compare=False)
    arguments: tuple[Expression, ...] = field(repr=False, compare=False)
    filter: Program = field(repr=False, compare=False)
    program: Program = field(repr=False, compare=False)

    def evaluate(self, columns: Columns, keep: Int64s) -> Evaluated:
        """Filter the readings `keep` (ascending), and compute what is aggregated of those that pass.

        A reading on which an expression fails is left out as a whole, so that all columns speak of the same readings.
        """
        rows, failed = np.asarray(keep, np.int64), 0
        if self.where is not None:
            (passed,) = self.filter.run(columns, rows)
            failed += _count(passed.failed, len(rows))
            rows = rows[_everywhere(_true(passed), len(rows))]
        results = self.program.run(columns, rows)
        inputs = [
            as_doubles(result, argument.type, len(rows))
            for result, argument in zip(results, self.arguments, strict=True)
        ]
        bad = np.zeros(len(rows), np.bool_)
        for result in results:
            if result.failed is not None:
                bad |= result.failed
        if bad.any():
            failed += int(bad.sum())
            rows = rows[~bad]
            inputs = [Vector(values[~bad], valid[~bad]) for values, valid in inputs]
        return Evaluated(rows, inputs, failed)


def _true(column: Column) -> Bools:
    true: Bools = column.values & column.valid
    return true if column.failed is None else true & ~column.failed


def _everywhere(mask: Bools, count: int) -> Bools:
    return np.broadcast_to(mask, (count,))


def _count(mask: Bools | None, count: int) -> int:
    return 0 if mask is None else int(_everywhere(mask, count).sum())


def load_views(folder: Path, streams: Mapping[str, Stream]) -> dict[str, Plan]:
    """Read every `.sql` file of a folder; the plans by name of the view."""
    plans: dict[str, Plan] = {}
    for path in sorted(folder.glob("*.sql")):
        try:
            sql = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ViewError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
        plan = build_plan(sql, str(path), streams)
        if plan.name in plans:
            raise ViewError(f"{path}: the view {plan.name} is also that of another file here; rename one")
        plans[plan.name] = plan
    return plans


def build_plan(sql: str, file: str, streams: Mapping[str, Stream]) -> Plan:
    """Plan one view. `file` is only for messages."""
    return _Planner(Place(file, sql), streams).plan(parse_view(sql, file))


@dataclass(frozen=True)
class _Aggregation:
    """An aggregate of the SELECT list, its argument bound."""

    name: str
    aggregate: Aggregate
    argument: Expression | None


class _Planner:
    def __init__(self, place: Place, streams: Mapping[str, Stream]) -> None:
        self.place = place
        self.streams = streams

    def plan(self, definition: Definition) -> Plan:
        check_name(self.place, definition.at, definition.name, "view", taken=self.streams)
        options = read_options(self.place, definition.options)
        relations = Relations(self.place, self.streams)
        for name, select in definition.tables:
            relations.define(name, select)
        window = definition.query.source
        if not isinstance(window, Window):
            raise self.place.refusal(
                window.at, "FROM without a window", "write TUMBLE(stream, time, INTERVAL '1 second') or HOP(…)"
            )
        readings = relations.read(window.of)
        if window.alias:
            readings = Readings(readings.stream, frozenset({window.alias}), readings.columns, readings.where)
        hop_us, size_us = self.window(window, readings)
        group = self.group(definition, readings)
        aggregations = self.aggregations(definition, readings, group)
        where = readings.where
        if definition.query.where is not None:
            relations.no_aggregate(definition.query.where)
            where = (*where, Scope(self.place, readings.columns, set(readings.names)).condition(definition.query.where))
        return _finish(definition.name, readings.stream, options, (hop_us, size_us), group, aggregations, where)

    def window(self, window: Window, readings: Readings) -> tuple[int, int]:
        """Check the window; its hop and its size in microseconds."""
        time = Scope(self.place, readings.columns, set(readings.names)).column(window.time)
        if not isinstance(time, Input) or time.role != "time":
            name = readings.stream.time.name
            raise self.place.refusal(window.time.at, f"windows over {window.time}", f"use the stream's time, {name}")
        spans: list[int] = []
        for interval in window.intervals:
            try:
                spans.append(span_us(interval.text))
            except SpanError as error:
                raise self.place.refusal(interval.at, str(error), "write INTERVAL '1 second'") from None
            if spans[-1] < PANE_US_MIN:
                raise self.place.refusal(
                    interval.at, f"windows of {spans[-1]} µs", f"use at least {PANE_US_MIN} microseconds"
                )
        hop_us, size_us = spans[0], spans[-1]
        if size_us % hop_us:
            raise self.place.refusal(
                window.intervals[-1].at,
                "a size that is no multiple of the hop",
                "write HOP(stream, time, hop, size) so",
            )
        if size_us // hop_us > PANES_MAX:
            raise self.place.refusal(
                window.intervals[0].at,
                f"{size_us // hop_us} hops in a window",
                f"use at most {PANES_MAX}: a longer hop",
            )
        return hop_us, size_us

    def group(self, definition: Definition, readings: Readings) -> dict[str, Input]:
        """Check GROUP BY; the columns that name a group."""
        query, instrument = definition.query, readings.stream.instrument.name
        wanted = f"GROUP BY {instrument}, window_start, window_end"
        scope = Scope(self.place, readings.columns, set(readings.names))
        group: dict[str, Input] = {}
        for name in query.group:
            if name.name in BOUNDS:
                continue
            column = scope.column(name)
            if not isinstance(column, Input) or column.role != "instrument":
                raise self.place.refusal(name.at, f"GROUP BY {name}", f"only the instrument can be: {wanted}")
            group[name.name] = column
        if len(group) != 1 or not {name.name for name in query.group} & set(BOUNDS):
            at = query.group[0].at if query.group else query.at
            missing = "without the instrument" if not group else "without the window"
            raise self.place.refusal(
                at, f"GROUP BY {missing}" if len(group) < 2 else "the instrument twice", f"write {wanted}"
            )
        return group

    def aggregations(
        self, definition: Definition, readings: Readings, group: dict[str, Input]
    ) -> list[GroupColumn | _Aggregation]:
        """Sort the SELECT list into group columns and aggregates."""
        found: list[GroupColumn | _Aggregation] = []
        names: set[str] = set()
        grouped = {name.name for name in definition.query.group}
        for item in definition.query.items:
            column = item.expression
            name = item.name or implied_name(column)
            if isinstance(column, Name) and column.name in BOUNDS:
                if name != column.name or column.name not in grouped:
                    raise self.place.refusal(
                        item.at, f"{column} renamed or not in GROUP BY", f"write {column}, and GROUP BY {column}"
                    )
            else:
                found.append(self.column(item, name, readings, group))
                check_name(self.place, item.at, name, "column", taken=())
            if name in names:
                raise self.place.refusal(item.at, f"a second column {name}", "give it another name with AS")
            names.add(name)
        for missing in (*group, *BOUNDS):
            if not any(isinstance(i.expression, Name) and i.expression.name == missing for i in definition.query.items):
                raise self.place.refusal(definition.query.at, f"a SELECT list without {missing}", "add it")
        if len(names) > OUTPUTS_MAX:
            raise self.place.refusal(definition.query.at, f"{len(names)} columns", f"use at most {OUTPUTS_MAX}")
        if not any(isinstance(column, _Aggregation) for column in found):
            raise self.place.refusal(definition.query.at, "a SELECT list without an aggregate", "add count(*) AS count")
        return found

    def column(self, item: Item, name: str, readings: Readings, group: dict[str, Input]) -> GroupColumn | _Aggregation:
        node = item.expression
        scope = Scope(self.place, readings.columns, set(readings.names))
        if isinstance(node, Name):
            column = scope.column(node)
            if node.name not in group or not isinstance(column, Input):
                raise self.place.refusal(
                    node.at, f"{node} stands neither in GROUP BY nor in an aggregate", f"write avg({node}), say"
                )
            return GroupColumn(name, "text" if column.type == TEXT else "bigint", column.field.name)
        if not isinstance(node, Apply) or node.function not in AGGREGATES:
            return self.no_aggregate(node)
        return _Aggregation(name, AGGREGATES[node.function], self.argument(node, scope))

    def no_aggregate(self, node: syntax.Expression) -> _Aggregation:
        if isinstance(node, Apply) and node.function.isidentifier() and node.function not in ("and", "or", "not"):
            known = nearest(node.function, AGGREGATES)
            raise self.place.refusal(node.at, f"{node.function} is no aggregate of views", known)
        raise self.place.refusal(
            node.at,
            "an expression around or beside aggregates",
            "aggregate alone here, and compute in a query on the view",
        )

    def argument(self, node: Apply, scope: Scope) -> Expression | None:
        if node.star and node.function == "count":
            return None
        if node.star or len(node.arguments) != 1:
            raise self.place.refusal(
                node.at, f"{node.function} with {'*' if node.star else len(node.arguments)} for arguments",
                f"write {node.function}(value)",
            )  # fmt: skip
        Relations(self.place, self.streams).no_aggregate(node.arguments[0])
        argument = scope.bind(node.arguments[0])
        if node.function == "count" and argument.type not in ("unknown", "numeric"):
            return argument
        if argument.type not in ("real", "double precision"):
            raise self.place.refusal(
                node.at, f"{node.function} of {argument.type}", "cast the argument to double precision"
            )
        return argument


def _finish(
    name: str,
    stream: Stream,
    options: Options,
    window_us: tuple[int, int],
    group: dict[str, Input],
    columns: list[GroupColumn | _Aggregation],
    where: tuple[Expression, ...],
) -> Plan:
    hop_us, size_us = window_us
    aggregations = [column for column in columns if isinstance(column, _Aggregation)]
    arguments = tuple(dict.fromkeys(a.argument for a in aggregations if a.argument is not None))
    outputs, states = [], []
    for found in aggregations:
        outputs.append(Output(found.name, found.aggregate.pg_type, *describe(found.aggregate, found.argument)))
        states.append((found.aggregate, ALL_READINGS if found.argument is None else arguments.index(found.argument)))
    condition = where[0] if len(where) == 1 else Operation("and", where, "boolean") if where else None
    layout = StateLayout(states, len(arguments))
    names = tuple(column for column in columns if isinstance(column, GroupColumn))
    computed = (stream.name, hop_us, size_us, options.lateness_us, names, tuple(group), *map(canonical, arguments))
    finished = (tuple((o.name, a.name, i) for o, (a, i) in zip(outputs, states, strict=True)), layout.signature)
    filtered = None if condition is None else canonical(condition)
    return Plan(
        name=name,
        stream=stream.name,
        generation=options.generation,
        fingerprint=hashlib.sha256(repr((computed, finished, filtered)).encode()).hexdigest(),
        group=names,
        pane_us=hop_us,
        size_us=size_us,
        hop_us=hop_us,
        lateness_us=options.lateness_us,
        emit_every_us=options.emit_every_us,
        layout=layout,
        outputs=tuple(outputs),
        where=condition,
        arguments=arguments,
        filter=Program([] if condition is None else [condition]),
        program=Program(arguments),
    )
