"""The SQL that makes a table, or brings an existing one up to it. Pure: statements out of descriptions."""

from collections.abc import Mapping

from sinks.tables import US, Column, Table, View, quoted, shown_columns, view_table


class TableError(ValueError):
    """A table that exists and cannot be brought up to what is asked: which, why and the remedy, in one line."""


def literal(text: str) -> str:
    """A text as an SQL literal, whatever `standard_conforming_strings` says."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def create(table: Table) -> list[str]:
    """Make a table that does not exist."""
    parts = [_definition(column) for column in table.columns]
    if table.key:
        parts.append(f"PRIMARY KEY ({_names(table.key)})")
    statements = [f"CREATE TABLE {table.path} ({', '.join(parts)}) WITH (fillfactor = {table.fillfactor})"]
    if table.time:
        statements.append(
            f"SELECT create_hypertable({literal(table.path)}, {literal(table.time)},"
            f" chunk_time_interval => interval '{table.chunk_us // US} seconds', create_default_indexes => false)"
        )
        statements.append(
            "INSERT INTO strobe.retention (table_schema, table_name, keep) VALUES"
            f" ({literal(table.schema)}, {literal(table.name)}, interval '{table.keep_us // US} seconds')"
            " ON CONFLICT DO NOTHING"
        )
    if table.time:
        # For questions about all instruments at once: a few kB, and inserts hardly notice it.
        statements.append(f"CREATE INDEX ON {table.path} USING brin ({quoted(table.time)}) WITH (autosummarize = on)")
    if table.index:
        *group, time = table.index
        statements.append(f"CREATE INDEX ON {table.path} ({_names(tuple(group))}, {quoted(time)} DESC)")
    return statements


def bring_up(table: Table, existing: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Add the columns that an existing table lacks; old rows read NULL there.

    `existing` is column name -> (type, whether NOT NULL without a default). Raises TableError where a column has
    another type, a needed one is missing, or one that nothing fills may not be NULL.
    """
    shown = f"{table.schema}.{table.name}"
    statements = []
    for column in table.columns:
        found = existing.get(column.name)
        if found is None and column.required:
            raise TableError(f"table {shown} has no column {column.name}; rename the table, it is not a table of ours")
        if found is None:
            statements.append(f"ALTER TABLE {table.path} ADD COLUMN {_definition(column)}")
        elif found[0] != column.type:
            raise TableError(
                f"table {shown}: column {column.name} is {found[0]}, the schema says {column.type}; give the field"
                " another name, or rename the table and keep it as history"
            )
    known = set(table.names)
    for name, (_, needed) in existing.items():
        if needed and name not in known:
            raise TableError(
                f"table {shown}: column {name} is NOT NULL and the schema does not know it;"
                f" ALTER TABLE {table.path} ALTER COLUMN {quoted(name)} DROP NOT NULL"
            )
    return statements


def comments(table: Table) -> list[str]:
    return [
        f"COMMENT ON TABLE {table.path} IS {literal(table.comment)}",
        *(
            f"COMMENT ON COLUMN {table.path}.{quoted(column.name)} IS {literal(column.comment)}"
            for column in table.columns
        ),
    ]


def shown_view(view: View) -> list[str]:
    """`<view>` as operators see it: live rows only."""
    path = f"public.{quoted(view.name)}"
    columns = shown_columns(view)
    table = view_table(view)
    kind = "every" if view.hop_us == view.size_us else f"the last {_duration(view.size_us)}, every"
    meaning = f"{view.meaning} ({kind} {_duration(view.hop_us)}, of the stream {view.stream})".strip()
    return [
        f"CREATE VIEW {path} AS SELECT {_names(tuple(column.name for column in columns))} FROM {table.path} WHERE live",
        f"COMMENT ON VIEW {path} IS {literal(meaning)}",
        *(f"COMMENT ON COLUMN {path}.{quoted(column.name)} IS {literal(column.comment)}" for column in columns),
    ]


def _definition(column: Column) -> str:
    return f"{quoted(column.name)} {column.type}{' NOT NULL' if column.required else ''}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(quoted(name) for name in names)


def _duration(us: int) -> str:
    for unit, size in (("h", 3600 * US), ("min", 60 * US), ("s", US), ("ms", 1000)):
        if us % size == 0:
            return f"{us // size} {unit}"
    return f"{us} µs"
