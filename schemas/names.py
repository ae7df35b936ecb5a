"""A dictionary of names that compiled code fills and Python reads: instruments, or sources, by code."""

from itertools import pairwise
from typing import Any

import numpy as np

from schemas import kernels

# Names of one stream in one process. Beyond it the process stops: what a process has seen before is no ground for a
# verdict, because all must give the same one. A million names of 20 bytes take 0.25 GB, of the longest, 255, up to
# 0.9 GB; what the views keep of each instrument comes on top.
INSTRUMENTS_MAX = 1_000_000
SOURCES_MAX = 100_000

_FIRST_ROOM = 256  # names before the first growth; a crate or two
_NEWEST, _NEWEST_CHARS_MAX = 3, 40  # names that an error's line shows


class TooManyNamesError(ValueError):
    """A stream has more instruments or sources than the bound: no record's own fault, so the process stops."""

    def __init__(self, where: str, kind: str, bound: int, newest: list[str]) -> None:
        super().__init__(
            f"{where}: more than {bound} {kind} in one process; if they are real, raise {kind.upper()}_MAX in"
            " schemas/names.py; if not, stop the producer that sends damaged names, and restart."
            f" The newest: {', '.join(newest)}"
        )


class Dictionary:
    """Names of one kind, and the arrays in which the kernel looks them up."""

    def __init__(self, *, texts: bool) -> None:
        self.texts = texts
        self.names = _room(_FIRST_ROOM)

    def __len__(self) -> int:
        return int(self.names.used[0])

    def forget(self, count: int) -> None:
        """Keep the first `count` names. All later ones go, so no search path is cut."""
        names = self.names
        names.table[names.where[count : len(self)]] = -1
        names.used[:] = count, -1

    def newest(self) -> list[str]:
        """The names that came last, for a person."""
        return [repr(name)[:_NEWEST_CHARS_MAX] for name in self.news(max(0, len(self) - _NEWEST))]

    def grow(self) -> None:
        """Double the room."""
        before, count = self.names, len(self)
        self.names = _room(2 * len(before.where))
        self.names.bounds[: count + 1] = before.bounds[: count + 1]
        self.names.follows[: len(before.follows)] = before.follows
        self.names.used[:] = before.used
        if self.texts:
            used = int(before.bounds[count])
            self.names.arena[:used] = before.arena[:used]
        kernels.rehash(self.names, self.texts)

    def news(self, known: int) -> list[Any]:
        """The names from code `known` on."""
        names, count = self.names, len(self)
        if not self.texts:
            return list(names.bounds[known:count].tolist())
        bounds = names.bounds[known : count + 1].tolist()
        return [names.arena[a:b].tobytes().decode() for a, b in pairwise(bounds)]


def _room(room: int) -> kernels.Names:
    return kernels.Names(
        table=np.full(4 * room, -1, np.int64),
        where=np.zeros(room, np.int64),
        bounds=np.zeros(room + 1, np.int64),
        arena=np.zeros(room * kernels.NAME_BYTES_MAX, np.uint8),  # touched only as far as names need it
        follows=np.full(room + 1, -1, np.int64),
        used=np.array([0, -1], np.int64),
    )
