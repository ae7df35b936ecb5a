"""How old a reading is when an operator can first see it in a view: sightings in, quantiles out. Pure.

A row of a view carries no event times, so what is noted is when its count was first seen to be k. Producers send in
the order of event time; the k-th reading of a window is then visible once the count is at least k.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cli.verify import Window


class Sighting(NamedTuple):
    """A row was seen to count `readings` by now, at `seen_us` (µs since 1970)."""

    window: Window
    readings: int
    seen_us: int


class Freshness(NamedTuple):
    """Quantiles of event time to visibility, s. None: nothing was seen growing."""

    p50_s: float | None
    p99_s: float | None
    highest_s: float | None
    seen: int  # readings that the quantiles are over
    unseen: int  # readings stored in the same time that never became visible to the watcher


class Growth:
    """Notes increases only: a watcher looks 50 times a second and mostly sees what it saw before."""

    def __init__(self) -> None:
        self.sightings: list[Sighting] = []
        self._counts: dict[Window, int] = {}

    def look(self, rows: Iterable[tuple[Window, int]], seen_us: int) -> None:
        for window, count in rows:
            if count > self._counts.get(window, 0):
                self._counts[window] = count
                self.sightings.append(Sighting(window, count, seen_us))


def freshness(sightings: Sequence[Sighting], times_us: Mapping[Window, Sequence[int]], since_us: int) -> Freshness:
    """`times_us`: event times of the stored readings by window, ascending; those before `since_us` are not judged."""
    by_window: defaultdict[Window, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_window[sighting.window].append(sighting)
    ages_us: list[int] = []
    unseen = 0
    for window, times in times_us.items():
        seen = by_window.get(window, [])
        counts = np.array([sighting.readings for sighting in seen], np.int64)
        for place, time_us in enumerate(times):
            if time_us < since_us:
                continue
            at = int(np.searchsorted(counts, place + 1))
            if at < len(seen):
                ages_us.append(seen[at].seen_us - time_us)
            else:
                unseen += 1
    if not ages_us:
        return Freshness(None, None, None, 0, unseen)
    p50_us, p99_us = np.quantile(np.array(ages_us), [0.5, 0.99])
    return Freshness(float(p50_us) / 1e6, float(p99_us) / 1e6, max(ages_us) / 1e6, len(ages_us), unseen)
