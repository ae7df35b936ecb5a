"""The processors as a Faust app: which topics have agents, and how the process starts, fails and ends.

Importing this module does nothing: `app`, for `faust -A processors.app worker`, is made when it is first asked for.
What is lost when the process is killed at any moment: nothing. Whoever takes its partitions over begins at what it
committed, which is never ahead of what it had acknowledged (processors.worker).
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from mode import CrashingSupervisor

from processors.outbox import DeliveryError, Outbox
from processors.packing import DamagedBatchError, TimestampTypeError
from processors.partial import TooManyLogsError
from processors.plan import load_views
from processors.records import Core, LostDataError
from processors.restore_reader import BrokerTroubleError, RestoreReader
from processors.restores import MakeRestore, Restores, restore_core
from processors.setup import NotSetUpError
from processors.transport import Claim, Driver, PositionLostError
from processors.worker import Worker
from schemas.admin import Admin, AdminError, BrokerAwayError
from schemas.names import TooManyNamesError
from schemas.registry import Registry, RegistryAwayError, RegistryError
from schemas.settings import Settings
from schemas.status import Status
from schemas.stream import load_streams
from schemas.triggers import FormatError

log = logging.getLogger(__name__)

GROUP = "strobe-processors"
SESSION_S, HEARTBEAT_S = 10.0, 3.0  # a process that was killed keeps its partitions for the session
FETCH_BYTES_MAX = 4 * 2**20  # of a partition at a time
RESTORES_AT_A_TIME = 4
STATUS_EVERY_S = 1.0
LEAVE_S_MAX = 3.0  # after a failure, for others to get the partitions at once
STOP_S_MAX = 9.5  # an orderly end, then the process goes anyway
END_AGE_S_MAX = 10.0  # for the lag in the status
SILENCE_S_MAX = 5.0  # fetches are answered every few ms, also where there is nothing new
FAILED = 1

AWAY = (RegistryAwayError, BrokerAwayError, BrokerTroubleError)
# Errors whose message says all that there is to say; any other is a defect of ours and comes with its traceback.
SAID = (
    AdminError,
    DamagedBatchError,
    DeliveryError,
    FormatError,
    LostDataError,
    NotSetUpError,
    PositionLostError,
    RegistryError,
    TimestampTypeError,
    TooManyLogsError,
    TooManyNamesError,
)


class Cores(Protocol):
    """Where the cores come from: processors.restores.Restores."""

    @property
    def topics(self) -> list[str]: ...

    @property
    def source_topics(self) -> list[str]: ...

    def check(self) -> None: ...

    def make(
        self, topic: str, partition: int, committed: tuple[int, str] | None, log_start: int, log_end: int
    ) -> Any: ...


class App(Driver):
    """A Faust app with one agent for each topic, all of which feed one `Worker`."""

    def __init__(self, settings: Settings, cores: Cores, *, group: str = GROUP, **options: Any) -> None:
        self.settings, self.cores = settings, cores
        self.status = Status("processors")
        self.worker: Worker | None = None
        self._outbox: Outbox | None = None
        self._pool = ThreadPoolExecutor(RESTORES_AT_A_TIME, thread_name_prefix="restore")
        self._dropped_counts: dict[str, int] = {}
        self._ending = False
        self._silent = False
        fixed: dict[str, Any] = {
            "broker": ";".join(f"kafka://{server}" for server in settings.kafka.split(",")),
            "store": "memory://",
            "autodiscover": False,
            "broker_session_timeout": SESSION_S,
            "broker_heartbeat_interval": HEARTBEAT_S,
            "consumer_max_fetch_size": FETCH_BYTES_MAX,
            "consumer_auto_offset_reset": "earliest",  # of stock agents; packed topics are opened at their position
            "topic_disable_leader": True,
            "topic_allow_declare": False,
            "reply_create_topic": False,
            "web_enabled": False,
            "web_host": "127.0.0.1",
            "web_bind": "127.0.0.1",
            "worker_redirect_stdouts": False,
        }
        super().__init__(group, packed=cores.topics, owner=self, **(fixed | options))
        for topic in cores.topics:
            self._add_agent(topic)

    def _add_agent(self, topic: str) -> None:
        channel = self.topic(topic, key_type=None, value_type=None, key_serializer="raw", value_serializer="raw")

        async def take(stream: Any) -> None:
            async for event in stream.noack().events():
                event.ack()  # only releases Faust's own books: positions are committed by the worker
                if self.worker is not None:
                    await self.worker.take(event.value)

        # One agent a topic: with two, Faust would give each its own copy of an event.
        self.agent(channel, name=f"take.{topic}", supervisor_strategy=CrashingSupervisor)(take)

    # --- start ------------------------------------------------------------------------------------------------------

    async def on_first_start(self) -> None:
        """Faust would make folders for tables, of which there are none."""

    async def on_start(self) -> None:
        loop = asyncio.get_running_loop()
        await self._check()
        if self._ending:
            await asyncio.sleep(STOP_S_MAX)  # the process ends before
        self._outbox = Outbox({"bootstrap.servers": self.settings.kafka}, loop, self._fail_worker)
        self.worker = Worker(self, self._outbox, self._restore, self.failed, AWAY)
        self.add_future(self.worker.run())
        self.add_future(self._write_status())
        await super().on_start()

    async def _check(self, away: tuple[type[Exception], ...] = ()) -> None:
        """End the process where a topic or a schema is missing; a server that is `away` says nothing of that."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, self.cores.check)
        except away as error:
            log.warning("%s", error)
        except Exception as error:
            self.failed(error)

    async def _restore(self, claim: Claim) -> Core:
        committed = await self.committed(claim)  # before anything else is read
        left = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, partial(_restored, self.settings.kafka, self.cores.make, claim, committed, left.is_set)
            )
        finally:
            left.set()

    # --- the driver's calls -----------------------------------------------------------------------------------------

    def assigned(self, claims: list[Claim]) -> None:
        if self.worker is not None and not self._ending:
            self.worker.assigned(claims)
            # The group gives out what there is: a topic that was deleted would only be missing, in silence.
            self._checking = asyncio.ensure_future(self._check(AWAY))

    def revoked(self) -> None:
        if self.worker is not None:
            for drive in self.worker.drives.values():
                _add(self._dropped_counts, drive.core)
            self.worker.revoked()

    def _fail_worker(self, error: BaseException) -> None:
        if self.worker is not None:
            self.worker.fail(error)

    def failed(self, error: BaseException) -> None:
        """End the process, with one line that says why: no later work can be right."""
        if self._ending:
            return
        self._ending = True
        _exit_after(LEAVE_S_MAX + 1)
        if not isinstance(error, SAID):
            traceback.print_exception(error, file=sys.__stderr__)
        line = str(error) if isinstance(error, SAID) else f"defect: {error!r}"
        _say(line.replace("\n", " "))
        self.status.last_error = str(error)
        self.status.errors += 1
        self.status.write(self.settings.status_file)
        logging.disable(logging.CRITICAL)  # what Faust says while its consumer goes is of no use
        self._leaving = asyncio.ensure_future(self._leave_and_exit())

    async def _leave_and_exit(self) -> None:
        try:
            await asyncio.wait_for(self.leave(), LEAVE_S_MAX)
        finally:
            os._exit(FAILED)

    # --- end --------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Send and commit what was taken in, then stop. The process ends within STOP_S_MAX, whatever Faust does."""
        if not self._ending:
            self._ending = True
            _exit_after(STOP_S_MAX)
            if self.worker is not None and not await self.worker.drain():
                log.warning("stopped with readings taken in and not committed: they will be read again")
            await self._say_status()
        await super().stop()
        if self._outbox is not None:
            self._outbox.stop(timeout_s=0.5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- figures ----------------------------------------------------------------------------------------------------

    async def _write_status(self) -> None:
        while not self.should_stop:
            await asyncio.sleep(STATUS_EVERY_S)
            await self._say_status()

    async def _say_status(self) -> None:
        if self.worker is None or self._outbox is None:
            return
        counts, lag, newest_us = dict(self._dropped_counts), 0, 0
        for (topic, _), drive in self.worker.drives.items():
            _add(counts, drive.core)
            if topic in self.cores.source_topics:
                end = self.end(drive.claim, END_AGE_S_MAX)
                lag += max(0, (end or 0) - drive.core.position)
                newest_us = max(newest_us, getattr(drive.core, "newest_us", 0))
        status = self.status
        status.records, status.lag, status.counters = self.worker.records, lag, counts
        status.readings, status.rows = counts.get("readings", 0), self._outbox.acknowledged
        status.freshness_s = time.time() - newest_us / 1e6 if newest_us > 0 else None
        status.waiting_for = self.worker.waiting_for or self._silence()
        status.write(self.settings.status_file)

    def _silence(self) -> str | None:
        """The broker's, if it lasts; told in the log when it begins and when it ends."""
        silent = self.silence_s() > SILENCE_S_MAX
        if silent != self._silent:
            self._silent = silent
            log.warning("Kafka at %s %s", self.settings.kafka, "does not answer" if silent else "answers again")
        return f"Kafka at {self.settings.kafka}" if silent else None


def make_app(settings: Settings) -> App:
    """The app for the streams and views of the settings. Reads their files, and asks no server."""
    streams = load_streams(settings.streams)
    plans = load_views(settings.views, streams)
    return App(settings, Restores(settings, streams, plans, Admin(settings.kafka), Registry(settings.registry)))


def __getattr__(name: str) -> App:
    """Make `app` when Faust's command line asks for it."""
    if name != "app":
        raise AttributeError(name)
    made = make_app(Settings.from_environ(os.environ))
    globals()["app"] = made
    return made


def _restored(
    kafka: str, make: MakeRestore, claim: Claim, committed: tuple[int, str] | None, stopped: Callable[[], bool]
) -> Core:
    with RestoreReader(kafka) as reader:
        return restore_core(reader, make, claim.topic, claim.partition, committed, stopped)


def _add(counts: dict[str, int], core: Core) -> None:
    for name, count in getattr(core, "counters", {}).items():
        counts[name] = counts.get(name, 0) + count


def _exit_after(wait_s: float) -> None:
    """Make sure that the process ends: a Faust worker whose agent has raised may wait for ever."""

    def end() -> None:
        _say("the end took too long, leaving as it is")
        os._exit(FAILED)

    timer = threading.Timer(wait_s, end)
    timer.daemon = True
    timer.start()


def _say(line: str) -> None:
    """One line on the process's own standard error, which Faust's command line redirects to its log."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"processors: {line}\n")
        sys.__stderr__.flush()
