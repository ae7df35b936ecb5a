"""stddev and variance (of the sample): number, mean and sum of squared deviations from the mean. 3 words.

Absorbed by Welford's recurrence (Technometrics 4, 1962), folded by that of Chan, Golub and LeVeque (1979): never
by the sum of squares, which loses small spreads on large offsets. The relative error of the variance is about
n * 2^-53 * sqrt(1 + mean²/variance). Fewer than two values give NULL; an infinite or NaN value gives NaN.
"""

import math

import numpy as np
from numba import njit

from processors.aggregates.shape import Aggregate, State
from schemas.batch import Bools, Floats, Int64s

NAN = np.nan  # every NaN is stored as this one, as in sum


@njit(cache=True, nogil=True)
def init(ints: Int64s, floats: Floats, at: int, rows: Int64s) -> None:
    for i in range(len(rows)):
        ints[rows[i], at] = 0
        floats[rows[i], at + 1] = 0.0
        floats[rows[i], at + 2] = 0.0


@njit(cache=True, nogil=True)
def absorb(ints: Int64s, floats: Floats, at: int, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        if valid[i]:
            row = rows[i]
            n = ints[row, at] + 1
            before = values[i] - floats[row, at + 1]
            mean = floats[row, at + 1] + before / n
            squares = floats[row, at + 2] + before * (values[i] - mean)
            ints[row, at] = n
            floats[row, at + 1] = mean if mean == mean else NAN  # noqa: PLR0124 - NaN
            floats[row, at + 2] = squares if squares == squares else NAN  # noqa: PLR0124 - NaN


@njit(cache=True, nogil=True)
def fold(
    ints: Int64s,
    floats: Floats,
    at: int,
    rows: Int64s,
    other_ints: Int64s,
    other_floats: Floats,
    other_rows: Int64s,
) -> None:
    for i in range(len(rows)):
        row, other = rows[i], other_rows[i]
        left, right = ints[row, at], other_ints[other, at]
        if right == 0:
            continue  # nothing to add; the formula would divide 0 by 0 when both are empty
        if left == 0:
            ints[row, at] = right
            floats[row, at + 1] = other_floats[other, at + 1]
            floats[row, at + 2] = other_floats[other, at + 2]
            continue
        n = left + right
        apart = other_floats[other, at + 1] - floats[row, at + 1]
        mean = floats[row, at + 1] + apart * (right / n)
        squares = floats[row, at + 2] + other_floats[other, at + 2] + apart * apart * (left * (right / n))
        ints[row, at] = n
        floats[row, at + 1] = mean if mean == mean else NAN  # noqa: PLR0124 - NaN
        floats[row, at + 2] = squares if squares == squares else NAN  # noqa: PLR0124 - NaN


@njit(cache=True, nogil=True)
def variance(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        n = ints[rows[i], at[0]]
        valid[i] = n > 1
        values[i] = floats[rows[i], at[0] + 2] / (n - 1) if n > 1 else 0.0


@njit(cache=True, nogil=True)
def stddev(ints: Int64s, floats: Floats, at: Int64s, rows: Int64s, values: Floats, valid: Bools) -> None:
    for i in range(len(rows)):
        n = ints[rows[i], at[0]]
        valid[i] = n > 1
        values[i] = math.sqrt(floats[rows[i], at[0] + 2] / (n - 1)) if n > 1 else 0.0


MOMENTS = State("moments", 3, init, absorb, fold, stands_for="count")
AGGREGATES = (
    Aggregate("stddev", (MOMENTS,), stddev, words="standard deviation"),
    Aggregate("stddev_samp", (MOMENTS,), stddev, words="standard deviation"),
    Aggregate("variance", (MOMENTS,), variance, unit_power=2, words="variance"),
    Aggregate("var_samp", (MOMENTS,), variance, unit_power=2, words="variance"),
)
