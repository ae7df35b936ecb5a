"""A real Kafka, TimescaleDB and schema registry in a folder of the user, as one thing that starts and stops.

For example::

    stack = LocalStack(default_home(os.environ, os.geteuid()), Ports.from_environ(os.environ))
    stack.provision(progress)   # downloads what is missing, once; safe to interrupt, safe twice at once
    stack.start(progress)       # returns when all three really answer: seconds
    stack.kafka                 # "127.0.0.1:19092", for STROBE_KAFKA
    stack.registry              # "http://127.0.0.1:18081/apis/ccompat/v7", for STROBE_REGISTRY
    stack.database("writer")    # URL with password, for STROBE_DATABASE; roles owner, writer, reader, superuser
    stack.stop()                # in order, bounded; harmless when nothing was started, or twice

- `progress(server, text)`: server is "kafka", "database" or "registry"; comes from several threads during downloads.
- Every trouble is a LocalStackError with one line that says what to do.
- `servers=("kafka",)` manages only some of them (the registry brings the database along, it lives there).
- Servers run in sessions of their own: Ctrl-C reaches the caller alone. When the caller dies, by whatever, they are
  stopped within seconds (`leash.py`). One process runs a home at a time; a second `start` gets a LocalStackError.
- `kill(name)`, `stop_server(name)`, `start_server(name)`, `alive(name)`, `log(name)`: one server of a started stack.
- `psql` is the path of a psql that fits the server, once provisioned.
"""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from pathlib import Path

from deploy.local import account, java, maven, postgres
from deploy.local.command import Progress, quiet
from deploy.local.error import LocalStackError
from deploy.local.home import Claim, load_secrets, make_folder, require_room
from deploy.local.kafka import Kafka
from deploy.local.leash import Leash
from deploy.local.ports import Ports
from deploy.local.profile import PROFILES
from deploy.local.registry import SchemaRegistry
from deploy.local.server import Server
from deploy.local.timescale import REGISTRY, Timescale, database_url

SERVERS = ("kafka", "database", "registry")
DEFAULT_PORTS = Ports()
START_MB = 1024  # room for a first hour's data, the write-ahead log and Kafka's segments


class LocalStack:
    """See the module's text. `downloads` is where the servers' programs are kept, by default the home itself."""

    def __init__(
        self,
        home: Path,
        ports: Ports = DEFAULT_PORTS,
        profile: str = "run",
        *,
        servers: Collection[str] = SERVERS,
        downloads: Path | None = None,
    ) -> None:
        self.home = home
        self.ports = ports.settled()
        self._profile = PROFILES[profile]
        self._wanted = frozenset(servers) | ({"database"} if "registry" in servers else set())
        # Resolved: programs are bound to where they lie, and a link must not bind them to another place.
        self._programs = ((downloads or home) / "servers").resolve()
        self._claim = Claim(home / "supervisor.lock")
        self._leash = Leash()
        self._begun: list[Server] = []

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.ports.kafka}"

    @property
    def registry(self) -> str:
        return f"http://127.0.0.1:{self.ports.registry}/apis/ccompat/v7"

    def database(self, role: str = "owner") -> str:
        """`role` is owner, writer, reader or superuser."""
        return database_url("postgres" if role == "superuser" else f"strobe_{role}", self._secrets, self.ports.database)

    @property
    def psql(self) -> Path:
        return self._postgres.bin / "psql"

    def log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def provision(self, progress: Progress = quiet) -> None:
        make_folder(self._programs)
        jobs: dict[str, Callable[[Path, Progress], object]] = {
            "kafka": maven.provision_kafka,
            "registry": maven.provision_apicurio,
            "database": postgres.provision,
        }
        ended = threading.Event()

        def report(server: str, text: str) -> None:
            if ended.is_set():
                raise LocalStackError("the download was interrupted; start again to complete it")
            progress(server, text)

        with ThreadPoolExecutor() as pool:
            running = [pool.submit(job, self._programs, report) for name, job in jobs.items() if name in self._wanted]
            try:
                for job in as_completed(running):
                    job.result()
            except BaseException:  # Ctrl-C too: the other downloads end within a second instead of going on
                ended.set()
                raise
        for name in sorted(self._wanted):
            progress(name, "ready to start")

    def start(self, progress: Progress = quiet) -> None:
        """Provisions too, should that be missing."""
        self.provision(progress)
        self._claim.take()
        try:
            require_room(make_folder(self.home), START_MB, "the local stack")
            self._begin("database", progress)
            self._begin("kafka", progress)  # starts meanwhile
            self._await("database", progress)
            self._begin("registry", progress)
            self._await("kafka", progress)
            self._await("registry", progress)
        except BaseException:
            self.stop()
            raise

    def _begin(self, name: str, progress: Progress) -> None:
        if name in self._servers:
            progress(name, "starting")
            self._begun.append(self._servers[name])
            self._servers[name].begin()

    def _await(self, name: str, progress: Progress) -> None:
        if name in self._servers:
            self._servers[name].await_answer()
            progress(name, "answers")

    def stop(self, progress: Progress = quiet) -> None:
        """Registry, Kafka, database: nobody loses what it still uses. Nothing where this object did not start them:
        the servers of this home may be another process's.
        """
        if not self._claim.held:
            return
        while self._begun:
            server = self._begun.pop()
            progress(server.name, "stopping")
            orderly = server.stop()
            progress(server.name, "stopped" if orderly else "did not stop in time, killed")
        self._leash.drop()
        self._claim.release()

    def start_server(self, name: str) -> None:
        self._server(name).start()

    def stop_server(self, name: str) -> None:
        self._server(name).stop()

    def kill(self, name: str) -> None:
        self._server(name).kill()

    def alive(self, name: str) -> bool:
        return self._server(name).alive()

    def _server(self, name: str) -> Server:
        if name not in self._servers:
            raise LocalStackError(f"no server {name!r}; there are {', '.join(self._servers)}")
        return self._servers[name]

    @cached_property
    def _postgres(self) -> postgres.Postgres:
        return postgres.provision(make_folder(self._programs), quiet)

    @cached_property
    def _secrets(self) -> dict[str, str]:
        return load_secrets(make_folder(self.home) / "secrets.json")

    @cached_property
    def _timescale(self) -> Timescale:
        return Timescale(
            self.home, self._leash, self._postgres, self.ports.database, self._profile, account.choose(), self._secrets
        )

    @cached_property
    def _servers(self) -> dict[str, Server]:
        """Made once everything is provisioned, which is found out for each that is wanted."""
        made: dict[str, Server] = {}
        if "database" in self._wanted:
            made["database"] = self._timescale
        if "kafka" in self._wanted:
            made["kafka"] = Kafka(
                self.home,
                self._leash,
                maven.provision_kafka(self._programs, quiet),
                java.runtime(),
                self.ports.kafka,
                self.ports.controller,
                self._profile,
            )
        if "registry" in self._wanted:
            made["registry"] = SchemaRegistry(
                self.home,
                self._leash,
                maven.provision_apicurio(self._programs, quiet),
                java.runtime(),
                self.ports.registry,
                self._profile,
                self._timescale.jdbc,
                REGISTRY,
                self._secrets[REGISTRY],
            )
        return made
