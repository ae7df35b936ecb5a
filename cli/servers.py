"""Which Kafka, registry and database a run uses: those that were named, and local ones for the rest."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from cli.failure import FailedError, UserMistakeError
from deploy.local.error import LocalStackError
from deploy.local.ports import Ports
from deploy.local.stack import LocalStack

ROLES = ("owner", "writer", "reader")


@dataclass(frozen=True)
class Addresses:
    """Where everything answers; database URLs with their passwords, by role."""

    kafka: str
    registry: str
    databases: Mapping[str, str]
    psql: str | None = None  # a psql that came with the local database

    def write(self, path: Path) -> None:
        """For the commands that run beside a supervisor; readable by its owner alone, for it holds passwords."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)
        temporary.replace(path)


def read_addresses(path: Path) -> Addresses:
    try:
        return Addresses(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise UserMistakeError(f"nothing has run in {path.parent.parent} yet; start it with ./strobe up") from None
    except (OSError, ValueError, TypeError) as error:
        raise FailedError(f"cannot read {path} ({error}); ./strobe up writes it anew") from None


def without_password(url: str) -> str:
    """For screens and logs."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, f"{user}{parts.hostname or ''}{port}", parts.path, "", ""))


def as_role(url: str, role: str) -> str:
    """The URL of a named database, for one of our roles: logged in as who is named, working with the role's rights."""
    if role == "owner":
        return url
    option = "options=" + quote(f"-c role=strobe_{role}")
    return f"{url}{'&' if '?' in url else '?'}{option}"


class Servers:
    """Starts what is not named; stops only what it started.

    For example::

        servers = Servers(home.path, kafka=None, registry=None, database="postgresql://me@db/lab")
        servers.start(progress)
        servers.addresses()
        servers.stop(progress)
    """

    def __init__(self, home: Path, *, kafka: str | None, registry: str | None, database: str | None) -> None:
        self._named = {"kafka": kafka, "registry": registry, "database": database}
        if database is not None and urlsplit(database).scheme not in ("postgresql", "postgres"):
            raise UserMistakeError(f"--database {database}: give a URL such as postgresql://user@host:5432/strobe")
        if registry is not None and urlsplit(registry).scheme not in ("http", "https"):
            raise UserMistakeError(f"--registry {registry}: give a URL such as http://host:8081")
        if kafka is not None and ":" not in kafka:
            raise UserMistakeError(f"--kafka {kafka}: give host:port, such as {kafka}:9092")
        local = [name for name, named in self._named.items() if named is None]
        self._stack: LocalStack | None = None
        if local:
            try:
                programs = (home / "servers").resolve()  # several homes may share them through a symbolic link
                self._stack = LocalStack(home, Ports.from_environ(os.environ), servers=local, downloads=programs.parent)
            except LocalStackError as error:
                raise UserMistakeError(str(error)) from None

    def start(self, progress: Callable[[str, str], None]) -> None:
        if self._stack:
            try:
                self._stack.start(progress)
            except LocalStackError as error:
                raise FailedError(str(error)) from None

    def stop(self, progress: Callable[[str, str], None]) -> None:
        if self._stack:
            try:
                self._stack.stop(progress)
            except LocalStackError as error:
                raise FailedError(str(error)) from None

    def log(self, name: str) -> str:
        return str(self._stack.log(name)) if self._stack else ""

    def addresses(self) -> Addresses:
        named = self._named["database"]
        databases = {role: self._database(named, role) for role in ROLES}
        psql = str(self._stack.psql) if self._stack and named is None else None
        return Addresses(
            kafka=self._named["kafka"] or self._local().kafka,
            registry=self._named["registry"] or self._local().registry,
            databases=databases,
            psql=psql,
        )

    def _database(self, named: str | None, role: str) -> str:
        return as_role(named, role) if named else self._local().database(role)

    def _local(self) -> LocalStack:
        assert self._stack is not None  # noqa: S101 - a server that is not named is local
        return self._stack
