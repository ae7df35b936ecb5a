"""The view sink's transaction: rows and marks joined into what the tables hold.

A second delivery, an older one, one by a zombie: each leaves the tables as they are, because a row is only replaced
by one of a higher version. So positions may be committed to Kafka afterwards, and late.
"""

from collections.abc import Sequence

import numpy as np
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name
from psycopg2.extensions import cursor as Cursor  # noqa: N812
from psycopg2.extras import execute_values

from schemas.batch import Vector
from sinks.copy_rows import Cells, Words
from sinks.staging import Staging
from sinks.tables import Table, View, quoted, view_table
from sinks.timescale import DatabaseSetupError, transaction
from sinks.view_rows import Mark, Rows


class ViewStore:
    """The table of one view in one version of its schema, on one connection."""

    def __init__(self, cursor: Cursor, view: View, number: int) -> None:
        self.view = view
        self._table = view_table(view)
        columns = list(zip(self._table.names, self._table.types, strict=True))
        self._staging = Staging(f"stage_view_{number}", columns)
        self._join = join_statement(self._table, self._staging.path)
        self._staging.make(cursor)
        cursor.execute(
            "SELECT FROM strobe.views WHERE view = %s AND generation = %s", (self.view.name, self.view.generation)
        )
        if cursor.fetchone() is None:
            raise DatabaseSetupError(
                f"view {view.name} in generation {view.generation} is not known to the database;"
                " run `python -m sinks migrate`"
            )

    def join_rows(self, cursor: Cursor, rows: Rows) -> int:
        """Join rows of distinct windows into the table; return how many it took."""
        self._staging.fill(cursor, [cells_of(rows[c.name], c.type) for c in self._table.columns])
        cursor.execute(self._join)
        return int(cursor.rowcount)

    def join_marks(self, cursor: Cursor, marks: Sequence[Mark]) -> None:
        execute_values(
            cursor,
            _KEEP_MARKS,
            [(self.view.name, m.generation, list(m.group), m.pane_start_us, m.partition, m.offset) for m in marks],
            template="(%s, %s, %s::text[], 'epoch'::timestamptz + %s * interval '1 microsecond', %s, %s)",
        )


class ViewStores:
    """All views on one connection, by topic and schema id."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._stores: dict[tuple[str, int], ViewStore] = {}

    def join(self, rows: Sequence[tuple[View, int, Rows]], marks: Sequence[tuple[View, int, Sequence[Mark]]]) -> int:
        """Join everything in one transaction; views in one order, so that two sinks wait instead of dead-locking."""
        taken = 0
        with transaction(self.connection) as cursor:
            for view, schema_id, some in sorted(rows, key=lambda item: (item[0].name, item[1])):
                taken += self._store(cursor, view, schema_id).join_rows(cursor, some)
            for view, schema_id, few in sorted(marks, key=lambda item: (item[0].name, item[1])):
                self._store(cursor, view, schema_id).join_marks(cursor, few)
        return taken

    def _store(self, cursor: Cursor, view: View, schema_id: int) -> ViewStore:
        key = (view.name, schema_id)
        store = self._stores.get(key)
        if store is None:
            store = ViewStore(cursor, view, schema_id)  # its staging table rolls back with the transaction:
            self._stores[key] = store  # after trouble there is a new connection, and new stores
        return store


def join_statement(table: Table, staging: str) -> str:
    """Keep the columns of the higher (generation, revision), and `closed` once it was true in that generation."""
    names = ", ".join(quoted(name) for name in table.names)
    key = ", ".join(quoted(name) for name in table.key)
    newer = "(excluded.generation, excluded.revision) > (t.generation, t.revision)"
    sets = ["generation = greatest(t.generation, excluded.generation)"]
    sets += ["closed = excluded.closed OR (t.closed AND t.generation = excluded.generation)"]
    sets += [
        f"{name} = CASE WHEN {newer} THEN excluded.{name} ELSE t.{name} END"
        for name in (quoted(column) for column in table.names if column not in (*table.key, "generation", "closed"))
    ]
    return (
        f"INSERT INTO {table.path} AS t ({names}) SELECT {names} FROM {staging} ORDER BY {key}"
        f" ON CONFLICT ({key}) DO UPDATE SET {', '.join(sets)}"
        f" WHERE {newer} OR (excluded.generation = t.generation AND excluded.closed AND NOT t.closed)"
    )


def cells_of(vector: Vector, kind: str) -> Cells:
    """A decoded column as cells of its PostgreSQL type."""
    valid = None if vector.valid.all() else vector.valid
    if kind == "text":
        words = [value if there else "" for value, there in zip(vector.values, vector.valid, strict=True)]
        return Cells(np.arange(len(words)), valid, Words(words))
    return Cells(vector.values, valid)


_KEEP_MARKS = (
    "INSERT INTO strobe.marks AS t (view, generation, group_values, pane_start, kafka_partition, kafka_offset)"
    " VALUES %s"
    " ON CONFLICT (view, generation, group_values, pane_start, kafka_partition) DO UPDATE"
    " SET kafka_offset = excluded.kafka_offset WHERE excluded.kafka_offset > t.kafka_offset"
)
