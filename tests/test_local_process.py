"""Server processes are recognised by an argument of theirs, never by a number that may be somebody else's by now."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import process
from deploy.local.leash import ROOT

STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
OBEDIENT = "import time; print(1, flush=True); time.sleep(60)"


@pytest.fixture
def argument(tmp_path: Path) -> str:
    return f"-Dstrobe.folder={tmp_path}"


def started(code: str, argument: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", code, argument], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.fixture
def server(argument: str) -> Iterator[subprocess.Popen[bytes]]:
    child = started(OBEDIENT, argument)
    yield child
    child.kill()
    child.wait()


def test_an_argument_counts_as_a_whole() -> None:
    cmdline = b"java\0-Dstrobe.folder=/srv/a\0kafka.Kafka\0"
    assert process.has_argument(cmdline, "-Dstrobe.folder=/srv/a")
    assert not process.has_argument(cmdline, "-Dstrobe.folder=/srv")
    assert not process.has_argument(b"", "-Dstrobe.folder=/srv/a")


def test_a_server_is_found_by_its_argument_and_another_homes_is_not(
    server: subprocess.Popen[bytes], argument: str
) -> None:
    assert process.find(argument) == [server.pid]
    assert process.find(argument + "/other") == []


def test_the_dead_are_not_found_before_they_are_collected(server: subprocess.Popen[bytes], argument: str) -> None:
    server.kill()
    assert process.await_end([server.pid], 10.0)
    assert process.find(argument) == []


def test_an_orderly_end_is_told_from_a_forced_one(argument: str) -> None:
    for code, orderly in ((OBEDIENT, True), (STUBBORN, False)):
        child = started(code, argument)
        assert process.end(process.find(argument), signal.SIGTERM, 0.5) is orderly
        child.wait()


def test_ending_nothing_is_fine(argument: str) -> None:
    assert process.end(process.find(argument), signal.SIGTERM, 0.0)


def test_children_die_with_a_killed_server(argument: str) -> None:
    spawn = "import subprocess,sys; subprocess.Popen(['sleep','61']); print(1,flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", spawn, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    family = process.children(child.pid)
    assert len(family) == 1
    process.kill([child.pid])
    assert not any(process.exists(pid) for pid in [child.pid, *family])
    child.communicate()


def test_servers_end_when_their_supervisor_is_killed(argument: str, tmp_path: Path) -> None:
    supervisor = f"""
import signal, sys, time
from pathlib import Path
from deploy.local import process
from deploy.local.leash import Leash
child = process.spawn([sys.executable, "-c", {OBEDIENT!r}, {argument!r}], log=Path({str(tmp_path / "log")!r}),
    folder=Path({str(tmp_path)!r}), environ={{}})
leash = Leash()
leash.hold(child.pid, {argument!r}, signal.SIGTERM)
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", supervisor], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert process.await_end([pid], 20.0)


def test_a_log_tells_only_of_this_start_and_prefers_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("FATAL: old\n")
    start = log.stat().st_size
    log.write_text("FATAL: old\nLOG: starting\nFATAL: new\nLOG: shut down\n\n")
    assert process.last_line(log, start, prefer=("FATAL",)) == "FATAL: new"
    assert process.last_line(log, start, prefer=("PANIC",)) == "LOG: shut down"
    assert process.last_line(tmp_path / "none", 0) == ""


def test_a_server_is_not_in_the_session_of_its_supervisor(argument: str, tmp_path: Path) -> None:
    child = process.spawn([sys.executable, "-c", OBEDIENT, argument], log=tmp_path / "log", folder=tmp_path, environ={})
    try:
        assert os.getsid(child.pid) == child.pid
    finally:
        child.kill()
        child.wait()
