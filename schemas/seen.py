"""Which readings of one source partition were seen before: the memory behind the judgement of duplicates.

A reading's identity is (run, instrument, trigger); the first in offset order counts. The state is a function of the
readings in offset order alone, so a restart that begins from the state as of an offset judges every later reading
as it was judged the first time. Knows no storage: `pack` and `restore` are how it survives.
"""

import numpy as np

from schemas.batch import Columns, Int64s
from schemas.numbering import Numbering
from schemas.seen_kernels import NEW, SEEN, SLOW, judge_in_sequence
from schemas.triggers import InstrumentTriggers

TOO_OLD = 3  # beside the kernel's NEW, SEEN and SLOW
_NONE_LOW, _NONE_HIGH = 1, -1  # an interval that contains nothing and that nothing follows (see _raise_top)


class Seen:
    """The seen triggers of one source partition.

    For example::

        seen = Seen()
        seen.restore("bpm001", stored)           # for each stored row
        verdicts = judge(columns, seen, …)       # schemas.judge
        rows = [(seen.ids[k], seen.pack(k)) for k in seen.take_changed()]
    """

    def __init__(self) -> None:
        self.numbering = Numbering()
        self._triggers: list[InstrumentTriggers] = []
        self._top_run = np.empty(0, np.int64)  # per instrument: the run of the last new reading,
        self._top_low = np.empty(0, np.int64)  # and the highest interval of that run,
        self._top_high = np.empty(0, np.int64)  # whose upper end is kept here and not in _triggers
        self._changed = np.empty(0, np.bool_)

    @property
    def ids(self) -> list[str | int]:
        """Instruments by number."""
        return self.numbering.ids

    def restore(self, instrument: str | int, packed: bytes) -> None:
        """Take over what was stored for an instrument. Raises FormatError."""
        number = self.numbering.number(instrument)
        self._grow()
        self._triggers[number] = InstrumentTriggers.unpack(packed)
        if self._triggers[number].runs:
            self._raise_top(number, max(self._triggers[number].runs))

    def add(self, columns: Columns, readings: Int64s) -> np.ndarray:
        """Note readings (indices into the columns, ascending) and say of each NEW, SEEN or TOO_OLD."""
        numbers = self.numbering.of(columns)[readings]
        runs, triggers = columns.run[readings], columns.trigger[readings]
        self._grow()
        result = np.empty(len(readings), np.uint8)
        diverted = np.zeros(len(self._changed), np.bool_)
        tops = (self._top_run, self._top_low, self._top_high)
        if judge_in_sequence(numbers, runs, triggers, *tops, diverted, self._changed, result):
            for number in np.flatnonzero(diverted).tolist():
                self._lower_top(number)
            for i in np.flatnonzero(result == SLOW).tolist():
                result[i] = self._add_slowly(int(numbers[i]), int(runs[i]), int(triggers[i]))
            for number in np.flatnonzero(diverted).tolist():
                self._raise_top(number, int(self._top_run[number]))
        return result

    def pack(self, number: int) -> bytes:
        """What is to be stored for an instrument."""
        self._lower_top(number)
        return self._triggers[number].pack()

    def take_changed(self) -> list[int]:
        """Numbers of the instruments that changed since the last call."""
        numbers: list[int] = np.flatnonzero(self._changed).tolist()
        self._changed[:] = False
        return numbers

    def _add_slowly(self, number: int, run: int, trigger: int) -> int:
        new = self._triggers[number].add(run, trigger)
        if new is None:
            return TOO_OLD
        if not new:
            return SEEN
        self._changed[number] = True
        self._top_run[number] = run
        return NEW

    def _lower_top(self, number: int) -> None:
        """Write the upper end that the kernel moved back into the intervals."""
        if self._top_low[number] <= self._top_high[number]:
            self._triggers[number].runs[int(self._top_run[number])].highs[-1] = int(self._top_high[number])

    def _raise_top(self, number: int, run: int) -> None:
        """Hand the highest interval of a run to the kernel. Only the highest: above it there is nothing to meet."""
        triggers = self._triggers[number].runs.get(run)
        self._top_run[number] = run
        if triggers is not None and triggers.lows:
            self._top_low[number], self._top_high[number] = triggers.lows[-1], triggers.highs[-1]
        else:
            self._top_low[number], self._top_high[number] = _NONE_LOW, _NONE_HIGH

    def _grow(self) -> None:
        missing = len(self.numbering) - len(self._triggers)
        if missing <= 0:
            return
        self._triggers += [InstrumentTriggers() for _ in range(missing)]
        if len(self._triggers) > len(self._changed):
            room = 2 * len(self._triggers)
            for name, fill in (("_top_run", 0), ("_top_low", _NONE_LOW), ("_top_high", _NONE_HIGH), ("_changed", 0)):
                old = getattr(self, name)
                grown = np.full(room, fill, old.dtype)
                grown[: len(old)] = old
                setattr(self, name, grown)
