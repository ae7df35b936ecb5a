"""Drives the cores: restores them when partitions come, feeds them, sends what they publish, commits what is safe.

A core (processors.records) is a pure state of one partition. Around it, and in this order, happens what makes it
exact: its flush is sent; all of it is acknowledged; the flush's position is committed. A revocation drops the core
with everything in it: late acknowledgements find it gone. Knows neither Faust nor Kafka's clients: fetching and
committing (`Positions`), sending (`Outbox`) and restoring (`restore`) are passed in. Runs on one event loop.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from processors.packing import Packed, raw_batch
from processors.records import Checkpoint, Core, Flush, LostDataError, Message
from schemas.batch import RawBatch
from schemas.registry import RegistryAwayError

log = logging.getLogger(__name__)

TICK_S = 0.05  # how often what is due is looked for
COMMIT_EVERY_S = 0.1  # all that is safe by then, in one request
EMIT_EVERY_S = 0.25  # changes wait no longer than this, also while more input waits
HEARTBEAT_EVERY_S = 1.0
IDLE_AFTER_S = 5.0  # a partition whose event time stands still so long holds no window open any more
END_AGE_S_MAX = 2.0  # an older word of the log's end does not say that we are at it
UNSENT_S_MAX = 5.0  # a flush that waits longer for the broker holds up new input
AWAY_WAIT_S = 1.0
DRAIN_S_MAX = 6.0


class Place(Protocol):
    """An assignment of a partition: processors.transport.Claim."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def epoch(self) -> int: ...


class Positions(Protocol):
    """What is used of processors.transport.Driver."""

    async def open(self, claim: Any, position: int) -> None: ...

    async def commit_positions(self, positions: Mapping[Any, tuple[int, str]]) -> bool: ...

    def end(self, claim: Any, age_s_max: float) -> int | None: ...


class Sender(Protocol):
    """What is used of processors.outbox.Outbox."""

    def send(
        self, messages: list[Message], done: Callable[[], None], ends: dict[tuple[str, int], int] | None = None
    ) -> None: ...


@dataclass(eq=False)
class Drive:
    """A core at work, and how far its flushes are."""

    claim: Any
    core: Core
    changed_s: float | None = None  # when the first change came that no flush holds
    in_flight: Flush | None = None
    sent_s: float = 0.0
    checkpoint: Checkpoint | None = None  # acknowledged, not committed
    saying: int = 0  # sends after a commit that are not acknowledged
    moved_s: float = field(default_factory=time.monotonic)  # when event time went on last
    newest_us: int | None = None  # the core's event time then
    heartbeat_s: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether all that was taken in is acknowledged and committed."""
        return self.changed_s is None and self.in_flight is None and self.checkpoint is None


class Worker:
    """All cores of this process. Call `assigned`, `revoked` and `take` from the driver, `run` once.

    `restore` makes the core of a claim; it may take long, and is repeated for as long as it raises one of `away`.
    """

    def __init__(
        self,
        positions: Positions,
        sender: Sender,
        restore: Callable[[Any], Awaitable[Core]],
        failed: Callable[[BaseException], None],
        away: tuple[type[Exception], ...] = (RegistryAwayError,),
    ) -> None:
        self.drives: dict[tuple[str, int], Drive] = {}
        self.waiting_for: str | None = None
        self.dropped = 0  # cores, at revocations
        self.records = 0
        self._positions, self._sender, self._restore = positions, sender, restore
        self._failed, self._away = failed, away
        self._restoring: dict[Any, asyncio.Task[None]] = {}
        self._draining = False
        self._broken = False

    # --- partitions come and go -------------------------------------------------------------------------------------

    def assigned(self, claims: list[Any]) -> None:
        for claim in claims:
            self._restoring[claim] = asyncio.ensure_future(self._begin(claim))

    def revoked(self) -> None:
        """Drop everything: what was not committed is done again, by whoever gets the partition."""
        for task in self._restoring.values():
            task.cancel()
        self._restoring.clear()
        self.dropped += len(self.drives)
        self.drives.clear()

    async def _begin(self, claim: Place) -> None:
        try:
            core = await self._patiently(lambda: self._restore(claim))
            drive = self.drives[claim.topic, claim.partition] = Drive(claim, core)
            await self._settle(drive)
            del self._restoring[claim]
            log.debug("%s/%s: restored, from offset %d", claim.topic, claim.partition, core.position)
            if not self._restoring:
                topics = Counter(topic for topic, _ in self.drives)
                log.info("restored %s", ", ".join(f"{count} of {topic}" for topic, count in topics.items()))
            await self._positions.open(claim, core.position)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.fail(error)

    async def _settle(self, drive: Drive) -> None:
        """A core that has something to commit from the start, such as the topic's id, does so before any input."""
        drive.changed_s = time.monotonic() - EMIT_EVERY_S
        self._pump(drive)
        while self._current(drive) and not drive.settled:  # noqa: ASYNC110 - `run` commits it, or a revocation ends it
            await asyncio.sleep(TICK_S)

    # --- input ------------------------------------------------------------------------------------------------------

    async def take(self, packed: Packed) -> None:
        """Let the core of its partition take in a fetch. Of an earlier assignment nothing is taken."""
        drive = self.drives.get((packed.topic, packed.partition))
        if drive is None or drive.claim.epoch != packed.epoch or self._draining:
            return
        try:
            await self._room(drive)
            raw = raw_batch(packed.topic, packed.partition, packed.first, packed.last, packed.data)
            if self._current(drive):
                _check_follows(raw, drive.core.position)
            await self._patiently(lambda: self._take(drive, raw))
        except Exception as error:
            self.fail(error)

    async def _take(self, drive: Drive, raw: RawBatch) -> None:
        if not self._current(drive) or self._draining:
            return
        drive.core.take(raw)
        self.records += len(raw.offsets)
        now = time.monotonic()
        newest_us = getattr(drive.core, "newest_us", None)
        if newest_us != drive.newest_us:
            drive.newest_us, drive.moved_s = newest_us, now
        drive.changed_s = drive.changed_s or now
        self._pump(drive)

    async def _room(self, drive: Drive) -> None:
        # Not one event is waited for, but the end of any of three.
        while drive.in_flight and time.monotonic() - drive.sent_s > UNSENT_S_MAX and self._current(drive):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)

    async def _patiently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat for as long as something outside is away."""
        while True:
            try:
                done = await work()
            except self._away as error:
                if self.waiting_for is None:
                    log.warning("waiting: %s", error)
                self.waiting_for = str(error)
                await asyncio.sleep(AWAY_WAIT_S)
            else:
                self.waiting_for = None
                return done

    # --- output -----------------------------------------------------------------------------------------------------

    def _pump(self, drive: Drive) -> None:
        """Send the next flush, if it is time: at once when no more input waits, else when the changes are old."""
        if drive.in_flight is not None or drive.changed_s is None:
            return
        if not self._caught_up(drive) and time.monotonic() - drive.changed_s < EMIT_EVERY_S and not self._draining:
            return
        flush = drive.core.flush()
        drive.changed_s = None
        if flush is not None:
            drive.in_flight, drive.sent_s = flush, time.monotonic()
            self._sender.send(flush.messages, lambda: self._acknowledged(drive, flush), flush.ends)

    def _acknowledged(self, drive: Drive, flush: Flush) -> None:
        if not self._current(drive):
            return
        try:
            drive.checkpoint = drive.core.acknowledged(flush)
            drive.in_flight = None
            self._pump(drive)
        except Exception as error:
            self.fail(error)

    async def _commit(self) -> None:
        """Commit every checkpoint in one request, and send what the cores say after it."""
        due = {drive: drive.checkpoint for drive in self.drives.values() if drive.checkpoint is not None}
        positions = {drive.claim: (checkpoint.position, checkpoint.metadata) for drive, checkpoint in due.items()}
        if not due or not await self._positions.commit_positions(positions):
            return
        for drive, checkpoint in due.items():
            if not self._current(drive):
                continue
            if drive.checkpoint is checkpoint:
                drive.checkpoint = None
            self._say(drive, drive.core.committed(checkpoint))

    def _say(self, drive: Drive, messages: list[Message]) -> None:
        def said() -> None:
            drive.saying -= 1

        if messages:
            drive.saying += 1
            self._sender.send(messages, said)

    def _beat(self, drive: Drive, now: float) -> None:
        """Say how far the partition has come, and that it is idle if its event time has stood still for a while.

        Not the want of input makes it idle: duplicates, dead letters and a clock that stands still would hold every
        window of every instrument open.
        """
        due = now - drive.heartbeat_s >= HEARTBEAT_EVERY_S
        if due and drive.saying == 0 and drive.settled and self._caught_up(drive):
            drive.heartbeat_s = now
            self._say(drive, drive.core.heartbeat(idle=now - drive.moved_s >= IDLE_AFTER_S))

    # --- the clock --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is due, for ever. Returns only when cancelled."""
        committed_s = 0.0
        while not self._broken:
            try:
                now = time.monotonic()
                for drive in list(self.drives.values()):
                    self._pump(drive)
                    self._beat(drive, now)
                if now - committed_s >= COMMIT_EVERY_S:
                    committed_s = now
                    await self._commit()
            except Exception as error:
                self.fail(error)
            await asyncio.sleep(TICK_S)

    async def drain(self) -> bool:
        """Take nothing more, send and commit what was taken; False if that did not succeed in time."""
        self._draining = True
        for task in self._restoring.values():
            task.cancel()
        until = time.monotonic() + DRAIN_S_MAX
        while not self._broken and time.monotonic() < until:
            if all(drive.settled and drive.saying == 0 for drive in self.drives.values()):
                return True
            await asyncio.sleep(TICK_S)  # `run` does the work
        return False

    def fail(self, error: BaseException) -> None:
        """Stop all work at once; the first reason counts."""
        if not self._broken:
            self._broken = True
            self.revoked()
            self._failed(error)

    def _caught_up(self, drive: Drive) -> bool:
        end = self._positions.end(drive.claim, END_AGE_S_MAX)
        return end is not None and drive.core.position >= end

    def _current(self, drive: Drive) -> bool:
        return self.drives.get((drive.claim.topic, drive.claim.partition)) is drive


def _check_follows(raw: RawBatch, position: int) -> None:
    if raw.first != position:
        raise LostDataError(
            f"{raw.topic}/{raw.partition}: records from offset {position} were wanted, and those from {raw.first} came:"
            " what lies between is lost, or this is a defect; restart the worker"
        )
