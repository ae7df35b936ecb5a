"""Expressions of the parser's tree, turned into ours. Beside `sql` the only file that knows that tree."""

import re
from typing import Any

from processors.syntax import Apply, Cast, Expression, Literal, Name, Place, ViewError

Tree = Any  # protobuf messages, whose classes are made at run time

OPERATORS = ("+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">=")
TYPES = {  # as the grammar names them, and as PostgreSQL shows them
    "float4": "real",
    "float8": "double precision",
    "int4": "integer",
    "int8": "bigint",
    "bool": "boolean",
}
SPOKEN = {  # what the tree calls a thing, what its author calls it, and what to write instead
    "case_expr": ("CASE", "filter with WHERE, or avoid a division by zero with NULLIF(divisor, 0)"),
    "coalesce_expr": ("COALESCE", "leave it out: aggregates pass over NULL"),
    "min_max_expr": ("GREATEST or LEAST", "aggregate each argument, and compare in a query on the view"),
    "boolean_test": ("IS TRUE or IS FALSE", "write the condition alone, or NOT"),
    "sub_link": ("a sub-query in an expression", "a view reads one stream, reading by reading"),
    "sqlvalue_function": (
        "CURRENT_TIMESTAMP, CURRENT_USER or the like",
        "a view is a function of the record: use the stream's own columns",
    ),
    "a_array_expr": ("ARRAY", "use single values"),
    "row_expr": ("a row of values", "use single values"),
    "a_indirection": ("a part of a value", "use single values"),
    "param_ref": ("a parameter", "write the value itself"),
    "collate_clause": ("COLLATE", "leave it out"),
    "grouping_set": ("GROUPING SETS, ROLLUP or CUBE", "write one view for each set of columns"),
}
KINDS = {
    "AEXPR_BETWEEN": ("BETWEEN", "write value >= low AND value <= high"),
    "AEXPR_NOT_BETWEEN": ("NOT BETWEEN", "write value < low OR value > high"),
    "AEXPR_IN": ("IN", "write value = first OR value = second"),
    "AEXPR_LIKE": ("LIKE", "compare with = or <>"),
    "AEXPR_ILIKE": ("ILIKE", "compare with = or <>"),
    "AEXPR_SIMILAR": ("SIMILAR TO", "compare with = or <>"),
    "AEXPR_DISTINCT": ("IS DISTINCT FROM", "write a <> b, and IS NULL where NULL matters"),
    "AEXPR_NOT_DISTINCT": ("IS NOT DISTINCT FROM", "write a = b, and IS NULL where NULL matters"),
}
IMPURE: tuple[str, ...] = (
    "now",
    "random",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
)
IMPURE += ("gen_random_uuid", "nextval", "setseed", "random_normal")


class Terms:
    """Reads expressions of one text; whatever it does not expect, it refuses."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.octets = place.text.encode()
        self.simple = len(self.octets) == len(place.text)

    def refusal(self, at: int, wrong: str, remedy: str) -> ViewError:
        return self.place.refusal(at, wrong, remedy)

    def unsupported(self, at: int, construct: str, remedy: str) -> ViewError:
        return self.refusal(at, f"{construct} is not supported", remedy)

    def at(self, location: int) -> int:
        """Character from the parser's byte."""
        location = max(location, 0)
        return location if self.simple else len(self.octets[:location].decode(errors="ignore"))

    def expression(self, node: Tree) -> Expression:
        kind, value = inner(node)
        if kind == "column_ref":
            return self.column(value)
        if kind == "a_const":
            return self.constant(value)
        if kind == "a_expr":
            return self.operator(value)
        if kind == "bool_expr":
            arguments = tuple(self.expression(argument) for argument in value.args)
            return Apply(self.at(value.location), enum(value, "boolop").removesuffix("_EXPR").lower(), arguments)
        if kind == "null_test":
            name = "is null" if enum(value, "nulltesttype") == "IS_NULL" else "is not null"
            return Apply(self.at(value.location), name, (self.expression(value.arg),))
        if kind == "type_cast":
            return self.cast(value)
        if kind == "func_call":
            return self.call(value)
        raise self.unknown(kind, value)

    def unknown(self, kind: str, value: Tree) -> ViewError:
        construct, remedy = SPOKEN.get(
            kind, (kind.replace("_", " "), "use columns, + - * /, comparisons, AND, OR, NOT")
        )
        return self.unsupported(self.at(_location(value)), construct, remedy)

    def column(self, value: Tree) -> Name:
        at, parts = self.at(value.location), [inner(part) for part in value.fields]
        if len(parts) > 2 or any(kind != "string" for kind, _ in parts):
            raise self.unsupported(at, "a column with more than one dot, or a star,", "write column or relation.column")
        names = [part.sval for _, part in parts]
        return Name(at, names[-1], names[0] if len(names) == 2 else "")

    def constant(self, value: Tree) -> Literal:
        at = self.at(value.location)
        if value.isnull:
            return Literal(at, None, "unknown")
        kind = value.WhichOneof("val")
        if kind == "ival":
            return Literal(at, value.ival.ival, "integer")
        if kind == "boolval":
            return Literal(at, value.boolval.boolval, "boolean")
        if kind == "sval":
            return Literal(at, value.sval.sval, "unknown")
        if kind == "fval":
            text = value.fval.fval.replace("_", "")
            whole = _whole(text)
            if whole is not None and -(2**63) <= whole < 2**63:
                return Literal(at, whole, "bigint")
            return Literal(at, text, "numeric")
        raise self.unsupported(at, "a bit string", "write a number")

    def operator(self, value: Tree) -> Expression:
        at, kind = self.at(value.location), enum(value, "kind")
        if kind in KINDS:
            raise self.unsupported(at, *KINDS[kind])
        name = inner(value.name[-1])[1].sval
        if kind not in ("AEXPR_OP", "AEXPR_NULLIF"):
            raise self.unsupported(at, f"{name} ANY or {name} ALL", "compare single values")
        right = self.expression(value.rexpr)
        if kind == "AEXPR_NULLIF":
            return Apply(at, "nullif", (self.expression(value.lexpr), right))
        if not value.HasField("lexpr") and name in "+-":
            return Apply(at, "negative", (right,)) if name == "-" else right
        if name not in OPERATORS or not value.HasField("lexpr"):
            raise self.unsupported(at, f"the operator {name}", f"use {' '.join(OPERATORS)}")
        return Apply(at, name, (self.expression(value.lexpr), right))

    def cast(self, value: Tree) -> Cast:
        at = self.at(value.location if value.location >= 0 else value.type_name.location)
        name = inner(value.type_name.names[-1])[1].sval
        plain = not (value.type_name.typmods or value.type_name.array_bounds)
        if name not in TYPES or not plain:
            raise self.unsupported(
                at, f"a cast to {name}{'' if plain else '(…)'}", f"cast to one of {', '.join(TYPES.values())}"
            )
        return Cast(at, self.expression(value.arg), TYPES[name])

    def call(self, value: Tree) -> Apply:
        at = self.at(value.location)
        name = inner(value.funcname[-1])[1].sval
        if value.HasField("over"):
            raise self.unsupported(
                at, f"{name}(…) OVER", "take the windows from TUMBLE or HOP in FROM: HOP gives rolling ones"
            )
        for present, wrong, remedy in (
            (value.agg_distinct, f"{name}(DISTINCT …)", "leave DISTINCT out"),
            (value.HasField("agg_filter"), "FILTER", "filter with WHERE, in a view of its own"),
            (len(value.agg_order), f"ORDER BY in {name}(…)", "leave it out"),
            (value.agg_within_group, "WITHIN GROUP", "leave it out"),
            (value.func_variadic, "VARIADIC", "leave it out"),
            (name in IMPURE, f"{name}()", "a view is a function of the record: use the stream's own columns"),
        ):
            if present:
                raise self.unsupported(at, wrong, remedy)
        return Apply(at, name, tuple(self.expression(argument) for argument in value.args), star=value.agg_star)


def inner(node: Tree) -> tuple[str, Tree]:
    """Which kind of node it is, and the node itself."""
    kind = node.WhichOneof("node") or ""
    return kind, getattr(node, kind) if kind else node


def enum(message: Tree, field: str) -> str:
    descriptor = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(descriptor.values_by_number[getattr(message, field)].name)


def _whole(text: str) -> int | None:
    """Read a whole number of at most 64 bits; longer ones are numeric, as is what has a point or an exponent."""
    if re.fullmatch(r"-?[0-9]{1,30}", text):
        return int(text)
    return int(text, 0) if re.fullmatch(r"-?0[xob][0-9a-f]{1,64}", text.lower()) else None


def _location(value: Tree) -> int:
    """Where a node stands; of one that does not say it, where the first part that does."""
    if getattr(value, "location", -1) >= 0:
        return int(value.location)
    for field, content in value.ListFields():
        if field.message_type is not None:
            for part in content if hasattr(content, "__len__") else (content,):
                location = _location(part)
                if location >= 0:
                    return location
    return -1
