"""`./strobe logs STAGE`: the end of a log, and with -f what is added to it."""

import time
from pathlib import Path

from cli.failure import UserMistakeError
from cli.home import Home

LINES = 40
TAIL_BYTES = 256 << 10  # 40 lines are in there, but for the longest tracebacks
POLL_S = 0.3


def logs(home: Home, stage: str, *, follow: bool, lines: int = LINES) -> None:
    path = home.log_file(stage)
    if not path.exists():
        there = ", ".join(sorted(found.stem for found in home.logs.glob("*.log"))) or "none yet"
        raise UserMistakeError(f"no log of {stage!r} in {home.logs}; there are: {there}")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for line in file.read().decode(errors="replace").splitlines()[-lines:]:
            print(line)
        place = file.tell()
    if follow:
        _follow(path, place)


def _follow(path: Path, place: int) -> None:
    """Until Ctrl-C. A log that shrank was begun anew."""
    while True:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = 0  # between two files of a full log
        if size < place:
            place = 0
        if size > place:
            with path.open("rb") as file:
                file.seek(place)
                new = file.read()
                place = file.tell()
            print(new.decode(errors="replace"), end="", flush=True)
        time.sleep(POLL_S)
