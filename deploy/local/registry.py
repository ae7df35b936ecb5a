"""The schema registry, Apicurio, kept in a database of its own in our PostgreSQL."""

import http.client
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.home import make_folder
from deploy.local.leash import Leash
from deploy.local.ports import HOST, is_open, require_free
from deploy.local.profile import Profile
from deploy.local.server import Server

API = "/apis/ccompat/v7"
ANSWER_LIMIT_S = 3.0


class SchemaRegistry(Server):
    name = "registry"

    def __init__(
        self,
        home: Path,
        leash: Leash,
        unpacked: Path,
        java: Path,
        port: int,
        profile: Profile,
        jdbc: str,
        user: str,
        password: str,
    ) -> None:
        super().__init__(home, leash)
        self.url = f"http://{HOST}:{port}{API}"
        self._unpacked, self._java, self._port, self._profile = unpacked, java / "bin" / "java", port, profile
        self._jdbc, self._user, self._password = jdbc, user, password

    @property
    def argument(self) -> str:
        return f"-Dstrobe.folder={self.folder}"

    def require_ports(self) -> None:
        require_free(self._port, "the schema registry", "registry")

    def prepare(self) -> None:
        make_folder(self.folder)

    def command(self) -> Sequence[str]:
        return [
            str(self._java),
            *self._profile.registry_jvm,
            self.argument,
            f"-Dquarkus.http.port={self._port}",
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.management.host={HOST}",  # cannot be switched off at run time, and asks for *:9000 by default
            "-Dquarkus.management.port=0",
            "-Dapicurio.storage.kind=sql",
            "-Dapicurio.storage.sql.kind=postgresql",
            # by default 20 connections, none tried before use: each would fail once after a crash of the database
            "-Dapicurio.datasource.jdbc.initial-size=1",
            "-Dapicurio.datasource.jdbc.min-size=1",
            "-Dapicurio.datasource.jdbc.max-size=8",
            "-Dquarkus.datasource.postgresql.jdbc.validate-on-borrow=true",
            # without the database a request is refused in about 2 s, by default it hangs for minutes
            "-Dapicurio.storage.connection.retry.max-attempts=4",
            "-Dapicurio.storage.connection.retry.initial-delay-ms=250",
            "-jar",
            str(self._unpacked / "quarkus-run.jar"),
        ]

    def environ(self) -> Mapping[str, str]:
        """The password goes through the environment: arguments can be read by every user of the machine."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("JAVA_TOOL_OPTIONS")},
            "APICURIO_DATASOURCE_URL": self._jdbc,
            "APICURIO_DATASOURCE_USERNAME": self._user,
            "APICURIO_DATASOURCE_PASSWORD": self._password,
        }

    def answers(self) -> bool:
        """Asked without any proxy; the listing goes through to its database."""
        if not is_open(self._port):
            return False
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_LIMIT_S)
        try:
            connection.request("GET", f"{API}/subjects")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
