"""What the three servers have in common: start, wait until they really answer, stop, be killed."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local import process
from deploy.local.error import LocalStackError
from deploy.local.home import make_folder
from deploy.local.leash import Leash

if TYPE_CHECKING:
    import subprocess

START_LIMIT_S = 90.0  # a loaded machine with two cores, all three starting at once
STOP_LIMIT_S = 20.0
ASK_EVERY_S = 0.1


class Server(ABC):
    """One server with its data folder and its log. `begin` and `await_answer` apart, so that servers start together."""

    name: str
    orderly_signal: int = signal.SIGTERM

    def __init__(self, home: Path, leash: Leash) -> None:
        self._leash = leash
        self.folder = home / "data" / self.name
        self.log = home / "logs" / f"{self.name}.log"
        self._log_start = 0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def argument(self) -> str:
        """The argument with the data folder in it by which the process is recognised."""

    @abstractmethod
    def require_ports(self) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """What must be done before the process can start; idempotent."""

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def environ(self) -> Mapping[str, str]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    def alive(self) -> bool:
        """Also true of a server that another process of ours started."""
        return bool(self._pids())

    def start(self) -> None:
        self.begin()
        self.await_answer()

    def begin(self) -> None:
        """Start the process. What a killed supervisor left running is ended first: its settings may be others."""
        self.stop()
        self.require_ports()
        make_folder(self.folder.parent)
        make_folder(self.log.parent)
        self.prepare()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._child = process.spawn(self.command(), log=self.log, folder=self.folder, environ=self.environ())
        self._leash.hold(self._child.pid, self.argument, self.orderly_signal)

    def await_answer(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.answers():
            exit_code = self._child.poll() if self._child is not None else None
            if self._child is None or exit_code is not None:
                raise LocalStackError(
                    f"{self.name} ended while starting (exit code {exit_code}): {self._reason()} "
                    f"(all of it: {self.log})"
                )
            if time.monotonic() > deadline:
                raise LocalStackError(
                    f"{self.name} does not answer after {START_LIMIT_S:.0f} s: {self._reason()} (all of it: {self.log})"
                )
            time.sleep(ASK_EVERY_S)

    def stop(self) -> bool:
        """In order if it can, by force after STOP_LIMIT_S; False says that force was needed."""
        orderly = process.end(self._pids(), self.orderly_signal, STOP_LIMIT_S)
        self._collect()
        return orderly

    def kill(self) -> None:
        """What a crash of the machine would do to it."""
        process.kill(self._pids())
        self._collect()

    def _pids(self) -> list[int]:
        own = [self._child.pid] if self._child is not None and self._child.poll() is None else []
        return sorted({*process.find(self.argument), *own})

    def _collect(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None

    def _reason(self) -> str:
        said = process.last_line(self.log, self._log_start, prefer=("FATAL", "ERROR", "Exception", "Error"))
        return said or "its log is empty"
