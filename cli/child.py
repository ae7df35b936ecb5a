"""One child process: started in a session of its own, its output kept in a bounded log.

A session of its own, so that Ctrl-C in the terminal reaches the supervisor alone and the order of stopping is its.
"""

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from cli.log_file import LogFile

TAIL_LINES_MAX = 20  # kept in memory, to say why a child died
LINE_BYTES_MAX = 64 << 10  # a longer line is cut in pieces


class Child:
    """A running (or ended) process.

    For example::

        child = Child(("python", "-m", "sinks", "raw"), environ, home.log_file("raw-sink"))
        child.terminate()
        code = child.wait(10.0)
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log_file: Path, folder: Path) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        reader = (cast("BinaryIO", self._process.stdout), LogFile(log_file))
        self._pump = threading.Thread(target=self._keep, args=reader, daemon=True, name=f"log {log_file.stem}")
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code once it is gone (negative: the signal)."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None when it still runs; its last words are in `tail` then."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._pump.join(1.0)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """To the whole group: a stage may have workers of its own."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return

    def _keep(self, output: BinaryIO, log: LogFile) -> None:
        while line := output.readline(LINE_BYTES_MAX):
            self.tail.append(line.decode(errors="replace").rstrip())
            log.write(line)
        log.close()
        output.close()
