"""The producer as a stage: sends steps of a source at their pace, reports every second, stops when asked."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np

from producers.crates import Crates
from producers.pacing import Pacer
from producers.publisher import Publisher, PublishError, StoppedError
from producers.ring import BLOCK_TRIGGERS
from producers.rows import sliced
from schemas.encoder import Outgoing
from schemas.settings import Settings
from schemas.status import Status

log = logging.getLogger(__name__)

REPORT_S = 1.0
HELD_BACK_SLOTS = 8192  # looked through at once for what is still to be sent after the last trigger
PART_RECORDS = 2000  # of a file, sent between two looks at the clock when there is no pace


class Stage:
    """Sends and counts.

    For example::

        stage = Stage(settings, publisher, stopping)
        with stage:
            stage.send_ring(crates, pace_hz=10.0, triggers=None)
    """

    def __init__(self, settings: Settings, publisher: Publisher, stopping: threading.Event) -> None:
        self.publisher = publisher
        self.stopping = stopping
        self.status = Status("producer")
        self.counts: Counter[str] = Counter()
        self.readings = 0
        self.newest_us: int | None = None
        self.outstanding = 0  # at the end
        self._file = settings.status_file
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._reporter.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the broker's answers, write the last figures."""
        self.outstanding = self.publisher.flush()
        self._ended.set()
        self._reporter.join()
        self._write()

    def send_ring(self, crates: Crates, pace_hz: float, triggers: int | None) -> None:
        """Send the ring's triggers at their pace; then, at once, what its faults still hold back."""
        self.publisher.connect()
        pacer = Pacer(pace_hz, time.monotonic())
        sent = 0
        while not self.stopping.is_set() and (triggers is None or sent < triggers):
            allowed = self._allowed(pacer)
            stop = min(sent + BLOCK_TRIGGERS, allowed if allowed is not None else sent + BLOCK_TRIGGERS)
            if triggers is not None:
                stop = min(stop, triggers)
            if stop > sent:
                self._send_slots(crates, sent, stop, triggers)
                sent = stop
                self.counts["triggers"] = sent
            else:
                self.publisher.poll()
                self.stopping.wait(pacer.wait_s(sent, time.monotonic()))
        # Kept, not dropped, when asked to stop: a trigger that was due is sent, late or not.
        for first in range(sent, sent + crates.reach_slots, HELD_BACK_SLOTS):
            self._send_slots(crates, first, first + HELD_BACK_SLOTS, sent)

    def send_file(
        self, parts: Iterator[Outgoing], pace: float, advance: Callable[[int], None] = lambda _readings: None
    ) -> None:
        """Send records at `pace` times their own pace (0: as fast as possible); tell `advance` what was sent."""
        self.publisher.connect()
        pacer: Pacer | None = None
        begin_us = 0
        for part in parts:
            if pacer is None:
                begin_us = int(part.time_us[0])
                pacer = Pacer(pace * 1e6, time.monotonic())  # a step of its schedule is a µs of event time
            due_us = np.maximum.accumulate(part.time_us) - begin_us
            sent = 0
            while sent < len(due_us):
                if self.stopping.is_set():
                    raise StoppedError("stopped before the end of the file")
                allowed = self._allowed(pacer)
                stop = min(sent + PART_RECORDS, len(due_us))
                if allowed is not None:
                    stop = min(stop, int(np.searchsorted(due_us, allowed, "left")))
                if stop > sent:
                    piece = sliced(part, sent, stop)
                    self.publisher.send(piece)
                    self._count(piece)
                    advance(int(piece.counts.sum()))
                    sent = stop
                else:
                    self.publisher.poll()
                    self.stopping.wait(pacer.wait_s(int(due_us[sent]), time.monotonic()))

    def check(self) -> None:
        """Make sure that Kafka has everything that was sent."""
        lost = self.outstanding + self.publisher.failed
        if lost:
            raise PublishError(
                f"{lost} records were not acknowledged by Kafka at {self.publisher.servers}"
                f" ({self.publisher.last_error or self.publisher.trouble or 'no answer'}); they must be sent again"
            )

    def _allowed(self, pacer: Pacer) -> int | None:
        now_s = time.monotonic()
        allowed = pacer.allowed(now_s)
        self.counts["behind_ms"] = int(pacer.behind_s(now_s) * 1000)
        return allowed

    def _send_slots(self, crates: Crates, first: int, stop: int, end: int | None) -> None:
        step = crates.step(first, stop, end)
        if len(step.outgoing.source):
            payloads = self.publisher.encode(step.outgoing)
            self.publisher.send_payloads(step.outgoing.source, step.spoiled(payloads))
            self._count(step.outgoing)
        self.counts.update(step.counts)

    def _count(self, outgoing: Outgoing) -> None:
        self.counts["sent"] += len(outgoing.source)
        self.readings += int(outgoing.counts.sum())
        self.newest_us = max(self.newest_us or 0, int(outgoing.time_us.max()))

    def _report(self) -> None:
        while not self._ended.wait(REPORT_S):
            self._write()

    def _write(self) -> None:
        """Bring the figures up to date and write them; a full disk must not stop the instruments."""
        publisher, status = self.publisher, self.status
        status.records = publisher.acknowledged
        status.readings = self.readings
        status.errors = publisher.failed
        status.lag = publisher.outstanding
        status.freshness_s = None if self.newest_us is None else time.time() - self.newest_us * 1e-6
        status.waiting_for = publisher.trouble
        status.last_error = publisher.last_error
        status.counters = {**self.counts, "acknowledged": publisher.acknowledged, "failed": publisher.failed}
        try:
            status.write(self._file)
        except OSError as error:
            log.warning("status cannot be written to %s: %s", self._file, error.strerror)
