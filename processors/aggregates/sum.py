"""sum(v), in double precision whatever the argument (PostgreSQL's sum(real) is real and loses digits). 1 word.

Terms are added in reading order, so the error is at most (n - 1) * 2^-53 * the sum of |terms|; sums that fit 53 bits,
as on a binary grid, are exact. Beyond the range of doubles the sum is infinite, where PostgreSQL raises an error.
"""

import numpy as np
from numba import njit

from processors.aggregates.count import COUNT
from processors.aggregates.shape import Aggregate, State
from schemas.batch import Bools, Floats, Int64s

NOTHING = -0.0  # the neutral element: 0.0 + -0.0 would lose the sign, -0.0 + v is v for every v
NAN = np.nan  # every NaN is stored as this one: which operand's bits survive is up to the processor


@njit(cache=True, nogil=True)
def init(ints: Int64s, floats: Floats, at: int, rows: Int64s) -> None:  # noqa: ARG001 - one shape for all
    for i in range(len(rows)):
        floats[rows[i], at] = NOTHING


@njit(cache=True, nogil=True)
def absorb(ints: Int64s, floats: Floats, at: int, rows: Int64s, values: Floats, valid: Bools) -> None:  # noqa: ARG001
    for i in range(len(rows)):
        if valid[i]:
            total = floats[rows[i], at] + values[i]
            floats[rows[i], at] = total if total == total else NAN  # noqa: PLR0124 - NaN


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
        total = floats[rows[i], at] + other_floats[other_rows[i], at]
        floats[rows[i], at] = total if total == total else NAN  # noqa: PLR0124 - NaN


@njit(cache=True, nogil=True)
def finish(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        valid[i] = ints[rows[i], at[0]] > 0
        values[i] = floats[rows[i], at[1]] if valid[i] else 0.0


SUM = State("sum", 1, init, absorb, fold)
AGGREGATES = (Aggregate("sum", (COUNT, SUM), finish, words="sum"),)
