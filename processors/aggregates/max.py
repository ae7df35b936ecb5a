"""max(v): the greatest value; NaN is greater than every number, as PostgreSQL sorts it. Exact; 1 word."""

import numpy as np
from numba import njit

from processors.aggregates.count import COUNT
from processors.aggregates.shape import Aggregate, State
from schemas.batch import Bools, Floats, Int64s

NOTHING = -np.inf  # the neutral element: nothing is less
NAN = np.nan  # every NaN is stored as this one, as in sum


@njit(cache=True, nogil=True)
def init(ints: Int64s, floats: Floats, at: int, rows: Int64s) -> None:  # noqa: ARG001 - one shape for all
    for i in range(len(rows)):
        floats[rows[i], at] = NOTHING


@njit(cache=True, nogil=True)
def absorb(ints: Int64s, floats: Floats, at: int, rows: Int64s, values: Floats, valid: Bools) -> None:  # noqa: ARG001
    for i in range(len(rows)):
        if valid[i]:
            kept, value = floats[rows[i], at], values[i]
            if value >= kept or value != value:  # noqa: PLR0124 - NaN; of equal ones (-0.0 and 0.0) the later, as PostgreSQL
                floats[rows[i], at] = value if value == value else NAN  # noqa: PLR0124


@njit(cache=True, nogil=True)
def fold(
    ints: Int64s,  # noqa: ARG001
    floats: Floats,
    at: int,
    rows: Int64s,
    other_ints: Int64s,  # noqa: ARG001
    other_floats: Floats,
    other_rows: Int64s,
) -> None:
    for i in range(len(rows)):
        kept, value = floats[rows[i], at], other_floats[other_rows[i], at]
        if value >= kept or value != value:  # noqa: PLR0124 - NaN; of equal ones (-0.0 and 0.0) the later, as PostgreSQL
            floats[rows[i], at] = value


@njit(cache=True, nogil=True)
def finish(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        valid[i] = ints[rows[i], at[0]] > 0
        values[i] = floats[rows[i], at[1]] if valid[i] else 0.0


MAX = State("max", 1, init, absorb, fold)
AGGREGATES = (Aggregate("max", (COUNT, MAX), finish, words="greatest"),)
