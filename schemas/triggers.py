"""Which trigger numbers of one instrument were seen: intervals per run. The slow, exact half of schemas.seen."""

import struct
from bisect import bisect_right

INTERVALS_MAX = 512  # per run and instrument, 16 bytes each; beyond it the lowest leaves
RUNS_MAX = 16  # per instrument; beyond it the lowest run number leaves: run numbers must grow

FORMAT = 1
_HEAD = struct.Struct("<BqH")  # format, run floor, number of runs
_RUN = struct.Struct("<qqH")  # run, floor, number of intervals
_NOTHING_BELOW = -(1 << 63)


class FormatError(ValueError):
    """Stored bytes of ours carry a format number that this version does not know: stop, never guess."""


class TriggerSet:
    """Trigger numbers of one run as disjoint, non-adjacent intervals, ascending; nothing below `floor` is known."""

    __slots__ = ("floor", "highs", "lows")

    def __init__(self, floor: int = _NOTHING_BELOW) -> None:
        self.floor = floor
        self.lows: list[int] = []
        self.highs: list[int] = []  # inclusive

    def add(self, trigger: int) -> bool | None:
        """True: new, and noted. False: seen before. None: below what is still known, so nobody can tell."""
        if trigger < self.floor:
            return None
        at = bisect_right(self.lows, trigger)  # intervals before `at` begin at or below the trigger
        if at and trigger <= self.highs[at - 1]:
            return False
        joins_left = at > 0 and self.highs[at - 1] == trigger - 1
        joins_right = at < len(self.lows) and self.lows[at] == trigger + 1
        if joins_left and joins_right:
            self.highs[at - 1] = self.highs.pop(at)
            self.lows.pop(at)
        elif joins_left:
            self.highs[at - 1] = trigger
        elif joins_right:
            self.lows[at] = trigger
        else:
            self.lows.insert(at, trigger)
            self.highs.insert(at, trigger)
            if len(self.lows) > INTERVALS_MAX:
                self.lows.pop(0)
                self.floor = self.highs.pop(0) + 1
        return True


class InstrumentTriggers:
    """All runs of one instrument that can still be judged. A value: equal content packs to equal bytes."""

    __slots__ = ("run_floor", "runs")

    def __init__(self) -> None:
        self.run_floor = _NOTHING_BELOW
        self.runs: dict[int, TriggerSet] = {}

    def add(self, run: int, trigger: int) -> bool | None:
        """As TriggerSet.add, for one run."""
        triggers = self.runs.get(run)
        if triggers is None:
            if run < self.run_floor:
                return None
            triggers = self.runs[run] = TriggerSet()
            if len(self.runs) > RUNS_MAX:
                oldest = min(self.runs)
                del self.runs[oldest]
                self.run_floor = oldest + 1
        return triggers.add(trigger)

    def pack(self) -> bytes:
        """Bytes for storage, from which `unpack` makes an equal value."""
        parts = [_HEAD.pack(FORMAT, self.run_floor, len(self.runs))]
        for run in sorted(self.runs):
            triggers = self.runs[run]
            bounds = [bound for pair in zip(triggers.lows, triggers.highs, strict=True) for bound in pair]
            parts.append(_RUN.pack(run, triggers.floor, len(triggers.lows)))
            parts.append(struct.pack(f"<{len(bounds)}q", *bounds))
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> "InstrumentTriggers":
        """The value that was packed. Raises FormatError for bytes of another version."""
        if not data or data[0] != FORMAT:
            raise FormatError(f"seen triggers in format {data[:1].hex() or 'none'}, this version reads {FORMAT}")
        self = cls()
        _, self.run_floor, runs = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(runs):
            run, floor, intervals = _RUN.unpack_from(data, at)
            at += _RUN.size
            bounds = struct.unpack_from(f"<{2 * intervals}q", data, at)
            at += 16 * intervals
            triggers = self.runs[run] = TriggerSet(floor)
            triggers.lows, triggers.highs = list(bounds[::2]), list(bounds[1::2])
        return self
