"""`./strobe doctor`: what could be in the way, one line each, with the remedy. Looks, changes nothing."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.daemon import running
from cli.failure import FailedError, UserMistakeError
from cli.home import Home
from cli.servers import Addresses, read_addresses

DISK_MB_MIN = 2_000  # programs 600 MB, a first hour of data, room for the logs
ANSWER_S_MAX = 10.0
JAVA_MIN = 21  # of the schema registry


@dataclass(frozen=True)
class Check:
    """One line. `remedy` is empty when all is well."""

    name: str
    found: str
    remedy: str = ""

    @property
    def good(self) -> bool:
        return not self.remedy


def look(home: Home, environ: Mapping[str, str]) -> Iterator[Check]:
    """Everything that needs no server, then the servers when they should be there."""
    yield python()
    yield java()
    yield maven()
    yield system()
    yield network(environ)
    yield folder(home)
    yield disk(home)
    pid = running(home)
    yield Check("supervisor", f"runs as process {pid}" if pid else "does not run (./strobe up starts it)")
    if pid is None:
        yield ports(environ)
        return
    try:
        addresses = read_addresses(home.addresses)
    except (UserMistakeError, FailedError) as error:
        yield Check("servers", str(error), "wait until ./strobe status says running")
        return
    for ask in (kafka, registry, database, roles):
        yield answered(ask, addresses)


def answered(ask: Callable[[Addresses], Check], addresses: Addresses) -> Check:
    try:
        return ask(addresses)
    except FailedError as error:
        return Check(ask.__name__, str(error), "see ./strobe status and ./strobe logs supervisor")


def python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("python", version, "" if good else "install Python 3.11, 3.12 or 3.13, remove .venv and start again")


def java() -> Check:
    from deploy.local import java as local_java
    from deploy.local.error import LocalStackError

    try:
        return Check("java", str(local_java.runtime()))
    except LocalStackError as error:
        return Check("java", "none", str(error))


def maven() -> Check:
    found = shutil.which("mvn")
    remedy = "needed for the first start only: `apt-get install maven`, or name servers with --kafka and --registry"
    return Check("maven", found or "none", "" if found else remedy)


def system() -> Check:
    """The local TimescaleDB is made of Debian's packages."""
    try:
        names = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    except OSError:
        names = {}
    shown = names.get("PRETTY_NAME", "unknown").strip('"')
    debian = "debian" in (names.get("ID", "").strip('"'), *names.get("ID_LIKE", "").strip('"').split())
    good = debian and shutil.which("dpkg-deb") is not None
    return Check("system", shown, "" if good else "not Debian: name a TimescaleDB with --database URL")


def network(environ: Mapping[str, str]) -> Check:
    """Whether package archives can be reached, asked of apt's own first mirror: a look at one port."""
    proxy = environ.get("https_proxy") or environ.get("HTTPS_PROXY") or environ.get("http_proxy")
    if proxy:
        return Check("network", "through a proxy")
    host = mirror_host()
    if host is None:
        return Check("network", "no package mirror is named")
    try:
        with socket.create_connection((host, 80), ANSWER_S_MAX):
            return Check("network", f"{host} answers")
    except OSError as error:
        remedy = "needed for the first start only: connect, or name servers with --kafka, --database, --registry"
        return Check("network", f"{host} does not answer ({error})", remedy)


def mirror_host() -> str | None:
    """Of the first line of apt's sources that names one."""
    if shutil.which("apt-get") is None:
        return None
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_S_MAX,
    )
    for site in asked.stdout.split():
        if site.startswith("http"):
            return site.split("/")[2].split(":")[0]
    return None


def folder(home: Home) -> Check:
    at = home.path
    while not at.exists():
        at = at.parent
    remedy = "" if os.access(at, os.W_OK | os.X_OK) else "set STROBE_HOME to a folder of your own"
    return Check("folder", f"{home.path} (STROBE_HOME)", remedy)


def disk(home: Home) -> Check:
    at = home.path
    while not at.exists():
        at = at.parent
    free_mb = shutil.disk_usage(at).free >> 20
    remedy = f"free {DISK_MB_MIN} MB, or set STROBE_HOME to another disk" if free_mb < DISK_MB_MIN else ""
    return Check("disk", f"{free_mb:,} MB free", remedy)


def ports(environ: Mapping[str, str]) -> Check:
    from deploy.local.error import LocalStackError
    from deploy.local.ports import Ports

    try:
        chosen = Ports.from_environ(environ)
    except LocalStackError as error:
        return Check("ports", "wrong", str(error))
    taken = []
    for name, port in vars(chosen).items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append((name, port))
    shown = ", ".join(f"{name} {port}" for name, port in vars(chosen).items())
    named = "; ".join(f"{port} is taken: set STROBE_{name.upper()}_PORT" for name, port in taken)
    return Check("ports", shown, named)


def kafka(addresses: Addresses) -> Check:
    """That it answers, and that our topics carry the broker's time: without it no stage could judge event times."""
    from cli.kafka_offsets import KafkaOffsets
    from cli.stream_map import streams_in

    offsets = KafkaOffsets(addresses.kafka)
    topics = offsets.topics()
    wrong = [
        stream.topic
        for stream in streams_in(addresses.registry)
        if stream.topic in topics and offsets.setting(stream.topic, "message.timestamp.type") != "LogAppendTime"
    ]
    remedy = (
        f"{', '.join(wrong)}: message.timestamp.type must be LogAppendTime; run ./strobe up for the command"
        * bool(wrong)
    )
    return Check("kafka", f"{addresses.kafka}, {len(topics)} topics", remedy)


def registry(addresses: Addresses) -> Check:
    from cli.stream_map import ask

    return Check("registry", f"{addresses.registry}, {len(ask(addresses.registry, '/subjects'))} subjects")


def database(addresses: Addresses) -> Check:
    from cli.database import Database

    with Database(addresses.databases["reader"]) as connected:
        return Check("database", connected.describe())


def roles(addresses: Addresses) -> Check:
    """That the reader cannot write."""
    from cli.database import Database

    with Database(addresses.databases["reader"]) as connected:
        role, writes = connected.rights("dead_letters")
    remedy = f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public FROM {role}" if writes else ""
    return Check("roles", f"{role} {'may write' if writes else 'reads only'}", remedy)
