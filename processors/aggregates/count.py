"""count(*) and count(v): how many readings, and how many whose value is not NULL. Exact; 1 word."""

from numba import njit

from processors.aggregates.shape import Aggregate, State
from schemas.batch import Bools, Floats, Int64s


@njit(cache=True, nogil=True)
def init(ints: Int64s, floats: Floats, at: int, rows: Int64s) -> None:  # noqa: ARG001 - one shape for all
    for i in range(len(rows)):
        ints[rows[i], at] = 0


@njit(cache=True, nogil=True)
def absorb(ints: Int64s, floats: Floats, at: int, rows: Int64s, values: Floats, valid: Bools) -> None:  # noqa: ARG001
    for i in range(len(rows)):
        if valid[i]:
            ints[rows[i], at] += 1


@njit(cache=True, nogil=True)
def fold(
    ints: Int64s,
    floats: Floats,  # noqa: ARG001
    at: int,
    rows: Int64s,
    other_ints: Int64s,
    other_floats: Floats,  # noqa: ARG001
    other_rows: Int64s,
) -> None:
    for i in range(len(rows)):
        ints[rows[i], at] += other_ints[other_rows[i], at]


@njit(cache=True, nogil=True)
def finish(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Int64s, valid: Bools) -> None:  # noqa: ARG001
    for i in range(len(rows)):
        values[i] = ints[rows[i], at[0]]
        valid[i] = True


COUNT = State("count", 1, init, absorb, fold)
AGGREGATES = (Aggregate("count", (COUNT,), finish, pg_type="bigint", unit_power=0, words="number"),)
