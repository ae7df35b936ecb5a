"""Compares what a topic holds with what the tables hold: arrays in, counts out. Knows neither Kafka nor the database.

Every reading of the topic must be in the raw table once, or be a copy of one that is, or lie in the dead letters;
every raw row must be accounted for by the topic; every row of a tumbling view must count the raw rows of its window.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Place = tuple[int, int, int]  # partition, offset, index of the reading; index -1: the whole record
Window = tuple[str, int]  # instrument and begin, µs since 1970
WHOLE_RECORD = -1
EXAMPLES_MAX = 5  # of lost readings, named in the report


@dataclass(frozen=True)
class Readings:
    """Identities of readings, and where each came from: seven columns of equal length."""

    run: Int64s
    trigger: Int64s
    instrument: Int64s  # codes that both sides share
    partition: Int64s
    offset: Int64s
    index: Int64s

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int, int, int]]) -> Self:
        """From rows (run, trigger, instrument, partition, offset, index)."""
        columns = np.array(rows, np.int64).reshape(len(rows), 6).T
        return cls(*np.ascontiguousarray(columns))

    def __len__(self) -> int:
        return len(self.run)

    def identities(self) -> Int64s:
        return np.stack((self.run, self.trigger, self.instrument), axis=1)


@dataclass(frozen=True)
class Comparison:
    """How topic and raw table differ. All zero: nothing lost, nothing twice."""

    readings: int  # in the topic, copies included
    triggers: int  # different (run, trigger) in the topic
    lost: int = 0  # identities, and unreadable records, that are neither stored nor in the dead letters
    repeated: int = 0  # raw rows beyond one of an identity
    foreign: int = 0  # raw rows that no good record accounts for
    lost_places: tuple[Place, ...] = ()  # the first few


def compare(topic: Readings, unreadable: AbstractSet[Place], raw: Readings, letters: AbstractSet[Place]) -> Comparison:
    """`unreadable`: places of the topic that hold no identity; each must be a dead letter."""
    unexplained = sorted(place for place in unreadable if not lettered(place, letters))
    both = np.concatenate((topic.identities(), raw.identities()))
    known, codes = np.unique(both, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    of_topic, of_raw = codes[: len(topic)], codes[len(topic) :]
    excused = excused_readings(topic, letters)
    expected = np.bincount(of_topic[~excused], minlength=len(known)) > 0
    stored = np.bincount(of_raw, minlength=len(known))
    lost = expected & (stored == 0)
    places = np.flatnonzero(lost[of_topic] & ~excused)[:EXAMPLES_MAX]
    named = [(int(topic.partition[at]), int(topic.offset[at]), int(topic.index[at])) for at in places]
    pairs = np.stack((topic.run, topic.trigger), axis=1)
    return Comparison(
        readings=len(topic),
        triggers=len(np.unique(pairs, axis=0)),
        lost=int(lost.sum()) + len(unexplained),
        repeated=int(np.maximum(stored - 1, 0).sum()),
        foreign=int((~expected & (stored > 0)).sum()),
        lost_places=tuple([*named, *unexplained][:EXAMPLES_MAX]),
    )


def lettered(place: Place, letters: AbstractSet[Place]) -> bool:
    return place in letters or (place[0], place[1], WHOLE_RECORD) in letters


def excused_readings(topic: Readings, letters: AbstractSet[Place]) -> NDArray[np.bool_]:
    """Which readings of the topic lie in the dead letters, by themselves or with their whole record."""
    if not letters:
        return np.zeros(len(topic), np.bool_)
    places = zip(topic.partition.tolist(), topic.offset.tolist(), topic.index.tolist(), strict=True)
    return np.fromiter((lettered(place, letters) for place in places), np.bool_, len(topic))


class WindowComparison(NamedTuple):
    """Readings that a view's rows count too few or too many, window by window."""

    missing: int
    surplus: int
    compared: int  # windows
    left_out: int  # windows listed as dirty


def compare_windows(
    raw: Mapping[Window, int], view: Mapping[Window, int], dirty: AbstractSet[Window]
) -> WindowComparison:
    """Sums over windows of the differences, so that one window's surplus hides no other's loss."""
    windows = (raw.keys() | view.keys()) - dirty
    differences = [view.get(window, 0) - raw.get(window, 0) for window in windows]
    return WindowComparison(
        missing=sum(-difference for difference in differences if difference < 0),
        surplus=sum(difference for difference in differences if difference > 0),
        compared=len(windows),
        left_out=len((raw.keys() | view.keys()) & dirty),
    )
