"""avg(v): the sum divided by the number of values. Keeps nothing of its own: count and sum are shared."""

from numba import njit

from processors.aggregates.count import COUNT
from processors.aggregates.shape import Aggregate
from processors.aggregates.sum import SUM
from schemas.batch import Bools, Floats, Int64s


@njit(cache=True, nogil=True)
def finish(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        n = ints[rows[i], at[0]]
        valid[i] = n > 0
        values[i] = floats[rows[i], at[1]] / n if n > 0 else 0.0


AGGREGATES = (Aggregate("avg", (COUNT, SUM), finish, words="mean"),)
