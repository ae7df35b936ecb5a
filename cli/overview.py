"""What the supervisor knows of everything at one moment: the one value behind the screen, `status` and the JSON.

Pure: made from figures, written and read as JSON, never asked from a server.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from schemas.status import Status

RATE_SPAN_S = 5.0  # a rate is taken over this long: short enough to follow, long enough to stand still
STALE_S = 5.0  # figures older than this are not shown as if they were new; stages write every second


@dataclass(frozen=True)
class StageView:
    """One line of the screen. None: not known (yet)."""

    stage: str
    state: str
    pid: int | None = None
    restarts: int = 0
    rate_hz: float | None = None  # readings a second; rows a second for the view sink
    readings: int | None = None
    rows: int | None = None
    lag: int | None = None  # records that wait in Kafka
    freshness_s: float | None = None
    errors: int | None = None
    note: str = ""  # what it waits for, or its last error or last words
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Overview:
    """Everything, at `at` (Unix time, s)."""

    pid: int
    phase: str  # "starting", "running", "draining", "stopping", "stopped", "failed"
    at: float
    began: float
    home: str
    kafka: str = ""
    registry: str = ""
    database: str = ""  # without a password
    stages: tuple[StageView, ...] = ()
    message: str = ""

    @property
    def sound(self) -> bool:
        """Every stage runs."""
        return self.phase == "running" and all(stage.state == "running" for stage in self.stages)

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        temporary = path.with_suffix(f".{self.pid}.tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def read_overview(path: Path) -> Overview | None:
    """The last one written, or None where there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        stages = tuple(StageView(**stage) for stage in found.pop("stages"))
        return Overview(**found, stages=stages)
    except (OSError, ValueError, TypeError, KeyError):
        return None


class Rate:
    """Readings a second from counters that only grow, over the last RATE_SPAN_S."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float, int]] = deque()  # pid, Unix time of writing, count

    def add(self, status: Status | None) -> float | None:
        if status is None:
            self._samples.clear()
            return None
        sample = (status.pid, status.updated, handled(status))
        if self._samples and self._samples[-1][0] != status.pid:
            self._samples.clear()  # counters of another process
        if not self._samples or self._samples[-1][1] < status.updated:
            self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1][1] <= status.updated - RATE_SPAN_S:
            self._samples.popleft()
        (_, began, before), (_, ended, after) = self._samples[0], self._samples[-1]
        return (after - before) / (ended - began) if ended > began else None


def handled(status: Status) -> int:
    """What a stage is measured by: readings, or rows where it never sees a reading."""
    return status.readings or status.rows


def stage_view(
    stage: str,
    state: str,
    status: Status | None,
    rate_hz: float | None,
    now: float,
    *,
    pid: int | None = None,
    restarts: int = 0,
    last_words: str = "",
) -> StageView:
    """A line from what the supervisor sees and what the stage says."""
    if status is None:
        return StageView(stage, state, pid, restarts, note=last_words)
    stale_s = now - status.updated
    note = f"silent for {stale_s:.0f} s" if stale_s > STALE_S and state == "running" else ""
    waiting = f"waits for {status.waiting_for}" if status.waiting_for else ""
    return StageView(
        stage=stage,
        state=state,
        pid=pid,
        restarts=restarts,
        rate_hz=rate_hz,
        readings=status.readings,
        rows=status.rows,
        lag=status.lag,
        freshness_s=status.freshness_s,
        errors=status.errors,
        note=last_words or note or waiting or status.last_error or "",
        counters=dict(status.counters),
    )


def as_mapping(overview: Overview) -> Mapping[str, Any]:
    return asdict(overview)
