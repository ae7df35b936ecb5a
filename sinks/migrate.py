"""Brings the database up to what this version needs: numbered files once, then tables of streams and views.

Safe to repeat, and for two at once: an advisory lock lets one pass at a time. Each step is a transaction of its own,
so a migration that is cut off has either happened or not.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name
from psycopg2.extensions import cursor as Cursor  # noqa: N812

from schemas.stream import Stream
from sinks import ddl
from sinks.tables import Table, View, latest_table, quoted, raw_table, shown_columns, view_table
from sinks.timescale import DatabaseAwayError, DatabaseSetupError, place, transaction

FOLDER = Path(__file__).parent / "sql"
LOCK_KEY = 0x5354524F4245  # "STROBE": any number that nothing else here uses
LOCK_WAIT_MS = 60_000  # how long another migrate is waited for
ROLES = ("strobe_owner", "strobe_writer", "strobe_reader")

COMMANDS = """\
For a database of your own, once, as a superuser:
  CREATE ROLE strobe_owner LOGIN PASSWORD '…';
  CREATE ROLE strobe_writer LOGIN PASSWORD '…';
  CREATE ROLE strobe_reader LOGIN PASSWORD '…';
  GRANT strobe_writer, strobe_reader TO strobe_owner;  -- for ./strobe up --database, which is given one URL
  CREATE DATABASE strobe OWNER strobe_owner;
  \\c strobe
  CREATE EXTENSION timescaledb;
"""


@dataclass(frozen=True)
class Migration:
    """A numbered file of SQL."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations(folder: Path = FOLDER) -> list[Migration]:
    """The files of a folder by number, `001_positions.sql` first."""
    migrations = [
        Migration(int(path.stem.split("_")[0]), path.name, path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("[0-9]*_*.sql"))
    ]
    for i, migration in enumerate(migrations, 1):
        if migration.number != i:
            raise DatabaseSetupError(
                f"{folder / migration.name}: number {i} was expected; number the files without gaps"
            )
    return migrations


def migrate(
    connection: Connection, migrations: Iterable[Migration], streams: Iterable[Stream], views: Iterable[View]
) -> Iterator[str]:
    """Do what is missing, and say each thing done in a line. Raises DatabaseSetupError and ddl.TableError."""
    with _alone(connection):
        with transaction(connection) as cursor:
            _check_database(cursor)
            cursor.execute("CREATE SCHEMA IF NOT EXISTS strobe")
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS strobe.migrations (number integer PRIMARY KEY, name text NOT NULL,"
                " sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
        for migration in migrations:
            with transaction(connection) as cursor:
                if _apply(cursor, migration):
                    yield f"applied {migration.name}"
        for stream in streams:
            for table in (raw_table(stream), latest_table(stream)):
                with transaction(connection) as cursor:
                    yield from _make(cursor, table)
        for view in views:
            with transaction(connection) as cursor:
                yield from _make_view(cursor, view)


class _alone:  # noqa: N801 - used as a context, like a function
    """Holds the advisory lock."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> None:
        with transaction(self.connection) as cursor:
            cursor.execute("SET lock_timeout = %s", (LOCK_WAIT_MS,))
        try:
            with transaction(self.connection) as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
        except DatabaseAwayError as error:
            if isinstance(error.__cause__, psycopg2.errors.LockNotAvailable):
                raise DatabaseAwayError(
                    f"another migrate holds the lock for more than {LOCK_WAIT_MS // 1000} s; wait for it, or end it"
                ) from None
            raise

    def __exit__(self, *error: object) -> None:
        if not self.connection.closed:
            with transaction(self.connection) as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", (LOCK_KEY,))


def _check_database(cursor: Cursor) -> None:
    cursor.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (list(ROLES),))
    found = {name for (name,) in cursor.fetchall()}
    for role in ROLES:
        if role not in found:
            raise DatabaseSetupError(
                f"role {role} does not exist; as a superuser: CREATE ROLE {role} LOGIN PASSWORD '…'"
            )
    cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'")
    where = place(cursor.connection.dsn) if "://" in cursor.connection.dsn else "this database"
    if cursor.fetchone() is None:
        raise DatabaseSetupError(f"{where} has no TimescaleDB; in it, as a superuser: CREATE EXTENSION timescaledb")
    cursor.execute(
        "SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'),"
        " has_schema_privilege('public', 'CREATE')"
    )
    user, database, may_schema, may_table = cursor.fetchone() or ("", "", False, False)
    if user != ROLES[0]:
        raise DatabaseSetupError(f"migrate works as strobe_owner, not as {user}; let STROBE_DATABASE name that role")
    if not (may_schema and may_table):
        raise DatabaseSetupError(
            f"strobe_owner may not make tables; as a superuser: ALTER DATABASE {database} OWNER TO strobe_owner"
        )


def _apply(cursor: Cursor, migration: Migration) -> bool:
    cursor.execute("SELECT name, sha256 FROM strobe.migrations WHERE number = %s", (migration.number,))
    done = cursor.fetchone()
    if done is None:
        cursor.execute(migration.sql)
        cursor.execute(
            "INSERT INTO strobe.migrations (number, name, sha256) VALUES (%s, %s, %s)",
            (migration.number, migration.name, migration.sha256),
        )
        return True
    if done[1] != migration.sha256:
        raise DatabaseSetupError(
            f"{migration.name} was changed after it was applied (as {done[0]}); restore it, and put the change into"
            " a new file with the next number"
        )
    return False


def columns_of(cursor: Cursor, table: Table) -> dict[str, tuple[str, bool]]:
    """Columns of an existing table: name -> (type, NOT NULL without a default). Empty: no such table."""
    cursor.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef"
        " FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped"
        " ORDER BY a.attnum",
        (table.path,),
    )
    return {name: (kind, needed) for name, kind, needed in cursor.fetchall()}


def _make(cursor: Cursor, table: Table) -> Iterator[str]:
    existing = columns_of(cursor, table)
    if existing:
        _check_kind(cursor, table)
        statements = ddl.bring_up(table, existing)
        for statement in statements:
            cursor.execute(statement)
            yield f"{table.schema}.{table.name}: {statement.split(' ', 3)[3]}"
    else:
        for statement in ddl.create(table):
            cursor.execute(statement)
        yield f"made {table.schema}.{table.name}"
    for statement in ddl.comments(table):
        cursor.execute(statement)


def _check_kind(cursor: Cursor, table: Table) -> None:
    shown = f"{table.schema}.{table.name}"
    cursor.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (table.path,))
    (kind,) = cursor.fetchone() or ("",)
    if kind != "r":
        raise ddl.TableError(f"{shown} exists and is not a table; give the stream another name, or rename that one")
    if table.time:
        cursor.execute(
            "SELECT FROM timescaledb_information.hypertables WHERE hypertable_schema = %s AND hypertable_name = %s",
            (table.schema, table.name),
        )
        if cursor.fetchone() is None:
            raise ddl.TableError(f"table {shown} is not a hypertable; rename it, it is not a table of ours")


def _make_view(cursor: Cursor, view: View) -> Iterator[str]:
    yield from _make(cursor, view_table(view))
    cursor.execute(
        "INSERT INTO strobe.views (view, generation, stream, fingerprint, group_columns, pane_us, size_us, hop_us,"
        " lateness_us) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (view, generation) DO UPDATE SET"
        " stream = excluded.stream, fingerprint = excluded.fingerprint, group_columns = excluded.group_columns,"
        " pane_us = excluded.pane_us, size_us = excluded.size_us, hop_us = excluded.hop_us,"
        " lateness_us = excluded.lateness_us",
        (
            view.name, view.generation, view.stream, view.fingerprint, list(view.group),
            view.pane_us, view.size_us, view.hop_us, view.lateness_us,
        ),
    )  # fmt: skip
    shown = Table("public", view.name, "", shown_columns(view))
    existing = columns_of(cursor, shown)
    wanted = [(column.name, column.type) for column in shown.columns]
    if [(name, kind) for name, (kind, _) in existing.items()] == wanted:
        return
    if existing:
        cursor.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (shown.path,))
        if cursor.fetchone() != ("v",):
            raise ddl.TableError(f"public.{view.name} exists and is not a view; give the view another name")
        try:
            cursor.execute(f"DROP VIEW public.{quoted(view.name)}")
        except psycopg2.errors.DependentObjectsStillExist as error:
            detail = (error.diag.message_detail or "").splitlines()[:1]
            raise ddl.TableError(
                f"public.{view.name} gets other columns, but something is built on it ({''.join(detail)});"
                " drop that, migrate, and make it again"
            ) from None
    for statement in ddl.shown_view(view):
        cursor.execute(statement)
    yield f"made the view public.{view.name}"
