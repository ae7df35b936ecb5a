"""The fast half of schemas.seen: triggers that follow each other, compiled. Knows arrays only."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

NEW, SEEN, SLOW = 0, 1, 2


@njit(cache=True, nogil=True)
def judge_in_sequence(
    numbers: NDArray[np.int64],
    runs: NDArray[np.int64],
    triggers: NDArray[np.int64],
    top_run: NDArray[np.int64],
    top_low: NDArray[np.int64],
    top_high: NDArray[np.int64],
    diverted: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    result: NDArray[np.uint8],
) -> int:
    """Judge the readings that lie in, or just above, the highest interval of their instrument's current run.

    All others are left as SLOW, and so is everything that follows one for the same instrument in this batch,
    because order matters within an instrument. Returns how many are SLOW. The caller has checked that `numbers`
    are within the arrays of instruments.
    """
    slow = 0
    for i in range(len(numbers)):
        k = numbers[i]
        if diverted[k] or runs[i] != top_run[k] or triggers[i] < top_low[k] or triggers[i] > top_high[k] + 1:
            diverted[k] = True
            result[i] = SLOW
            slow += 1
        elif triggers[i] == top_high[k] + 1:
            top_high[k] += 1
            changed[k] = True
            result[i] = NEW
        else:
            result[i] = SEEN
    return slow
