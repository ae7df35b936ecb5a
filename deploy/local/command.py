"""One-shot programs of the provisioning: run with progress, their output in a log, their failure in one line."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.local.error import LocalStackError

Progress = Callable[[str, str], None]  # (server, what happens now); called some times a second during downloads
REPORT_EVERY_S = 0.5
ERROR_STARTS = ("[ERROR]", "E: ", "ERROR", "error:", "initdb: error", "patchelf: ")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CommandError(LocalStackError):
    """The program ran and failed; `output` is all that it said."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def quiet(_server: str, _text: str) -> None:
    """The progress callback of those who do not want any."""


def run(
    args: Sequence[str | Path],
    *,
    log: Path,
    failed: str,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    report: Callable[[], None] = lambda: None,
) -> str:
    """All that the program says; `failed` begins the line of the CommandError. An exception of `report` ends it."""
    try:
        process = subprocess.Popen(
            [str(part) for part in args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise LocalStackError(f"{failed}: the program {args[0]} is missing") from None
    ended = threading.Event()
    objections: list[BaseException] = []

    def reporting() -> None:
        try:
            while not ended.wait(REPORT_EVERY_S):
                report()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised below
            objections.append(error)
            _kill(process)

    reporter = threading.Thread(target=reporting, daemon=True)
    reporter.start()
    try:
        output = process.communicate()[0].decode(errors="replace")
    except BaseException:
        _kill(process)
        process.wait()
        raise
    finally:
        ended.set()
        reporter.join()
    if objections:
        raise objections[0]
    with log.open("a") as file:
        file.write(f"$ {' '.join(str(part) for part in args)}\n{output}")
    if process.returncode:
        raise CommandError(f"{failed}: {telling_line(output)} (all of it: {log})", output)
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With its children (apt's methods, Maven's Java): it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def telling_line(output: str) -> str:
    """The first line that calls itself an error (what follows are its consequences), else the last one."""
    lines = [COLOURS.sub("", line).strip() for line in output.splitlines()]
    errors = [line for line in lines if line.startswith(ERROR_STARTS)]
    return (errors or [line for line in lines if line][-1:] or ["it said nothing"])[0][:300]


def megabytes(folder: Path) -> int:
    """What lies in `folder` so far; files may come and go while it counts."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(base) / name).lstat().st_size
            except OSError:
                continue
    return total // 2**20
