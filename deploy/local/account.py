"""As whom PostgreSQL runs: it refuses to be root."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.local.error import LocalStackError

UNPRIVILEGED = ("postgres", "nobody")


class Account(NamedTuple):
    """A user without further rights; `prefix` goes before a command that is to run as that user."""

    name: str
    uid: int
    gid: int
    prefix: tuple[str, ...]

    def own(self, path: Path) -> None:
        if self.prefix:
            os.chown(path, self.uid, self.gid)

    def require_reach(self, path: Path, probe: Sequence[str]) -> None:
        """A folder that only root may enter on the way would give obscure errors later."""
        if self.prefix and subprocess.run([*self.prefix, *probe], capture_output=True, check=False).returncode:
            raise LocalStackError(
                f"PostgreSQL runs as user {self.name}, who cannot reach {path}: set STROBE_HOME to a place "
                "that other users can enter, such as /var/lib/strobe"
            )


def choose() -> Account:
    if os.geteuid() != 0:
        return Account(str(os.geteuid()), os.geteuid(), os.getegid(), ())
    if shutil.which("setpriv") is None:
        raise LocalStackError("setpriv is missing, PostgreSQL cannot leave root's rights: `apt-get install util-linux`")
    for name in UNPRIVILEGED:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        drop = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--")
        return Account(name, user.pw_uid, user.pw_gid, drop)
    raise LocalStackError("PostgreSQL does not run as root and there is no user postgres: `useradd --system postgres`")
