"""`./strobe psql`: a psql that is already logged in, as a reader unless told otherwise."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from psycopg2.extensions import parse_dsn

from cli.failure import FailedError, UserMistakeError
from cli.home import Home
from cli.servers import ROLES, read_addresses

VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "options": "PGOPTIONS",
}


def psql_environ(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The URL as variables: a password has no place among the arguments, where every user sees it."""
    parts = parse_dsn(url)
    theirs = {name: value for name, value in environ.items() if name not in VARIABLES.values()}
    ours = {VARIABLES[name]: str(value) for name, value in parts.items() if name in VARIABLES}
    others = {f"PG{name.upper()}": str(value) for name, value in parts.items() if name not in VARIABLES}
    return theirs | ours | others


def psql(home: Home, *, command: str | None, role: str) -> None:
    """Becomes psql; does not return."""
    if role not in ROLES:
        raise UserMistakeError(f"--role {role}: choose {', '.join(ROLES)}")
    addresses = read_addresses(home.addresses)
    own = addresses.psql if addresses.psql and Path(addresses.psql).exists() else None
    program = own or shutil.which("psql")
    if program is None:
        raise FailedError("psql is not installed: `apt-get install postgresql-client`")
    arguments = [program, "-v", "ON_ERROR_STOP=1", *(("-c", command) if command else ())]
    environ = psql_environ(addresses.databases[role], os.environ)
    if command:
        environ.setdefault("PAGER", "cat")
    os.execve(program, arguments, environ)  # noqa: S606 - no shell is wanted
