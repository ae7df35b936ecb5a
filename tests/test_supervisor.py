"""A stage that dies comes back, ever later; one that is stopped stays away; and it shows."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.child import Child
from cli.life import BACK_OFF_FIRST_S, BACK_OFF_S_MAX, STEADY_S, STOP_S_MAX, Action, Life, State, back_off_s
from cli.log_file import LogFile
from cli.supervisor import Stage, Supervisor

PATIENCE_S = 20.0

LIVES = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from schemas.status import Status
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Status("producer").write(Path(os.environ["STROBE_STATUS_FILE"]))
time.sleep(60)
"""
DIES = "import sys; print('no such monitor', file=sys.stderr); sys.exit(3)"
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


def test_a_dead_stage_waits_and_starts_again() -> None:
    life, action = Life().start(0.0)
    assert (life.state, action) == (State.STARTING, Action.START)
    life = life.alive(1.0).exited(2.0, -9)
    assert (life.state, life.code, life.due_s) == (State.BACKING_OFF, -9, 2.0 + BACK_OFF_FIRST_S)
    assert life.tick(life.due_s - 0.01) == (life, None)
    life, action = life.tick(life.due_s)
    assert (life.state, action, life.restarts) == (State.STARTING, Action.START, 1)


def test_the_back_off_doubles_up_to_its_bound() -> None:
    assert [back_off_s(deaths) for deaths in (1, 2, 3)] == [BACK_OFF_FIRST_S * factor for factor in (1, 2, 4)]
    assert back_off_s(1000) == BACK_OFF_S_MAX


def test_a_stage_that_ran_long_enough_is_forgiven() -> None:
    life, _ = Life(deaths=9).start(0.0)
    assert life.alive(0.0).exited(STEADY_S, 1).deaths == 1
    assert life.alive(0.0).exited(STEADY_S / 2, 1).deaths == 10


def test_a_stage_that_never_came_up_is_not_forgiven_however_long_it_took() -> None:
    life, _ = Life(deaths=3).start(0.0)
    assert life.exited(10 * STEADY_S, 1).deaths == 4


def test_a_stopped_stage_is_asked_first_and_killed_when_it_does_not_listen() -> None:
    life, _ = Life().start(0.0)
    life, action = life.alive(0.0).stop(5.0)
    assert (life.state, action) == (State.STOPPING, Action.TERMINATE)
    assert life.tick(5.0 + STOP_S_MAX - 0.01)[1] is None
    life, action = life.tick(5.0 + STOP_S_MAX)
    assert action is Action.KILL
    life = life.exited(30.0, -9)
    assert (life.state, life.tick(1e9)) == (State.STOPPED, (life, None))


def test_a_stage_stopped_while_it_waits_never_starts() -> None:
    life, _ = Life().start(0.0)
    life, action = life.exited(1.0, 1).stop(1.1)
    assert (life.state, action, life.tick(1e9)[1]) == (State.STOPPED, None, None)


def test_asking_twice_changes_nothing() -> None:
    life, _ = Life().start(0.0)
    assert life.start(1.0) == (life, None)
    stopping, _ = life.stop(1.0)
    assert stopping.stop(2.0) == (stopping, None)


class Watched:
    """A supervisor of one stage that runs the given Python code, and what it said."""

    def __init__(self, folder: Path, code: str) -> None:
        self.said: list[str] = []
        self.status_file = folder / "status.json"
        stage = Stage(
            name="producer",
            command=(sys.executable, "-c", code.replace("{root!r}", repr(str(Path(__file__).resolve().parent.parent)))),
            environ={"STROBE_STATUS_FILE": str(self.status_file)},
            status_file=self.status_file,
            log_file=folder / "producer.log",
            folder=folder,
        )
        self.supervisor = Supervisor([stage], say=self.said.append)

    @property
    def life(self) -> Life:
        return self.supervisor.lives["producer"]

    def tick_until(self, reached: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < end_s, f"{self.life}, {self.said}"
            self.supervisor.tick()
            time.sleep(0.02)


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[str], Watched]:
    return lambda code: Watched(tmp_path, code)


def test_a_killed_child_is_replaced_by_another(watched: Callable[[str], Watched]) -> None:
    one = watched(LIVES)
    one.supervisor.start()
    one.tick_until(lambda: one.life.state is State.RUNNING)
    first = one.supervisor.pid("producer")
    one.supervisor.kill()
    one.tick_until(lambda: one.life.restarts == 1 and one.life.state is State.RUNNING)
    assert one.supervisor.pid("producer") not in (None, first)
    assert any("signal 9" in line for line in one.said)
    one.supervisor.stop("producer")
    one.tick_until(lambda: one.supervisor.stopped("producer"))
    assert one.life.code == 0


def test_the_last_words_of_a_dying_child_are_told_and_logged(watched: Callable[[str], Watched], tmp_path: Path) -> None:
    one = watched(DIES)
    one.supervisor.start()
    one.tick_until(lambda: one.life.restarts == 1)
    assert any("exit code 3" in line and "no such monitor" in line for line in one.said)
    assert "no such monitor" in (tmp_path / "producer.log").read_text()
    one.supervisor.stop("producer")
    one.tick_until(lambda: one.supervisor.stopped("producer"))


def test_a_command_that_does_not_exist_is_tried_again_later(tmp_path: Path) -> None:
    said: list[str] = []
    stage = Stage("producer", ("/nonexistent",), {}, tmp_path / "s", tmp_path / "l", tmp_path)
    supervisor = Supervisor([stage], say=said.append)
    supervisor.start()
    assert supervisor.lives["producer"].state is State.BACKING_OFF
    assert "cannot be started" in said[0]


def test_a_child_that_ignores_the_request_can_be_killed_with_its_group(tmp_path: Path) -> None:
    child = Child((sys.executable, "-c", IGNORES), {}, tmp_path / "log", tmp_path)
    while not child.tail:
        time.sleep(0.01)
    child.terminate()
    assert child.wait(0.3) is None
    child.kill()
    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_log_keeps_two_files_of_bounded_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", bytes_max=100)
    for number in range(100):
        log.write(f"line {number:03}\n".encode())
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_text().endswith("line 099\n")
