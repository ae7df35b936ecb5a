"""What a view reads: a stream, seen through common table expressions and sub-selects that project or filter it.

They are put into each other here, so that of any depth of them one set of expressions over the stream is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from processors import syntax
from processors.aggregates import AGGREGATES
from processors.binding import Scope, nearest
from processors.expressions import Expression, Input
from processors.syntax import Apply, Cast, Name, Place, Select, Window
from schemas.stream import Stream


@dataclass(frozen=True)
class Readings:
    """The readings of a stream, filtered, with the columns that may be named."""

    stream: Stream
    names: frozenset[str]  # by which a column may be qualified
    columns: Mapping[str, Expression]
    where: tuple[Expression, ...] = ()


class Relations:
    """Finds what a FROM clause means."""

    def __init__(self, place: Place, streams: Mapping[str, Stream]) -> None:
        self.place = place
        self.streams = streams
        self.tables: dict[str, Readings] = {}

    def define(self, name: syntax.Relation, select: Select) -> None:
        """Take a common table expression; later ones may read it."""
        if name.name in self.tables:
            raise self.place.refusal(name.at, f"WITH defines {name.name} twice", "give each its own name")
        found = self.select(select)
        self.tables[name.name] = Readings(found.stream, frozenset({name.name}), found.columns, found.where)

    def read(self, source: syntax.Relation | Select | Window) -> Readings:
        if isinstance(source, Window):
            raise self.place.refusal(
                source.at,
                f"{source.function.upper()} inside WITH or a sub-select is not supported",
                "put it into the outer FROM",
            )
        found = self.select(source) if isinstance(source, Select) else self.named(source)
        names = frozenset({source.alias}) if source.alias else found.names
        return Readings(found.stream, names, found.columns, found.where)

    def named(self, relation: syntax.Relation) -> Readings:
        if relation.name in self.tables:
            return self.tables[relation.name]
        if relation.name not in self.streams:
            known = [*self.tables, *self.streams]
            raise self.place.refusal(relation.at, f"unknown stream {relation.name}", nearest(relation.name, known))
        stream = self.streams[relation.name]
        return Readings(stream, frozenset({relation.name}), stream_columns(stream))

    def select(self, select: Select) -> Readings:
        if select.group:
            raise self.place.refusal(
                select.group[0].at,
                "GROUP BY inside WITH or a sub-select is not supported",
                "aggregate in the outer SELECT: it is one view",
            )
        found = self.read(select.source)
        scope = Scope(self.place, found.columns, found.names)
        columns: dict[str, Expression] = {}
        for item in select.items:
            refuse_aggregates(self.place, item.expression)
            name = item.name or implied_name(item.expression)
            if not name:
                raise self.place.refusal(item.at, "the column has no name", "add AS and a name")
            if name in columns:
                raise self.place.refusal(item.at, f"there is another column {name}", "give it another name with AS")
            columns[name] = scope.bind(item.expression)
        where = found.where
        if select.where is not None:
            refuse_aggregates(self.place, select.where)
            where = (*where, scope.condition(select.where))
        return Readings(found.stream, frozenset(), columns, where)


def refuse_aggregates(place: Place, node: syntax.Expression) -> None:
    """Refuse an aggregate where single readings are spoken of."""
    if isinstance(node, Apply):
        if node.function in AGGREGATES:
            raise place.refusal(
                node.at,
                f"the aggregate {node.function} cannot stand here",
                "aggregate in the outer SELECT list, and not twice",
            )
        for argument in node.arguments:
            refuse_aggregates(place, argument)
    elif isinstance(node, Cast):
        refuse_aggregates(place, node.argument)


def stream_columns(stream: Stream) -> dict[str, Expression]:
    """Name every column of a stream."""
    roles = ("source", "run", "trigger", "time", "instrument", "status")
    named = [(getattr(stream, role), role) for role in roles] + [(field, "value") for field in stream.values]
    return {field.name: Input(field, role) for field, role in named if field is not None}


def implied_name(node: syntax.Expression) -> str:
    """Name a column as PostgreSQL does where its author did not."""
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Cast):
        return implied_name(node.argument)
    if isinstance(node, Apply) and node.function.isidentifier():
        return node.function if node.function not in ("and", "or", "not", "negative") else ""
    return ""
