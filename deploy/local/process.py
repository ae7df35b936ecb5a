"""Server processes of this machine: recognised by their arguments, started in sessions of their own, ended in order.

No pid files: a server carries the path of its data folder as one of its arguments, so /proc tells at any time,
also after a crash or a reboot, which processes are ours. A number in a file may long belong to somebody else.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.error import LocalStackError

POLL_S = 0.05
LOG_BYTES_MAX = 64 * 2**20  # a log larger than this is set aside at the next start


def has_argument(cmdline: bytes, argument: str) -> bool:
    """Whether /proc/PID/cmdline holds exactly this argument; a zombie's is empty."""
    return argument.encode() in cmdline.split(b"\0")


def carries(pid: int, argument: str) -> bool:
    try:
        return has_argument(Path(f"/proc/{pid}/cmdline").read_bytes(), argument)
    except OSError:
        return False  # ended meanwhile, or not ours to see


def running() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def find(argument: str) -> list[int]:
    """Processes that carry `argument`, ascending."""
    return [pid for pid in running() if carries(pid, argument)]


def find_in(folder: Path) -> list[int]:
    """Processes whose current folder is `folder`, as far as this user may see it."""
    found = []
    for pid in running():
        try:
            if Path(f"/proc/{pid}/cwd").readlink() == folder:
                found.append(pid)
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    found = []
    for other in running():
        try:
            stat = Path(f"/proc/{other}/stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(other)
    return found


def exists(pid: int) -> bool:
    """Whether the process runs; a zombie (dead, not yet collected by its parent) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise LocalStackError(f"process {pid} belongs to another user; end it as that user, or as root") from None


def await_end(pids: Sequence[int], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(pids: Sequence[int], orderly: int, limit_s: float) -> bool:
    """The orderly signal, then, after `limit_s`, SIGKILL. False: it had to be killed."""
    send(pids, orderly)
    if await_end(pids, limit_s):
        return True
    kill(pids)
    return False


def kill(pids: Sequence[int]) -> None:
    """As a loss of power would: the server and its children at once (PostgreSQL's would linger for a moment)."""
    family = [*pids, *(child for pid in pids for child in children(pid))]
    send(family, signal.SIGKILL)
    if not await_end(family, 10.0):
        raise LocalStackError(f"processes {family} do not end, even when killed; the disk may hang: see `dmesg`")


def spawn(args: Sequence[str], *, log: Path, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start in a session of its own, so that the terminal's Ctrl-C reaches the supervisor alone."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        return subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )


def last_line(log: Path, start: int, *, prefer: Sequence[str] = ()) -> str:
    """The last line from byte `start` on that says something; one that holds a word of `prefer`, if any does."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 65536))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    telling = [line for line in lines if any(word in line for word in prefer)]
    return (telling or lines or [""])[-1][:300]
