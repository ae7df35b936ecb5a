"""A dictionary of names that compiled code fills and Python reads: instruments, or sources, by code."""

from itertools import pairwise
from typing import Any

import numpy as np

from schemas import kernels

_FIRST_ROOM = 256  # names before the first growth; a crate or two


class Dictionary:
    """Names of one kind, and the arrays in which the kernel looks them up."""

    def __init__(self, *, texts: bool) -> None:
        self.texts = texts
        self.names = _room(_FIRST_ROOM)

    def grow(self) -> None:
        """Double the room."""
        before, count = self.names, int(self.names.used[0])
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
        names, count = self.names, int(self.names.used[0])
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
