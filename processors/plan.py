"""From a view's SQL to what the processors need to keep it: group, windows, states, outputs. Knows not Kafka."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from processors.arithmetic import Column
from processors.binding import Scope
from processors.expressions import Expression, Program, as_doubles, canonical, terms
from processors.options import Options, check_name, read_options
from processors.relations import Relations, refuse_aggregates
from processors.selection import Chosen, GroupColumn, Selection
from processors.sql import parse_view
from processors.states import ALL_READINGS, StateLayout
from processors.syntax import Definition, Place, ViewError, Window
from processors.wording import describe
from schemas.batch import Bools, Columns, Int64s, Vector
from schemas.stream import Stream

__all__ = ["Evaluated", "GroupColumn", "Output", "Plan", "ViewError", "build_plan", "load_views"]


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
    filters: tuple[Program, ...] = field(repr=False, compare=False)  # one condition each: a reading passes all
    arguments: tuple[Expression, ...] = field(repr=False, compare=False)
    program: Program = field(repr=False, compare=False)

    def evaluate(self, columns: Columns, keep: Int64s) -> Evaluated:
        """Filter the readings `keep` (ascending), and compute what is aggregated of those that pass.

        A reading on which an expression fails is left out as a whole, so that all columns speak of the same readings.
        """
        rows, failed = np.asarray(keep, np.int64), 0
        for condition in self.filters:  # one after the other: what a reading fails to pass hides later errors
            (passed,) = condition.run(columns, rows)
            if passed.failed is not None:
                failed += int(_everywhere(passed.failed, len(rows)).sum())
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


def load_views(folder: Path, streams: Mapping[str, Stream]) -> dict[str, Plan]:
    """Read every `.sql` file of a folder; the plans by name of the view."""
    if not folder.is_dir():
        raise ViewError(f"{folder}: is no folder; put the views' .sql files there, or set STROBE_VIEWS")
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
    return _plan(Place(file, sql), parse_view(sql, file), streams)


def _plan(place: Place, definition: Definition, streams: Mapping[str, Stream]) -> Plan:
    check_name(place, definition.at, definition.name, "view", taken=streams)
    options = read_options(place, definition.options)
    relations = Relations(place, streams)
    for name, select in definition.tables:
        relations.define(name, select)
    query, window = definition.query, definition.query.source
    if not isinstance(window, Window):
        remedy = "write TUMBLE(stream, time, INTERVAL '1 second') or HOP(…)"
        raise place.refusal(window.at, "FROM is without a window", remedy)
    readings = relations.read(window.of)
    if window.alias:
        readings = replace(readings, names=frozenset({window.alias}))
    where = readings.where
    if query.where is not None:
        refuse_aggregates(place, query.where)
        where = (*where, Scope(place, readings.columns, readings.names).condition(query.where))
    return _finish(definition.name, readings.stream, options, Selection(place, query, readings).chosen(window), where)


def _finish(name: str, stream: Stream, options: Options, chosen: Chosen, where: tuple[Expression, ...]) -> Plan:
    arguments = tuple(dict.fromkeys(found.argument for found in chosen.aggregations if found.argument is not None))
    outputs, states = [], []
    for found in chosen.aggregations:
        outputs.append(Output(found.name, found.aggregate.pg_type, *describe(found.aggregate, found.argument)))
        states.append((found.aggregate, ALL_READINGS if found.argument is None else arguments.index(found.argument)))
    conditions = tuple(term for condition in where for term in terms(condition))
    layout = StateLayout(states, len(arguments))
    finished = [
        (found.name, found.aggregate.name, state[1]) for found, state in zip(chosen.aggregations, states, strict=True)
    ]
    computes = (
        (stream.name, chosen.hop_us, chosen.size_us, options.lateness_us, chosen.group),
        [canonical(condition) for condition in conditions],
        [canonical(argument) for argument in arguments],
        (finished, layout.signature),
    )
    return Plan(
        name=name,
        stream=stream.name,
        generation=options.generation,
        fingerprint=hashlib.sha256(repr(computes).encode()).hexdigest(),
        group=chosen.group,
        pane_us=chosen.hop_us,
        size_us=chosen.size_us,
        hop_us=chosen.hop_us,
        lateness_us=options.lateness_us,
        emit_every_us=options.emit_every_us,
        layout=layout,
        outputs=tuple(outputs),
        filters=tuple(Program([condition]) for condition in conditions),
        arguments=arguments,
        program=Program(arguments),
    )
