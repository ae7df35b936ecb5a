"""SQL text to a view's definition, by PostgreSQL's own grammar. The only file that knows the parser."""

from collections.abc import Iterable
from typing import Any

import postgast
from google.protobuf.message import DecodeError

from processors.syntax import (
    Apply,
    Cast,
    Definition,
    Expression,
    Interval,
    Item,
    Literal,
    Name,
    Option,
    Place,
    Relation,
    Select,
    ViewError,
    Window,
)

Tree = Any  # protobuf messages, whose classes are made at run time

VIEW = "CREATE MATERIALIZED VIEW name AS SELECT … FROM TUMBLE(stream, time, INTERVAL '1 second') GROUP BY …"
OPERATORS = ("+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">=")
TYPES = {  # as the grammar names them, and as PostgreSQL shows them
    "float4": "real",
    "float8": "double precision",
    "int4": "integer",
    "int8": "bigint",
    "bool": "boolean",
}
# Clauses that a view cannot have: where the tree holds one, the word to look for, and what to write instead.
CLAUSES = (
    ("having_clause", "having", "leave it out and filter what the view shows: SELECT … FROM view WHERE …"),
    ("distinct_clause", "distinct", "leave it out: GROUP BY gives one row per group and window"),
    ("window_clause", "window", "leave it out and take the windows from TUMBLE or HOP in FROM"),
    ("sort_clause", "order", "leave it out and order what the view shows: SELECT … FROM view ORDER BY …"),
    ("limit_count", "limit", "leave it out and limit what the view shows: SELECT … FROM view LIMIT …"),
    ("limit_offset", "offset", "leave it out and limit what the view shows: SELECT … FROM view OFFSET …"),
    ("locking_clause", "for", "leave it out: a view locks nothing"),
    ("values_lists", "values", "select from a stream"),
    ("into_clause", "into", "leave it out: CREATE MATERIALIZED VIEW names the result"),
)
SPOKEN = {  # what the tree calls a thing, what its author calls it, and what to write instead
    "case_expr": ("CASE", "filter with WHERE, or avoid a division by zero with NULLIF(divisor, 0)"),
    "coalesce_expr": ("COALESCE", "leave it out: aggregates pass over NULL"),
    "min_max_expr": ("GREATEST or LEAST", "aggregate each argument, and compare in a query on the view"),
    "boolean_test": ("IS TRUE or IS FALSE", "write the condition alone, or NOT"),
    "sub_link": ("a sub-query in an expression", "a view reads one stream, reading by reading"),
    "sqlvalue_function": (
        "the time or name of now",
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
IMPURE = ("now", "random", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday")
IMPURE += ("gen_random_uuid", "nextval", "setseed", "random_normal")


def parse_view(text: str, file: str) -> Definition:
    """Read the one statement of a view's file. `file` is only for messages."""
    return _Reader(Place(file, text)).definition()


class _Reader:
    """Turns the parser's tree into ours; whatever it does not expect, it refuses."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.octets = place.text.encode()
        self.simple = len(self.octets) == len(place.text)

    def refusal(self, at: int, wrong: str, remedy: str) -> ViewError:
        return self.place.refusal(at, wrong, remedy)

    def at(self, location: int) -> int:
        """Character from the parser's byte."""
        location = max(location, 0)
        return location if self.simple else len(self.octets[:location].decode(errors="ignore"))

    def word(self, *words: str) -> int:
        """Where a keyword stands: clauses have no place in the tree."""
        for token in postgast.scan(self.place.text).tokens:
            if self.octets[token.start : token.end].decode(errors="ignore").lower() in words:
                return self.at(token.start)
        return 0

    def statements(self) -> list[Tree]:
        if "\0" in self.place.text:
            raise self.refusal(self.place.text.index("\0"), "a NUL character", "remove it")
        try:
            return list(postgast.parse(self.place.text).stmts)
        except postgast.PgQueryError as error:
            raise self.refusal(max(error.cursorpos - 1, 0), str(error), f"write {VIEW}")
        except DecodeError:  # the binding's limit of 100 nested messages
            raise self.refusal(0, "an expression is nested too deeply", "name parts of it in a WITH clause")

    def definition(self) -> Definition:
        statements = self.statements()
        if len(statements) != 1:
            second = self.at(statements[1].stmt_location) if statements else 0
            text = self.place.text
            while second < len(text) - 1 and (text[second].isspace() or text[second] == ";"):
                second += 1
            raise self.refusal(second, f"{len(statements)} statements", f"a file holds one: {VIEW}")
        kind, statement = _inner(statements[0].stmt)
        if kind != "create_table_as_stmt" or _enum(statement, "objtype") != "OBJECT_MATVIEW":
            raise self.refusal(self.first(), "the statement creates no materialized view", f"write {VIEW}")
        into = statement.into
        at = self.at(into.rel.location)
        if into.rel.schemaname:
            raise self.refusal(at, f"the name {into.rel.schemaname}.{into.rel.relname}", "write it without a schema")
        if statement.if_not_exists:
            raise self.refusal(self.word("if"), "IF NOT EXISTS", "leave it out: loading a file twice changes nothing")
        if into.col_names:
            raise self.refusal(at, "column names after the view's name", "name columns with AS in the SELECT list")
        if into.skip_data:
            raise self.refusal(self.word("no"), "WITH NO DATA", "leave it out: a view begins with what it reads")
        if into.table_space_name or into.access_method:
            raise self.refusal(self.word("tablespace", "using"), "TABLESPACE or USING", "leave it out")
        query = statement.query.select_stmt
        tables = tuple(self.table(cte) for cte in self.ctes(query))
        options = tuple(self.option(_inner(option)[1]) for option in into.options)
        return Definition(at, into.rel.relname, options, tables, self.select(query, outermost=True))

    def first(self) -> int:
        """Where the statement begins, after comments."""
        for token in postgast.scan(self.place.text).tokens:
            if not self.octets[token.start : token.start + 2] in (b"--", b"/*"):
                return self.at(token.start)
        return 0

    def option(self, option: Tree) -> Option:
        at = self.at(option.location)
        if not option.HasField("arg"):
            raise self.refusal(at, f"the option {option.defname} has no value", f"write {option.defname} = …")
        kind, value = _inner(option.arg)
        if kind == "integer":
            return Option(at, option.defname, value.ival)
        if kind == "string":
            return Option(at, option.defname, value.sval)
        raise self.refusal(at, f"the value of {option.defname}", "write a whole number or a quoted text")

    def ctes(self, query: Tree) -> Iterable[Tree]:
        if query.with_clause.recursive:
            raise self.refusal(self.word("recursive"), "WITH RECURSIVE", "write WITH: a view reads one stream once")
        return (_inner(cte)[1] for cte in query.with_clause.ctes)

    def table(self, cte: Tree) -> tuple[Relation, Select]:
        at = self.at(cte.location)
        if cte.aliascolnames:
            raise self.refusal(at, f"column names after {cte.ctename}", "name columns with AS in the SELECT list")
        kind, query = _inner(cte.ctequery)
        if kind != "select_stmt":
            raise self.refusal(at, f"{cte.ctename} is no SELECT", "select from the stream")
        return Relation(at, cte.ctename), self.select(query)

    def select(self, query: Tree, *, outermost: bool = False) -> Select:
        operation = _enum(query, "op")
        if operation != "SETOP_NONE":
            word = operation.removeprefix("SETOP_").lower()
            raise self.refusal(self.word(word), word.upper(), "write one view for each SELECT")
        for clause, word, remedy in CLAUSES:
            present = getattr(query, clause)
            if query.HasField(clause) if not hasattr(present, "__len__") else len(present):
                raise self.refusal(self.word(word), word.upper() + (" BY" if word == "order" else ""), remedy)
        if not outermost and query.HasField("with_clause"):
            raise self.refusal(
                self.at(query.with_clause.location), "WITH inside a sub-select", "put it before the outer SELECT"
            )
        if not query.target_list:
            raise self.refusal(self.word("select"), "an empty SELECT list", "name the columns")
        items = tuple(self.item(_inner(item)[1]) for item in query.target_list)
        where = self.expression(query.where_clause) if query.HasField("where_clause") else None
        group = tuple(self.group(column) for column in query.group_clause)
        return Select(items[0].at, items, self.source(query, items[0].at), where, group)

    def item(self, item: Tree) -> Item:
        kind, value = _inner(item.val)
        at = self.at(item.location)
        if kind == "column_ref" and _inner(value.fields[-1])[0] == "a_star":
            raise self.refusal(at, "*", "name the columns, so that the view stays the same when the stream gains one")
        return Item(at, item.name, self.expression(item.val))

    def group(self, node: Tree) -> Name:
        kind, value = _inner(node)
        if kind in SPOKEN:
            raise self.unsupported(kind, value)
        expression = self.expression(node)
        if not isinstance(expression, Name):
            raise self.refusal(
                expression.at, "GROUP BY something that is no column", "name it in a WITH clause, and group by the name"
            )
        return expression

    def source(self, query: Tree, at: int) -> Relation | Window | Select:
        if not query.from_clause:
            raise self.refusal(at, "SELECT without FROM", "select from a stream")
        if len(query.from_clause) > 1:
            raise self.refusal(
                self.word("from"),
                "FROM with more than one relation",
                "a view reads one stream: write one view for each",
            )
        return self.relation(query.from_clause[0])

    def relation(self, node: Tree) -> Relation | Window | Select:
        kind, value = _inner(node)
        if kind == "join_expr":
            raise self.refusal(
                self.word("join"),
                "JOIN",
                "a view reads one stream: write one view for each, and join them when reading",
            )
        if kind == "range_var":
            at = self.at(value.location)
            if value.schemaname:
                raise self.refusal(at, f"{value.schemaname}.{value.relname}", "write the stream's name alone")
            return Relation(at, value.relname, self.alias(value))
        if kind == "range_subselect":
            if value.lateral:
                raise self.refusal(self.word("lateral"), "LATERAL", "leave it out")
            select = self.select(_inner(value.subquery)[1])
            return Select(select.at, select.items, select.source, select.where, select.group, self.alias(value))
        if kind == "range_function" and len(value.functions) == 1:
            return self.window(_inner(value.functions[0].list.items[0])[1], self.alias(value))
        raise self.refusal(self.word("from"), "this kind of FROM", "select from a stream, TUMBLE or HOP")

    def alias(self, node: Tree) -> str:
        if node.alias.colnames:
            raise self.refusal(
                self.word("from"), "column names after an alias", "name columns with AS in the SELECT list"
            )
        return str(node.alias.aliasname)

    def window(self, call: Tree, alias: str) -> Window:
        at, name = self.at(getattr(call, "location", 0)), ""
        if hasattr(call, "funcname"):
            name = _inner(call.funcname[-1])[1].sval
        shapes = {
            "tumble": "TUMBLE(stream, time, INTERVAL 'size')",
            "hop": "HOP(stream, time, INTERVAL 'hop', INTERVAL 'size')",
        }
        if name == "session":
            raise self.refusal(at, "SESSION", f"session windows are not built yet: write {shapes['tumble']}")
        if name not in shapes:
            raise self.refusal(at, f"{name or 'this function'} in FROM", f"write {shapes['tumble']} or {shapes['hop']}")
        if len(call.args) != (3 if name == "tumble" else 4):
            raise self.refusal(at, f"{name.upper()} with {len(call.args)} arguments", f"write {shapes[name]}")
        kind, of = _inner(call.args[0])
        relation: Relation | Select
        if kind == "sub_link" and _enum(of, "sub_link_type") == "EXPR_SUBLINK":
            relation = self.select(_inner(of.subselect)[1])
        else:
            stream = self.expression(call.args[0])
            if not isinstance(stream, Name) or stream.relation:
                raise self.refusal(
                    stream.at, f"the first argument of {name.upper()} is no stream", f"write {shapes[name]}"
                )
            relation = Relation(stream.at, stream.name)
        time = self.expression(call.args[1])
        if not isinstance(time, Name):
            raise self.refusal(time.at, f"the second argument of {name.upper()} is no column", f"write {shapes[name]}")
        return Window(
            at, name, relation, time, tuple(self.interval(node, shapes[name]) for node in call.args[2:]), alias
        )

    def interval(self, node: Tree, shape: str) -> Interval:
        kind, cast = _inner(node)
        if kind == "type_cast" and cast.type_name.names and _inner(cast.type_name.names[-1])[1].sval == "interval":
            inner, value = _inner(cast.arg)
            at = self.at(value.location)
            if inner == "a_const" and value.WhichOneof("val") == "sval":
                if cast.type_name.typmods:
                    raise self.refusal(at, "an interval with its unit outside the quotes", "write INTERVAL '1 second'")
                return Interval(at, value.sval.sval)
        raise self.refusal(self.expression(node).at, "a size that is no interval", f"write {shape}")

    def expression(self, node: Tree) -> Expression:
        kind, value = _inner(node)
        if kind == "column_ref":
            return self.column(value)
        if kind == "a_const":
            return self.constant(value)
        if kind == "a_expr":
            return self.operator(value)
        if kind == "bool_expr":
            arguments = tuple(self.expression(argument) for argument in value.args)
            return Apply(self.at(value.location), _enum(value, "boolop").removesuffix("_EXPR").lower(), arguments)
        if kind == "null_test":
            name = "is null" if _enum(value, "nulltesttype") == "IS_NULL" else "is not null"
            return Apply(self.at(value.location), name, (self.expression(value.arg),))
        if kind == "type_cast":
            return self.cast(value)
        if kind == "func_call":
            return self.call(value)
        raise self.unsupported(kind, value)

    def unsupported(self, kind: str, value: Tree) -> ViewError:
        wrong, remedy = SPOKEN.get(kind, (kind.replace("_", " "), "use columns, + - * /, comparisons, AND, OR, NOT"))
        return self.refusal(self.at(getattr(value, "location", 0)), wrong, remedy)

    def column(self, value: Tree) -> Name:
        at, parts = self.at(value.location), [_inner(part) for part in value.fields]
        if len(parts) > 2 or any(kind != "string" for kind, _ in parts):
            raise self.refusal(at, "a column with more than one dot, or *", "write column or relation.column")
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
            whole = int(text, 0) if text.lstrip("-").isalnum() and "e" not in text.lower() else None
            if whole is not None and -(2**63) <= whole < 2**63:
                return Literal(at, whole, "bigint")
            return Literal(at, text, "numeric")
        raise self.refusal(at, "a bit string", "write a number")

    def operator(self, value: Tree) -> Expression:
        at, kind = self.at(value.location), _enum(value, "kind")
        if kind in KINDS:
            raise self.refusal(at, *KINDS[kind])
        name = _inner(value.name[-1])[1].sval
        if kind not in ("AEXPR_OP", "AEXPR_NULLIF"):
            raise self.refusal(at, f"{name} ANY, ALL or the like", "compare single values")
        right = self.expression(value.rexpr)
        if kind == "AEXPR_NULLIF":
            return Apply(at, "nullif", (self.expression(value.lexpr), right))
        if not value.HasField("lexpr") and name in "+-":
            return Apply(at, "negative", (right,)) if name == "-" else right
        if name not in OPERATORS or not value.HasField("lexpr"):
            raise self.refusal(at, f"the operator {name}", f"use {' '.join(OPERATORS)}")
        return Apply(at, name, (self.expression(value.lexpr), right))

    def cast(self, value: Tree) -> Cast:
        at = self.at(value.location if value.location >= 0 else value.type_name.location)
        name = _inner(value.type_name.names[-1])[1].sval
        plain = not (value.type_name.typmods or value.type_name.array_bounds)
        if name not in TYPES or not plain:
            raise self.refusal(
                at, f"a cast to {name}{'' if plain else '(…)'}", f"cast to one of {', '.join(TYPES.values())}"
            )
        return Cast(at, self.expression(value.arg), TYPES[name])

    def call(self, value: Tree) -> Apply:
        at = self.at(value.location)
        name = _inner(value.funcname[-1])[1].sval
        if value.HasField("over"):
            raise self.refusal(
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
                raise self.refusal(at, wrong, remedy)
        return Apply(at, name, tuple(self.expression(argument) for argument in value.args), star=value.agg_star)


def _inner(node: Tree) -> tuple[str, Tree]:
    """Which kind of node it is, and the node itself."""
    kind = node.WhichOneof("node") or ""
    return kind, getattr(node, kind) if kind else node


def _enum(message: Tree, field: str) -> str:
    descriptor = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(descriptor.values_by_number[getattr(message, field)].name)


__all__ = ["ViewError", "parse_view"]
