"""Watches a view as an operator's screen would, 50 times a second, and notes when its rows grow: a thread."""

import threading
import time

import psycopg2

from cli.freshness import Growth

VIEW, STREAM = "bpm_1s", "bpm"  # the view that a control room looks at, and the stream below it
VIEW_US = 1_000_000
POLL_S = 0.02
RETRY_S = 0.5  # while the view does not exist yet, or the database is away
LOOK_BACK_US = 5_000_000  # windows stay open for about 3 s; a view that stands still is watched from where it stands
LOOK_BACK_US_MAX = 120_000_000

QUERY = """PREPARE look (bigint) AS
SELECT instrument_id::text, (extract(epoch FROM window_start) * 1000000)::bigint, count
FROM bpm_1s WHERE window_start >= TIMESTAMPTZ '1970-01-01 00:00:00+00' + $1 * INTERVAL '1 microsecond'"""


class FreshnessWatch:
    """For example::

    watch = FreshnessWatch(addresses.databases["reader"])
    watch.start()
    …
    watch.stop()
    watch.growth.sightings
    """

    def __init__(self, url: str) -> None:
        self.growth = Growth()
        self.since_us: int | None = None  # from the first look on: what was visible before was not seen growing
        self.looks = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="freshness")

    def start(self) -> None:
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
            newest_us = time.time_ns() // 1000
            while not self._stop.is_set():
                began_s = time.monotonic()
                now_us = time.time_ns() // 1000
                cursor.execute("EXECUTE look (%s)", (max(newest_us - LOOK_BACK_US, now_us - LOOK_BACK_US_MAX),))
                found: list[tuple[str, int, int]] = cursor.fetchall()
                seen_us = time.time_ns() // 1000
                rows = [((instrument, start), count) for instrument, start, count in found]
                self.growth.look(rows, seen_us)
                if self.since_us is None:
                    self.since_us = seen_us
                self.looks += 1
                newest_us = max((start for _, start, _ in found), default=newest_us)
                self._stop.wait(max(0.0, POLL_S - (time.monotonic() - began_s)))
        finally:
            connection.close()
