"""What an aggregate consists of: states that several may share, and a way to finish them. Knows no aggregate."""

from collections.abc import Callable
from typing import Any, NamedTuple

from schemas.batch import Bools, Floats, Int64s

# One table under two names: row r of `ints` and of `floats` are the same bytes, a word is either an int64 or a
# float64. All kernels loop over rows strictly in the order given and leave the state in the table, so where a batch
# is cut changes no bit. They trust their indices: StateLayout has checked them.
Init = Callable[[Int64s, Floats, int, Int64s], None]  # ints, floats, at, rows
Absorb = Callable[[Int64s, Floats, int, Int64s, Floats, Bools], None]  # …, values, valid
Fold = Callable[[Int64s, Floats, int, Int64s, Int64s, Floats, Int64s], None]  # …, other ints, floats, rows
Finish = Callable[[Int64s, Floats, Int64s, Int64s, Any, Bools], None]  # at of each state, rows, values, valid: out


class State(NamedTuple):
    """Words that a group keeps of one argument. `at` is the first of them in a row."""

    name: str
    words: int
    init: Init
    absorb: Absorb
    fold: Fold
    stands_for: str = ""  # another state that equals the first words of this one, so need not be kept beside it


class Aggregate(NamedTuple):
    """An aggregate function of SQL: the states it is finished from, and what comes out."""

    name: str  # as SQL spells it
    states: tuple[State, ...]
    finish: Finish
    pg_type: str = "double precision"
    unit_power: int = 1  # of the argument's unit: 0 a number of things, 2 a square
    words: str = ""  # for descriptions: "mean" makes "mean of …"
