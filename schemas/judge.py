"""The one judge of readings: good, duplicate, or for the dead letters. Every stage, restart and replay decides alike.

The verdict is a function of the readings in offset order and of what the broker stamped on them (the log append
time); no clock is read. The raw sink acts on it (stores, or writes the letter), the processors only skip
(`processors/partial.py`).
"""

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Columns
from schemas.seen import TOO_OLD, Seen
from schemas.seen_kernels import SEEN

GOOD, DUPLICATE, FUTURE, UNJUDGED, SENSELESS = 0, 1, 2, 3, 4

REASONS: dict[int, tuple[str, str]] = {
    FUTURE: ("future", "event time is further ahead of the broker's append time than max_skew"),
    UNJUDGED: ("too-old", "its run or trigger number lies below what is still remembered, so it may be a duplicate"),
    SENSELESS: ("senseless", "event time before 1970, or a run or trigger number beyond 62 bits"),
}

_LARGEST = 1 << 62  # intervals add one to a trigger number: this keeps them clear of 64-bit overflow


def judge(columns: Columns, seen: Seen, max_skew_us: int) -> NDArray[np.uint8]:
    """The verdict on each reading: GOOD, DUPLICATE, or a key of REASONS.

    Notes the good ones in `seen`; a reading that is not good leaves no trace, so a later copy of a dead-lettered
    reading is judged for itself.
    """
    verdicts = np.zeros(len(columns), np.uint8)
    verdicts[columns.time_us > columns.append_us + max_skew_us] = FUTURE
    for number in (columns.run, columns.trigger):
        verdicts[(number > _LARGEST) | (number < -_LARGEST)] = SENSELESS
    verdicts[columns.time_us < 0] = SENSELESS
    candidates = np.flatnonzero(verdicts == GOOD)
    outcome = seen.add(columns, candidates)
    verdicts[candidates[outcome == SEEN]] = DUPLICATE
    verdicts[candidates[outcome == TOO_OLD]] = UNJUDGED
    return verdicts
