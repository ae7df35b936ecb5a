"""When the next trigger may be sent. Knows no clock: the time is an argument, in seconds from any beginning.

Trigger k is due k / pace after the first, so that rounding and slow sending never add up to a drift. After a pause (the
broker was away, the process was stopped) it catches up, since event time is the scheduled time and every trigger is
wanted; but never in one burst: at most CATCH_UP times the pace, and what one call may owe is bounded by PAUSE_S.
"""

from dataclasses import dataclass, field

CATCH_UP = 10.0  # times the pace, while behind
TICK_S = 0.001  # a shorter wait only burns the processor
PAUSE_S = 0.1  # time that counts of a pause between two calls: a burst is at most CATCH_UP * PAUSE_S of triggers: 1 s


@dataclass
class Pacer:
    """How many triggers may have been sent by now.

    For example::

        pacer = Pacer(pace_hz=10.0, begin_s=time.monotonic())
        while sent < pacer.allowed(time.monotonic()): …
    """

    pace_hz: float  # 0: as fast as possible
    begin_s: float
    _last_s: float = field(init=False)
    _served_s: float = field(init=False, default=0.0)  # how much of the schedule may be sent

    def __post_init__(self) -> None:
        self._last_s = self.begin_s

    def allowed(self, now_s: float) -> int | None:
        """Count the triggers that may have been sent by now; None: no bound."""
        if self.pace_hz == 0:
            return None
        step_s = min(max(now_s - self._last_s, 0.0), PAUSE_S)
        self._last_s = now_s
        self._served_s = min(now_s - self.begin_s, self._served_s + CATCH_UP * step_s)
        return int(self._served_s * self.pace_hz) + 1

    def wait_s(self, sent: int, now_s: float) -> float:
        """How long to wait until trigger number `sent` (from 0) may be sent; then ask again."""
        if self.pace_hz == 0:
            return 0.0
        due_s = self.begin_s + sent / self.pace_hz - now_s
        caught_up_s = (sent / self.pace_hz - self._served_s) / CATCH_UP
        return min(max(due_s, caught_up_s, TICK_S), PAUSE_S / 2)

    def behind_s(self, now_s: float) -> float:
        """How far behind its schedule it is."""
        return 0.0 if self.pace_hz == 0 else max(now_s - self.begin_s - self._served_s, 0.0)
