"""SQL text to a view's definition, by PostgreSQL's own grammar. The only file that calls the parser."""

from collections.abc import Iterable

import postgast
from google.protobuf.message import DecodeError

from processors.sql_terms import SPOKEN, Terms, Tree, enum, inner
from processors.syntax import Definition, Interval, Item, Name, Option, Place, Relation, Select, Window

VIEW = "CREATE MATERIALIZED VIEW name AS SELECT … FROM TUMBLE(stream, time, INTERVAL '1 second') GROUP BY …"
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


def parse_view(text: str, file: str) -> Definition:
    """Read the one statement of a view's file. `file` is only for messages."""
    return _Reader(Place(file, text)).definition()


class _Reader(Terms):
    """Turns the parser's tree into ours; whatever it does not expect, it refuses."""

    def word(self, *words: str) -> int:
        """Where a keyword stands: clauses have no place in the tree."""
        for token in postgast.scan(self.place.text).tokens:
            if self.octets[token.start : token.end].decode(errors="ignore").lower() in words:
                return self.at(token.start)
        return 0

    def statements(self) -> list[Tree]:
        if "\0" in self.place.text:
            raise self.refusal(self.place.text.index("\0"), "the file holds a NUL character", "remove it")
        try:
            return list(postgast.parse(self.place.text).stmts)
        except postgast.PgQueryError as error:
            raise self.refusal(max(error.cursorpos - 1, 0), str(error), f"write {VIEW}") from None
        except DecodeError:  # the binding's limit of 100 nested messages
            raise self.refusal(0, "an expression is nested too deeply", "name parts of it in a WITH clause") from None

    def definition(self) -> Definition:
        statements = self.statements()
        if len(statements) != 1:
            second = self.at(statements[1].stmt_location) if statements else 0
            text = self.place.text
            while second < len(text) - 1 and (text[second].isspace() or text[second] == ";"):
                second += 1
            raise self.refusal(second, f"the file holds {len(statements) or 'no'} statements", f"write one: {VIEW}")
        kind, statement = inner(statements[0].stmt)
        if kind != "create_table_as_stmt" or enum(statement, "objtype") != "OBJECT_MATVIEW":
            raise self.refusal(self.first(), "the statement creates no materialized view", f"write {VIEW}")
        into = statement.into
        at = self.at(into.rel.location)
        if into.rel.schemaname:
            raise self.unsupported(at, f"a schema, {into.rel.schemaname},", "write the view's name alone")
        if statement.if_not_exists:
            raise self.unsupported(
                self.word("if"), "IF NOT EXISTS", "leave it out: loading a file twice changes nothing"
            )
        if into.col_names:
            raise self.unsupported(
                at, "a list of column names after the view's name", "name columns with AS in the SELECT list"
            )
        if into.skip_data:
            raise self.unsupported(self.word("no"), "WITH NO DATA", "leave it out: a view begins with what it reads")
        if into.table_space_name or into.access_method:
            raise self.unsupported(self.word("tablespace", "using"), "TABLESPACE or USING", "leave it out")
        query = statement.query.select_stmt
        tables = tuple(self.table(cte) for cte in self.ctes(query))
        options = tuple(self.option(inner(option)[1]) for option in into.options)
        return Definition(at, into.rel.relname, options, tables, self.select(query, outermost=True))

    def first(self) -> int:
        """Where the statement begins, after comments."""
        for token in postgast.scan(self.place.text).tokens:
            if self.octets[token.start : token.start + 2] not in (b"--", b"/*"):
                return self.at(token.start)
        return 0

    def option(self, option: Tree) -> Option:
        at = self.at(option.location)
        if not option.HasField("arg"):
            raise self.refusal(at, f"the option {option.defname} has no value", f"write {option.defname} = …")
        kind, value = inner(option.arg)
        if kind == "integer":
            return Option(at, option.defname, value.ival)
        if kind == "string":
            return Option(at, option.defname, value.sval)
        raise self.refusal(
            at, f"the value of {option.defname} is neither number nor text", "write a whole number or a quoted text"
        )

    def ctes(self, query: Tree) -> Iterable[Tree]:
        if query.with_clause.recursive:
            raise self.unsupported(self.word("recursive"), "WITH RECURSIVE", "write WITH: a view reads one stream once")
        return (inner(cte)[1] for cte in query.with_clause.ctes)

    def table(self, cte: Tree) -> tuple[Relation, Select]:
        at = self.at(cte.location)
        if cte.aliascolnames:
            raise self.unsupported(
                at, f"a list of column names after {cte.ctename}", "name columns with AS in the SELECT list"
            )
        kind, query = inner(cte.ctequery)
        if kind != "select_stmt":
            raise self.refusal(at, f"{cte.ctename} is no SELECT", "select from the stream")
        return Relation(at, cte.ctename), self.select(query)

    def select(self, query: Tree, *, outermost: bool = False) -> Select:
        operation = enum(query, "op")
        if operation != "SETOP_NONE":
            word = operation.removeprefix("SETOP_").lower()
            raise self.unsupported(self.word(word), word.upper(), "write one view for each SELECT")
        for clause, word, remedy in CLAUSES:
            present = getattr(query, clause)
            if query.HasField(clause) if not hasattr(present, "__len__") else len(present):
                raise self.unsupported(self.word(word), word.upper() + (" BY" if word == "order" else ""), remedy)
        if not outermost and query.HasField("with_clause"):
            raise self.unsupported(
                self.at(query.with_clause.location), "WITH inside a sub-select", "put it before the outer SELECT"
            )
        if not query.target_list:
            raise self.refusal(self.word("select"), "the SELECT list is empty", "name the columns")
        items = tuple(self.item(inner(item)[1]) for item in query.target_list)
        where = self.expression(query.where_clause) if query.HasField("where_clause") else None
        group = tuple(self.group(column) for column in query.group_clause)
        return Select(items[0].at, items, self.source(query, items[0].at), where, group)

    def item(self, item: Tree) -> Item:
        kind, value = inner(item.val)
        at = self.at(item.location)
        if kind == "column_ref" and inner(value.fields[-1])[0] == "a_star":
            raise self.unsupported(
                at, "*", "name the columns, so that the view stays the same when the stream gains one"
            )
        return Item(at, item.name, self.expression(item.val))

    def group(self, node: Tree) -> Name:
        kind, value = inner(node)
        if kind in SPOKEN:
            raise self.unknown(kind, value)
        expression = self.expression(node)
        if not isinstance(expression, Name):
            raise self.unsupported(
                expression.at, "GROUP BY something that is no column", "name it in a WITH clause, and group by the name"
            )
        return expression

    def source(self, query: Tree, at: int) -> Relation | Window | Select:
        if not query.from_clause:
            raise self.unsupported(at, "SELECT without FROM", "select from a stream")
        if len(query.from_clause) > 1:
            raise self.unsupported(
                self.word("from"),
                "FROM with more than one relation",
                "a view reads one stream: write one view for each",
            )
        return self.relation(query.from_clause[0])

    def relation(self, node: Tree) -> Relation | Window | Select:
        kind, value = inner(node)
        if kind == "join_expr":
            raise self.unsupported(
                self.word("join"),
                "JOIN",
                "a view reads one stream: write one view for each, and join them when reading",
            )
        if kind == "range_var":
            at = self.at(value.location)
            if value.schemaname:
                raise self.unsupported(at, f"a schema, {value.schemaname},", "write the stream's name alone")
            return Relation(at, value.relname, self.alias(value))
        if kind == "range_subselect":
            if value.lateral:
                raise self.unsupported(self.word("lateral"), "LATERAL", "leave it out")
            select = self.select(inner(value.subquery)[1])
            return Select(select.at, select.items, select.source, select.where, select.group, self.alias(value))
        if kind == "range_function" and len(value.functions) == 1:
            return self.window(inner(value.functions[0].list.items[0])[1], self.alias(value))
        raise self.unsupported(self.word("from"), "this kind of FROM", "select from a stream, TUMBLE or HOP")

    def alias(self, node: Tree) -> str:
        if node.alias.colnames:
            raise self.unsupported(
                self.word("from"), "a list of column names after an alias", "name columns with AS in the SELECT list"
            )
        return str(node.alias.aliasname)

    def window(self, call: Tree, alias: str) -> Window:
        at, name = self.at(getattr(call, "location", 0)), ""
        if hasattr(call, "funcname"):
            name = inner(call.funcname[-1])[1].sval
        shapes = {
            "tumble": "TUMBLE(stream, time, INTERVAL 'size')",
            "hop": "HOP(stream, time, INTERVAL 'hop', INTERVAL 'size')",
        }
        if name == "session":
            raise self.unsupported(at, "SESSION", f"session windows are not built yet: write {shapes['tumble']}")
        if name not in shapes:
            raise self.unsupported(
                at, f"{name or 'this function'} in FROM", f"write {shapes['tumble']} or {shapes['hop']}"
            )
        if len(call.args) != (3 if name == "tumble" else 4):
            raise self.refusal(at, f"{name.upper()} does not take {len(call.args)} arguments", f"write {shapes[name]}")
        kind, of = inner(call.args[0])
        relation: Relation | Select
        if kind == "sub_link" and enum(of, "sub_link_type") == "EXPR_SUBLINK":
            relation = self.select(inner(of.subselect)[1])
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
        kind, cast = inner(node)
        if kind == "type_cast" and cast.type_name.names and inner(cast.type_name.names[-1])[1].sval == "interval":
            within, value = inner(cast.arg)
            at = self.at(value.location)
            if within == "a_const" and value.WhichOneof("val") == "sval":
                if cast.type_name.typmods:
                    raise self.unsupported(
                        at, "an interval with its unit outside the quotes", "write INTERVAL '1 second'"
                    )
                return Interval(at, value.sval.sval)
        raise self.refusal(self.expression(node).at, "the size is no interval", f"write {shape}")
