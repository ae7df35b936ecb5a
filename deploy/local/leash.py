"""Ends the servers when their supervisor is gone, whatever ended it: a small process that watches a pipe.

PR_SET_PDEATHSIG is no way here: it fires when the *thread* that started the server ends, which need not be the end of
the program, and it can only kill. The kernel closes the pipe with its last holder, so nothing escapes this one.
It ends exactly the processes that it was told of: a next supervisor may already be starting others.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from deploy.local import process

ROOT = Path(__file__).parents[2]
ORDERLY_LIMIT_S = 20.0


class Leash:
    """The supervisor's end of the pipe."""

    def __init__(self) -> None:
        self._watcher: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def hold(self, pid: int, argument: str, orderly_signal: int) -> None:
        if self._watcher is None:
            self._watcher = _start_watcher()
        pipe = self._watcher[1]
        pipe.write(json.dumps([pid, argument, orderly_signal]).encode() + b"\n")
        pipe.flush()

    def drop(self) -> None:
        """Close the pipe: what still runs is ended now."""
        if self._watcher is not None:
            watcher, pipe = self._watcher
            pipe.close()
            watcher.wait()
            self._watcher = None


def _start_watcher() -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    read_end, write_end = os.pipe()
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.leash"],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    finally:
        os.close(read_end)
    return watcher, os.fdopen(write_end, "wb")


def watch() -> None:
    held = [json.loads(line) for line in sys.stdin if line.endswith("\n")]  # blocks until the pipe is closed
    ours = [(pid, number) for pid, argument, number in held if process.carries(pid, argument)]
    for pid, number in ours:
        process.send([pid], number)
    pids = [pid for pid, _ in ours]
    if not process.await_end(pids, ORDERLY_LIMIT_S):
        process.kill([pid for pid in pids if process.exists(pid)])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch()
