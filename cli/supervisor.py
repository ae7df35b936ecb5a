"""Keeps the stages alive: the shell that lets `life.Life` decide and does what it says to real processes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.child import Child
from cli.life import Action, Life, State
from schemas.status import Status, read_status

TICK_S = 0.1


@dataclass(frozen=True)
class Stage:
    """What it takes to start one stage."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    status_file: Path
    log_file: Path
    folder: Path


class Supervisor:
    """Every method returns at once; whoever owns it calls `tick` a few times a second.

    For example::

        supervisor = Supervisor(stages, say=print)
        supervisor.start()
        while not asked_to_stop:
            supervisor.tick()
        supervisor.stop("producer")
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        say: Callable[[str], None],
        started: Callable[[Stage, int], None] = lambda _stage, _pid: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self.lives = {stage.name: Life() for stage in stages}
        self._children: dict[str, Child] = {}
        self._say = say
        self._started = started
        self._clock = clock

    def start(self, names: Sequence[str] | None = None) -> None:
        """All of them, or these."""
        for name in self.stages if names is None else names:
            life, action = self.lives[name].start(self._clock())
            self._become(name, life, action)

    def stop(self, name: str) -> None:
        life, action = self.lives[name].stop(self._clock())
        self._become(name, life, action)

    def kill(self) -> None:
        """Leave nothing behind, at once; for when there is no time for an order."""
        for child in self._children.values():
            child.kill()

    def stopped(self, name: str) -> bool:
        return self.lives[name].state is State.STOPPED

    def status(self, name: str) -> Status | None:
        """What the running child says of itself; figures of an earlier one are not its."""
        status = read_status(self.stages[name].status_file)
        child = self._children.get(name)
        return status if status and child and status.pid == child.pid else None

    def last_words(self, name: str) -> str:
        """The last line that the child of this stage wrote; of one that was killed it explains nothing."""
        child = self._children.get(name)
        if (self.lives[name].code or 0) < 0 and self.pid(name) is None:
            return ""
        return next((line for line in reversed(child.tail) if line.strip()), "") if child else ""

    def pid(self, name: str) -> int | None:
        child = self._children.get(name)
        return child.pid if child and child.poll() is None else None

    def tick(self) -> None:
        for name, life in list(self.lives.items()):
            now_s = self._clock()
            child = self._children.get(name)
            if child and life.state in (State.STARTING, State.RUNNING, State.STOPPING):
                code = child.wait(0) if child.poll() is not None else None
                if code is not None:
                    life = life.exited(now_s, code)  # noqa: PLW2901 - one life goes on
                    self._tell_exit(name, life)
                elif life.state is State.STARTING and self.status(name):
                    life = life.alive(now_s)  # noqa: PLW2901
            life, action = life.tick(now_s)  # noqa: PLW2901
            self._become(name, life, action)

    def _start(self, stage: Stage) -> None:
        try:
            child = Child(stage.command, stage.environ, stage.log_file, stage.folder)
        except OSError as error:  # no memory, no process ids, a full disk: as a death, tried again later
            self._say(f"{stage.name} cannot be started: {error}")
            self._children.pop(stage.name, None)
            self.lives[stage.name] = self.lives[stage.name].exited(self._clock(), 127)
            return
        self._children[stage.name] = child
        self._started(stage, child.pid)

    def _tell_exit(self, name: str, life: Life) -> None:
        if life.state is State.BACKING_OFF:
            again_s = life.due_s - life.since_s
            self.lives[name] = life
            words = self.last_words(name)
            self._say(f"{name} died ({describe(life.code)}), again in {again_s:g} s{f': {words}' if words else ''}")

    def _become(self, name: str, life: Life, action: Action | None) -> None:
        self.lives[name] = life
        if action is Action.START:
            self._start(self.stages[name])
        elif action is Action.TERMINATE:
            self._children[name].terminate()
        elif action is Action.KILL:
            self._say(
                f"{name} did not stop in time and is killed; what it had not finished is read again at its next start"
            )
            self._children[name].kill()


def describe(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "no exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
