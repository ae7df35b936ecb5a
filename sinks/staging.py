"""Rows on their way into a table by INSERT: copied into a temporary table first, because COPY knows no conflicts."""

from collections.abc import Sequence

from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, whatever its name

from sinks.copy_rows import READ_BYTES, Cells, CopyFile, RowCopier
from sinks.tables import quoted


class Staging:
    """One temporary table, emptied by each commit. Made anew for each connection.

    For example::

        staging = Staging("stage_seen", [("stream", "text"), ("next", "bigint")])
        staging.make(cursor)
        staging.fill(cursor, cells)
        cursor.execute(f"INSERT INTO … SELECT … FROM {staging.path} ON CONFLICT …")
    """

    def __init__(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        self.path = f"pg_temp.{quoted(name)}"
        self.columns = list(columns)
        self.names = ", ".join(quoted(column) for column, _ in columns)
        self._copier = RowCopier([kind for _, kind in columns])

    def make(self, cursor: Cursor) -> None:
        definitions = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)
        name = self.path.removeprefix("pg_temp.")
        cursor.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({definitions}) ON COMMIT DELETE ROWS")

    def fill(self, cursor: Cursor, cells: Sequence[Cells]) -> None:
        copy(cursor, self.path, self.names, self._copier, cells)


def copy(cursor: Cursor, path: str, names: str, copier: RowCopier, cells: Sequence[Cells]) -> None:
    """COPY columns into a table."""
    cursor.copy_expert(
        f"COPY {path} ({names}) FROM STDIN (FORMAT binary)", CopyFile(copier.pieces(cells)), size=READ_BYTES
    )
