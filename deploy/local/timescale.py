"""TimescaleDB on a data folder of ours: made once, roles with passwords on loopback, fsync on."""

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from deploy.local import process
from deploy.local.account import Account
from deploy.local.command import run
from deploy.local.error import LocalStackError
from deploy.local.leash import Leash
from deploy.local.ports import HOST, is_open, require_free
from deploy.local.postgres import Postgres
from deploy.local.profile import Profile
from deploy.local.server import Server

DATABASE = "strobe"
REGISTRY = "strobe_registry"  # role and database of the schema registry
SUPERUSER = "postgres"
ROLES = ("strobe_owner", "strobe_writer", "strobe_reader", REGISTRY)
CONNECT_LIMIT_S = 5
ORPHANS_LIMIT_S = 10.0  # backends of a crashed server notice within a second


def database_url(role: str, secrets: Mapping[str, str], port: int, database: str = DATABASE) -> str:
    return f"postgresql://{role}:{secrets[role]}@{HOST}:{port}/{database}"


class Timescale(Server):
    name = "database"
    orderly_signal = signal.SIGINT  # PostgreSQL's "fast" shutdown: ends sessions, writes a checkpoint

    def __init__(
        self,
        home: Path,
        leash: Leash,
        postgres: Postgres,
        port: int,
        profile: Profile,
        account: Account,
        secrets: Mapping[str, str],
    ) -> None:
        super().__init__(home, leash)
        self._postgres, self._port, self._profile = postgres, port, profile
        self._account, self._secrets = account, secrets

    @property
    def argument(self) -> str:
        return f"strobe.folder={self.folder}"  # a setting that means nothing to PostgreSQL

    @property
    def jdbc(self) -> str:
        return f"jdbc:postgresql://{HOST}:{self._port}/{REGISTRY}"

    def require_ports(self) -> None:
        require_free(self._port, "TimescaleDB", "database")

    def prepare(self) -> None:
        self._account.require_reach(self._postgres.bin, [self._postgres.program("postgres"), "--version"])
        self._account.require_reach(self.folder.parent, ["test", "-x", str(self.folder.parent)])
        if not self.folder.exists():
            self._initialise()
        made_by = int((self.folder / "PG_VERSION").read_text())
        if made_by != self._postgres.version:
            raise LocalStackError(
                f"the data in {self.folder} were made by PostgreSQL {made_by}, here is {self._postgres.version}: "
                f"install PostgreSQL {made_by} with timescaledb, or move the folder away to begin anew"
            )
        self._clear_crash()
        self._set_superuser_password()

    def _initialise(self) -> None:
        part = self.folder.with_name("database.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        self._account.own(part)
        options = ("-U", SUPERUSER, "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions")
        access = ("--auth-local=reject", "--auth-host=scram-sha-256")
        run(
            [*self._account.prefix, self._postgres.program("initdb"), "-D", str(part), *options, *access],
            log=self.log,
            folder=part,
            environ=self.environ(),
            failed="the database's folder cannot be initialised",
        )
        part.rename(self.folder)

    def _clear_crash(self) -> None:
        """PostgreSQL refuses to start while the process number in postmaster.pid exists, whosever it is by now."""
        orphans = process.find_in(self.folder)
        if orphans and not process.await_end(orphans, ORPHANS_LIMIT_S):
            process.kill(orphans)
        (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def _set_superuser_password(self) -> None:
        """Through single-user mode, which needs no password: the first time, or when the file of secrets was lost."""
        mark = self.folder / "strobe_password.sha256"
        password = self._secrets[SUPERUSER]
        digest = hashlib.sha256(password.encode()).hexdigest()
        if mark.exists() and mark.read_text() == digest:
            return
        done = subprocess.run(
            [*self._account.prefix, self._postgres.program("postgres"), "--single", "-D", str(self.folder), "postgres"],
            input=f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'\n",
            cwd=self.folder,
            env=self.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or "ERROR" in done.stderr:
            raise LocalStackError(f"the database's password cannot be set: {done.stderr.strip().splitlines()[-1:]}")
        mark.write_text(digest)
        mark.chmod(0o600)

    def command(self) -> Sequence[str]:
        settings = {
            self.argument.partition("=")[0]: self.argument.partition("=")[2],
            "listen_addresses": HOST,
            "port": self._port,
            "unix_socket_directories": "",
            "shared_preload_libraries": "timescaledb",
            "timescaledb.telemetry_level": "off",
            "timescaledb.max_background_workers": 4,
            "max_worker_processes": 12,
            "max_connections": 100,
            "max_locks_per_transaction": 256,  # a statement over a long time locks every chunk
            "jit": "off",  # its library is left out, and it costs more than it saves on short queries
            "shared_buffers": f"{self._profile.shared_buffers_mb}MB",
            "max_wal_size": f"{self._profile.max_wal_mb}MB",
            "wal_compression": "on",
            "checkpoint_timeout": "15min",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "lc_messages": "C",
        }
        options = (part for name, value in settings.items() for part in ("-c", f"{name}={value}"))
        return [*self._account.prefix, self._postgres.program("postgres"), "-D", str(self.folder), *options]

    def environ(self) -> Mapping[str, str]:
        """Without libpq's variables and the caller's locale; PostgreSQL needs little else."""
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}

    def answers(self) -> bool:
        if not is_open(self._port):
            return False
        try:
            self._connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def await_answer(self) -> None:
        super().await_answer()
        self._make_databases()

    def _connect(self, database: str) -> psycopg2.extensions.connection:
        connection = psycopg2.connect(
            database_url(SUPERUSER, self._secrets, self._port, database),
            connect_timeout=CONNECT_LIMIT_S,
            sslmode="disable",
            options="",
        )
        connection.autocommit = True
        return connection

    def _make_databases(self) -> None:
        """Roles, databases and the extension; idempotent, so a start that was cut off is completed by the next."""
        connection = self._connect("postgres")
        try:
            with connection.cursor() as cursor:
                for role in ROLES:
                    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,))
                    verb = sql.SQL("ALTER" if cursor.fetchone() is not None else "CREATE")
                    statement = sql.SQL("{} ROLE {} LOGIN PASSWORD {}")
                    password = sql.Literal(self._secrets[role])
                    cursor.execute(statement.format(verb, sql.Identifier(role), password))
                for database, owner in ((DATABASE, "strobe_owner"), (REGISTRY, REGISTRY)):
                    cursor.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
                    if cursor.fetchone() is None:
                        names = sql.Identifier(database), sql.Identifier(owner)
                        cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))
                cursor.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(sql.Identifier(REGISTRY)))
        finally:
            connection.close()
        self._make_extension()

    def _make_extension(self) -> None:
        connection = self._connect(DATABASE)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'")
                present = cursor.fetchone()
                cursor.execute("SELECT default_version FROM pg_available_extensions WHERE name = 'timescaledb'")
                default = cursor.fetchone()
        finally:
            connection.close()
        if present == default:
            return
        connection = self._connect(DATABASE)  # an update must be the first statement of its session
        try:
            with connection.cursor() as cursor:
                statement = "ALTER EXTENSION timescaledb UPDATE" if present else "CREATE EXTENSION timescaledb"
                cursor.execute(statement)
        finally:
            connection.close()
