"""A log of bounded size: when the file is full it becomes `<name>.1`, replacing the one before."""

from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 4 << 20  # of one file; a stage keeps two


class LogFile:
    """Appends lines; never more than two files of LOG_BYTES_MAX."""

    def __init__(self, path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._bytes = path.stat().st_size

    def write(self, line: bytes) -> None:
        if self._bytes and self._bytes + len(line) > self._bytes_max:
            self._file.close()
            self._path.replace(self._path.with_suffix(self._path.suffix + ".1"))
            self._file = self._path.open("ab", buffering=0)
            self._bytes = 0
        self._file.write(line)
        self._bytes += len(line)

    def close(self) -> None:
        self._file.close()
