"""What a running stage says of itself: one small JSON file, replaced every second, read by `./strobe`."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Status:
    """Figures of one stage since its start. Counters only grow; a restart begins anew with another `pid`."""

    stage: str  # "producer", "processors", "raw-sink", "view-sink"
    pid: int = field(default_factory=os.getpid)
    records: int = 0  # records sent or taken in
    readings: int = 0  # readings sent or taken in
    rows: int = 0  # rows written: partials and view rows, raw rows, view rows
    errors: int = 0  # delivery failures, dead letters, retries
    lag: int = 0  # records that wait in Kafka
    freshness_s: float | None = None  # now minus the event time of the newest reading handled
    waiting_for: str | None = None  # what outside the stage waits for, if anything
    last_error: str | None = None
    counters: dict[str, int] = field(default_factory=dict)  # further figures by name
    updated: float = 0.0  # Unix time of writing, s

    def write(self, path: Path | None) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        if path is None:
            return
        self.updated = time.time()
        temporary = path.with_suffix(f".{self.pid}.tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def read_status(path: Path) -> Status | None:
    """The last figures written to `path`, or None where there are none yet."""
    try:
        return Status(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
