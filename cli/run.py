"""One run of the pipeline, from the servers' start to their stop: the order of things, and nothing else."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Self

from cli.child import Child
from cli.failure import FailedError
from cli.home import Home
from cli.life import STOP_S_MAX, State
from cli.overview import Overview, Rate, StageView, stage_view
from cli.pipeline import PRODUCER, ROOT, STOP_ORDER, OneShot
from cli.screen import Screen
from cli.servers import Addresses, Servers, without_password
from cli.supervisor import TICK_S, Stage, Supervisor
from deploy.local.leash import Leash

SHOW_S = 0.5  # between two looks of the screen
TAKERS_S_MAX = 30.0  # then the producer starts all the same: Kafka keeps what the others will take later
ONE_SHOT_S_MAX = 180.0  # a setup job: servers answer already; the first run compiles


class InterruptedRunError(FailedError):
    """Asked to stop before the work was done."""


class Run:
    """Owns what runs. Every wait keeps the stages alive and the screen fresh, and ends early when asked to stop.

    For example::

        with Run(home, servers, screen) as run:
            run.start_servers()
            run.one_shots(jobs)
            run.start_stages(stages)
            run.wait(lambda: False)      # until Ctrl-C
            run.stop_stage("producer")
    """

    def __init__(self, home: Home, servers: Servers, screen: Screen) -> None:
        self.home = home
        self.screen = screen
        self.phase = "starting"
        self.message = ""
        self.asked = 0  # how often we were asked to stop
        self.supervisor = Supervisor((), say=self.screen.say)
        self._servers = servers
        self._addresses: Addresses | None = None
        self._leash = Leash()
        self._rates: dict[str, Rate] = {}
        self._shown_s = 0.0
        self._began = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Whatever happened: no stage stays without a supervisor, no server without stages."""
        self.supervisor.kill()
        self._leash.drop()
        self.phase = "failed" if error[0] else "stopping"
        self.show(at_once=True)
        self._servers.stop(self.screen.progress)
        self.phase = "failed" if error[0] else "stopped"
        self.show(at_once=True)

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            raise FailedError("the servers are not started")
        return self._addresses

    def start_servers(self) -> None:
        self._servers.start(self.screen.progress)
        self._addresses = self._servers.addresses()
        self._addresses.write(self.home.addresses)

    def one_shots(self, jobs: Sequence[OneShot]) -> None:
        """Each to its end; one that fails ends the run with its own last words."""
        for job in jobs:
            began_s = time.monotonic()
            child = Child(job.command, job.environ, self.home.log_file("setup"), ROOT)
            self._leash.hold(child.pid, job.command[2], signal.SIGTERM)
            while (code := child.wait(TICK_S)) is None:
                self.show()
                if self.asked or time.monotonic() - began_s > ONE_SHOT_S_MAX:
                    child.kill()
                    child.wait(STOP_S_MAX)
                    self.check_asked()
                    raise FailedError(f"{job.name} did not end within {ONE_SHOT_S_MAX:.0f} s; see ./strobe logs setup")
            if code != 0:
                last = next((line for line in reversed(child.tail) if line.strip()), f"exit code {code}")
                raise FailedError(f"{job.name} failed: {last}")
            self.screen.say(f"{job.name}: done in {time.monotonic() - began_s:.1f} s")

    def start_stages(self, stages: Sequence[Stage]) -> None:
        """The producer last: what is sent before anyone listens is not lost, but it is old when it is seen."""
        self.supervisor = Supervisor(stages, say=self.screen.say, started=self._hold)
        self._rates = {stage.name: Rate() for stage in stages}
        takers = [name for name in self.supervisor.stages if name != PRODUCER]
        self.supervisor.start(takers)
        self.message = "the stages start; the producer follows"
        self.wait(lambda: all(self.runs(name) for name in takers), TAKERS_S_MAX)
        self.message = ""
        self.supervisor.start()
        self.phase = "running"

    def runs(self, name: str) -> bool:
        """Says so itself, and waits for nothing."""
        status = self.supervisor.status(name)
        running = self.supervisor.lives[name].state is State.RUNNING
        return running and status is not None and status.waiting_for is None

    def wait(self, reached: Callable[[], bool], limit_s: float = float("inf"), *, heed: bool = True) -> bool:
        """Until `reached`; False when `limit_s` is over or, if it is heeded, when we are asked to stop."""
        end_s = time.monotonic() + limit_s
        while not reached():
            if time.monotonic() > end_s or (heed and self.asked):
                return False
            self.supervisor.tick()
            self.show()
            time.sleep(TICK_S)
        return True

    def stop_stage(self, name: str) -> None:
        """Ask, wait, in the end kill: `life.Life` decides."""
        if name in self.supervisor.stages:
            self.supervisor.stop(name)
            self.wait(lambda: self.supervisor.stopped(name), 2 * STOP_S_MAX, heed=False)

    def stop_stages(self) -> None:
        self.phase = "stopping"
        for name in STOP_ORDER:
            self.stop_stage(name)

    def overview(self) -> Overview:
        known = self._addresses
        return Overview(
            pid=os.getpid(),
            phase=self.phase,
            at=time.time(),
            began=self._began,
            home=str(self.home.path),
            kafka=known.kafka if known else "",
            registry=known.registry if known else "",
            database=without_password(known.databases["reader"]) if known else "",
            stages=tuple(self._stage_view(name) for name in self.supervisor.stages),
            message=self.message,
        )

    def show(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._shown_s >= SHOW_S:
            self._shown_s = time.monotonic()
            overview = self.overview()
            overview.write(self.home.overview)
            self.screen.show(overview)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM and a closed terminal are requests; who asks a second time need not wait for the drain."""

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.asked += 1

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check_asked(self) -> None:
        if self.asked:
            raise InterruptedRunError("stopped before it was done")

    def _hold(self, stage: Stage, pid: int) -> None:
        self._leash.hold(pid, stage.command[2], signal.SIGTERM)

    def _stage_view(self, name: str) -> StageView:
        status, life = self.supervisor.status(name), self.supervisor.lives[name]
        return stage_view(
            name,
            life.state.value,
            status,
            self._rates[name].add(status),
            time.time(),
            pid=self.supervisor.pid(name),
            restarts=life.restarts,
            last_words=self.supervisor.last_words(name) if life.state.value == "backing off" else "",
        )
