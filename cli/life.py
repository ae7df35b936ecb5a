"""The life of a supervised stage as a state machine. Knows neither processes nor the clock: both are told to it.

STOPPED ── start ──► STARTING ── alive ──► RUNNING
                        ▲  │                  │
                        │  └──── exited ──────┤
                       due                    ▼
                        └───────────── BACKING_OFF ── stop ──► STOPPED
STARTING, RUNNING ── stop ──► STOPPING ── exited ──► STOPPED
"""

from enum import StrEnum
from typing import NamedTuple

BACK_OFF_FIRST_S = 0.5  # a stage that died by accident is back before anyone looks
BACK_OFF_S_MAX = 30.0  # a stage that cannot run costs a start every half minute
STEADY_S = 60.0  # a stage that ran this long has recovered: its next death begins with the first back-off again
STOP_S_MAX = 20.0  # from SIGTERM to SIGKILL; stages promise to drain and leave within 10 s


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    STOPPING = "stopping"


class Action(StrEnum):
    """What the shell is to do with the process."""

    START = "start"
    TERMINATE = "terminate"
    KILL = "kill"


class Life(NamedTuple):
    """A value: every event makes a new one."""

    state: State = State.STOPPED
    since_s: float = 0.0  # when this state began
    due_s: float = float("inf")  # when something is to happen by itself: the next start, or the kill
    restarts: int = 0  # starts after a death, since the supervisor began
    deaths: int = 0  # deaths in a row; what the back-off grows with
    code: int | None = None  # of the last exit; negative: the signal

    def start(self, now_s: float) -> tuple["Life", Action | None]:
        if self.state is not State.STOPPED:
            return self, None
        return self._replace(state=State.STARTING, since_s=now_s, due_s=float("inf")), Action.START

    def alive(self, now_s: float) -> "Life":
        """The stage has written its first figures."""
        return self._replace(state=State.RUNNING, since_s=now_s) if self.state is State.STARTING else self

    def exited(self, now_s: float, code: int) -> "Life":
        """The process is gone, asked for or not."""
        if self.state is State.STOPPING:
            return self._replace(state=State.STOPPED, since_s=now_s, due_s=float("inf"), code=code)
        if self.state not in (State.STARTING, State.RUNNING):
            return self
        steady = self.state is State.RUNNING and now_s - self.since_s >= STEADY_S
        deaths = 1 if steady else self.deaths + 1
        due_s = now_s + back_off_s(deaths)
        return self._replace(state=State.BACKING_OFF, since_s=now_s, due_s=due_s, deaths=deaths, code=code)

    def stop(self, now_s: float) -> tuple["Life", Action | None]:
        if self.state in (State.STARTING, State.RUNNING):
            return self._replace(state=State.STOPPING, since_s=now_s, due_s=now_s + STOP_S_MAX), Action.TERMINATE
        if self.state is State.BACKING_OFF:
            return self._replace(state=State.STOPPED, since_s=now_s, due_s=float("inf")), None
        return self, None

    def tick(self, now_s: float) -> tuple["Life", Action | None]:
        """What is due by now."""
        if now_s < self.due_s:
            return self, None
        if self.state is State.BACKING_OFF:
            restarted = self._replace(state=State.STARTING, since_s=now_s, due_s=float("inf"))
            return restarted._replace(restarts=self.restarts + 1), Action.START
        return self._replace(due_s=now_s + STOP_S_MAX), Action.KILL


def back_off_s(deaths: int) -> float:
    """Twice as long after every death in a row, up to a bound."""
    return float(min(BACK_OFF_FIRST_S * 2.0 ** min(deaths - 1, 30), BACK_OFF_S_MAX))
