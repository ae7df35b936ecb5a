"""The supervisor in the background: started, found, stopped. `up -d`, `down` and who else asks whether it runs."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.failure import FailedError, UserMistakeError
from cli.home import Home
from cli.overview import read_overview
from cli.pipeline import ROOT

READY_S_MAX = 900.0  # the first start downloads half a gigabyte
STAGES_S_MAX = 60.0  # from there on until every stage has said something
DOWN_S_MAX = 180.0  # drain 60 s, four stages 20 s each in the worst case, servers
POLL_S = 0.2
LOG = "supervisor"


def running(home: Home) -> int | None:
    """The process id of the supervisor of this home; None: none runs. The lock tells, not the number in the file."""
    try:
        with home.lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read().strip()
                return int(text) if text.isdecimal() else None
    except OSError:
        return None
    return None


def start(home: Home, arguments: Sequence[str], named: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Returns when the stages run; tells meanwhile what the supervisor writes to its log."""
    home.make()
    if pid := running(home):
        raise UserMistakeError(f"already running as process {pid}; see ./strobe status, or ./strobe down")
    log = home.log_file(LOG)
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "cli", "up", *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                **named,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                "STROBE_HOME": str(home.path),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    told, stages_s = 0, float("inf")
    end_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < end_s:
        told = _tell_new(log, told, say)
        overview = read_overview(home.overview)
        if overview and overview.pid == child.pid and overview.phase == "running":
            stages_s = min(stages_s, time.monotonic())
            if overview.sound:
                return
            if time.monotonic() - stages_s > STAGES_S_MAX:
                say("the servers are up, but not all stages; see ./strobe status")
                return
        if child.poll() is not None:
            _tell_new(log, told, say)
            raise FailedError(f"it did not come up; its log is {log}")
        time.sleep(POLL_S)
    raise FailedError(f"it is not up after {READY_S_MAX:.0f} s and goes on trying; see ./strobe logs supervisor")


def _tell_new(log: Path, told: int, say: Callable[[str], None]) -> int:
    """Whole new lines of the log; returns how many bytes have been told."""
    new = log.read_bytes()[told:]
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(line)
    return told + len(whole)


def stop(home: Home, say: Callable[[str], None]) -> None:
    """As Ctrl-C: in order, losing nothing; waits for the end."""
    pid = running(home)
    if pid is None:
        raise UserMistakeError(f"nothing runs in {home.path}; start it with ./strobe up")
    os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + DOWN_S_MAX
    shown = ""
    while running(home) == pid:
        overview = read_overview(home.overview)
        now = f"{overview.phase}: {overview.message}".removesuffix(": ") if overview else ""
        if now != shown:
            shown = now
            say(now)
        if time.monotonic() > end_s:
            raise FailedError(f"process {pid} has not ended after {DOWN_S_MAX:.0f} s; see ./strobe logs supervisor")
        time.sleep(POLL_S)
    say("down")
