"""Watches a view as an operator's screen would, 50 times a second, and notes when its rows grow: a thread."""

import threading
import time

import psycopg2

from cli.freshness import Growth

VIEW, STREAM = "bpm_1s", "bpm"  # the view that a control room looks at, and the stream below it
VIEW_US = 1_000_000
POLL_S = 0.02
RETRY_S = 0.5  # while the view does not exist yet, or the database is away
LOOK_BACK_US_MAX = 120_000_000  # a view that stands still is watched from where it stands, but no further
MARGIN_US = 2_000_000  # windows of one instrument may close a little out of order

QUERY = """PREPARE look (bigint) AS
SELECT instrument_id::text, (extract(epoch FROM window_start) * 1000000)::bigint, count, closed
FROM bpm_1s WHERE window_start >= TIMESTAMPTZ '1970-01-01 00:00:00+00' + $1 * INTERVAL '1 microsecond'"""


class FreshnessWatch:
    """For example::

    watch = FreshnessWatch(addresses.databases["reader"])
    watch.start()
    …
    watch.stop()
    watch.growth.sightings
    """

    def __init__(self, url: str, instruments: int = 1) -> None:
        self.growth = Growth()
        self.since_us: int | None = None  # when every instrument had a row of this run: from there on ages count
        self.looks = 0
        self._url = url
        self._instruments = instruments
        self._began_us = time.time_ns() // 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="freshness")

    def start(self) -> None:
        self._began_us = time.time_ns() // 1000
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self._look_on()
            except psycopg2.Error:  # no such view yet, or the database restarts
                self._stop.wait(RETRY_S)

    def _look_on(self) -> None:
        connection = psycopg2.connect(self._url, connect_timeout=5)
        try:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(QUERY)
            visible: set[str] = set()
            closed_us: dict[str, int] = {}  # begin of the newest closed window of each instrument
            while not self._stop.is_set():
                began_s = time.monotonic()
                now_us = time.time_ns() // 1000
                low_us = min(closed_us.values(), default=self._began_us) - MARGIN_US
                cursor.execute("EXECUTE look (%s)", (max(low_us, now_us - LOOK_BACK_US_MAX),))
                found: list[tuple[str, int, int, bool]] = cursor.fetchall()
                seen_us = time.time_ns() // 1000
                rows = [((instrument, start), count) for instrument, start, count, _ in found]
                self.growth.look(rows, seen_us)
                if self.since_us is None:
                    visible |= {instrument for instrument, start, _, _ in found if start >= self._began_us - VIEW_US}
                    if len(visible) >= self._instruments:
                        self.since_us = seen_us
                self.looks += 1
                for instrument, start, _, closed in found:
                    if closed and start > closed_us.get(instrument, 0):
                        closed_us[instrument] = start
                self._stop.wait(max(0.0, POLL_S - (time.monotonic() - began_s)))
        finally:
            connection.close()
