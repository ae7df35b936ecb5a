"""What a sink says of itself every second: the status file, and a row per partition behind `stage_health`."""

import logging
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name
from psycopg2.extras import execute_values

from schemas.status import Status
from sinks.consumer import Place
from sinks.timescale import DatabaseAwayError, transaction

log = logging.getLogger(__name__)

REPORT_S = 1.0


@dataclass(slots=True)
class Progress:
    """One partition, since it was taken."""

    next: int
    records: int = 0
    freshness_s: float | None = None  # age of the newest record when it was committed


@dataclass(slots=True)
class Report:
    """Figures of a sink, written when they are due.

    For example::

        report = Report(Status("raw-sink"), settings.status_file)
        report.progress[place] = Progress(offset)
        report.write(connection, consumer.ends)  # as often as one likes: at most once a second it does something
    """

    status: Status
    file: Path | None
    progress: dict[Place, Progress] = field(default_factory=dict)
    _before: dict[Place, int] = field(default_factory=dict)
    _at_s: float = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() - self._at_s >= REPORT_S

    def trouble(self, trouble: Exception) -> None:
        """Something outside is away: what is waited for, and since when."""
        self.status.waiting_for = str(trouble)
        self.status.last_error = f"{time.strftime('%H:%M:%S')} {trouble}"
        self.status.counters["retries"] = self.status.counters.get("retries", 0) + 1

    def write(self, connection: Connection | None, ends: dict[Place, int], *, last: bool = False) -> None:
        """Trouble here is never the pipeline's trouble: it is logged, and the next second tries again."""
        if not (self.due or last):
            return
        now_s = time.monotonic()
        rows = self.rows(ends, now_s - self._at_s)
        self._at_s = now_s
        self.status.lag = sum(max(0, end - following) for _, _, following, end, *_ in rows)
        try:
            self.status.write(self.file)
        except OSError as error:
            log.warning("status cannot be written to %s: %s", self.file, error.strerror)
        if connection is None or connection.closed or not rows:
            return
        try:
            with transaction(connection) as cursor:
                execute_values(cursor, _KEEP, [(self.status.stage, _HOST, self.status.pid, *row) for row in rows])
        except (DatabaseAwayError, psycopg2.Error) as error:
            log.info("stage_health was not written: %s", error)

    def rows(
        self, ends: dict[Place, int], span_s: float
    ) -> list[tuple[str, int, int, int, int, float, float | None, str | None]]:
        """(topic, partition, next, log_end, records, records_per_s, freshness_s, waiting_for) of each partition."""
        rows = []
        for place, one in sorted(self.progress.items()):
            rate = max(0, one.records - self._before.get(place, 0)) / span_s
            end = max(ends.get(place, one.next), one.next)
            rows.append((*place, one.next, end, one.records, rate, one.freshness_s, self.status.waiting_for))
        self._before = {place: one.records for place, one in self.progress.items()}
        return rows


_HOST = socket.gethostname() or str(os.getpid())
_KEEP = (
    "INSERT INTO strobe.stages AS t (stage, host, pid, topic, partition, next, log_end, records, records_per_s,"
    " freshness_s, waiting_for) VALUES %s ON CONFLICT (stage, topic, partition) DO UPDATE SET"
    " host = excluded.host, pid = excluded.pid, next = excluded.next, log_end = excluded.log_end,"
    " records = excluded.records, records_per_s = excluded.records_per_s, freshness_s = excluded.freshness_s,"
    " waiting_for = excluded.waiting_for, updated_at = now()"
)
