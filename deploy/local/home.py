"""Where the local stack keeps things: folders under STROBE_HOME, locks, secrets, room on the disk. Knows no server."""

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.local.error import LocalStackError

LOCK_POLL_S = 0.5
SECRET_NAMES = ("postgres", "strobe_owner", "strobe_writer", "strobe_reader", "strobe_registry")


def default_home(environ: Mapping[str, str], uid: int) -> Path:
    """Root's lies outside /root, because PostgreSQL runs as another user and must be able to reach it."""
    chosen = environ.get("STROBE_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if uid == 0:
        return Path("/var/lib/strobe")
    return Path(environ.get("HOME") or "~").expanduser() / ".local" / "share" / "strobe"


def make_folder(path: Path, mode: int = 0o755) -> Path:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalStackError(
            f"cannot make the folder {path} ({error.strerror}); set STROBE_HOME to a place that you can write to"
        ) from None
    return path


def require_room(folder: Path, needed_mb: int, what: str) -> None:
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < needed_mb:
        raise LocalStackError(
            f"{what} needs {needed_mb} MB of free disk, {folder} has {free_mb} MB; "
            "make room there or set STROBE_HOME to another disk"
        )


def drop_parts(servers: Path, name: str) -> None:
    """What attempts that were cut off left is not trusted; called under the lock of `name`."""
    for left in servers.glob(f".{name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)


def new_part(servers: Path, name: str) -> Path:
    """A folder to fetch `name` into, with a name of its own: what a killed attempt started may still be writing."""
    return make_folder(servers / f".{name}.{secrets.token_hex(4)}.part")


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`. The kernel drops the lock with its holder, so a crash leaves none behind."""
    make_folder(path.parent)
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(LOCK_POLL_S)
        yield


class Claim:
    """Says that this process runs the stack of a home; a second one is told so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> None:
        if self.held:
            return
        make_folder(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode().strip() or "unknown"
            os.close(descriptor)
            raise LocalStackError(
                f"the servers in {self._path.parent} are already run by process {holder}; "
                "stop it (`./strobe down`) or set STROBE_HOME to another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def load_secrets(path: Path) -> dict[str, str]:
    """The passwords of this home, made at random the first time, readable by their owner alone."""
    try:
        known: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        known = {}
    except (OSError, ValueError) as error:
        raise LocalStackError(f"cannot read the passwords in {path} ({error}); restore it or remove it") from None
    missing = [name for name in SECRET_NAMES if name not in known]
    if missing:
        known |= {name: secrets.token_urlsafe(24) for name in missing}
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(known, file)
        temporary.replace(path)
    return known
