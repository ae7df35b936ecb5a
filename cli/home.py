"""Where everything of one installation lies: STROBE_HOME and the places in it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cli.failure import UserMistakeError
from deploy.local.home import default_home


@dataclass(frozen=True)
class Home:
    """One folder; two homes on one machine do not meet, except at their ports."""

    path: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """For root not below its home folder: PostgreSQL runs as another user and could not reach it there."""
        return cls(default_home(environ, os.geteuid()))

    def make(self) -> None:
        try:
            for folder in (self.path, self.run, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistakeError(
                f"cannot write to {self.path} ({error.strerror}); set STROBE_HOME to a folder of your own"
            ) from None

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def overview(self) -> Path:
        """What the supervisor says of everything, once a second."""
        return self.run / "supervisor.json"

    @property
    def lock(self) -> Path:
        """Held by the one supervisor of this home; holds its process id."""
        return self.run / "supervisor.pid"

    @property
    def addresses(self) -> Path:
        """Where the servers of the last run answer, with passwords."""
        return self.run / "servers.json"

    def status_file(self, stage: str) -> Path:
        return self.run / f"{stage}.json"

    def log_file(self, stage: str) -> Path:
        return self.logs / f"{stage}.log"
