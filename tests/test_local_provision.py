"""Fetching the servers' programs: once, whole or not at all, one line where it fails. Maven is a small fake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import maven
from deploy.local.command import quiet, run, telling_line
from deploy.local.error import LocalStackError
from deploy.local.leash import ROOT

FAKE_MAVEN = """\
#!/bin/sh
[ "$1" = -v ] && exit 0
echo run >>"$FAKE_CALLS"
sleep 0.5
[ -e "$FAKE_CALLS.fail" ] && {
  echo '[ERROR] Could not transfer artifact: Unknown host'; echo '[ERROR] [Help 1] read the manual'; exit 1; }
for argument; do case $argument in -DoutputDirectory=*) out=${argument#*=};; esac; done
mkdir -p "$out" && echo jar >"$out/kafka.jar"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mvn").write_text(FAKE_MAVEN)
    (programs / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "servers"
    folder.mkdir(parents=True)
    return folder


def test_programs_are_fetched_once(calls: Path, servers: Path) -> None:
    for _ in range(2):
        assert (maven.provision_kafka(servers, quiet) / "kafka.jar").exists()
    assert calls.read_text().split() == ["run"]


def test_two_processes_at_once_fetch_once_and_both_have_it(calls: Path, servers: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deploy.local import maven\n"
        "print((maven.provision_kafka(Path(sys.argv[1]), lambda server, text: None) / 'kafka.jar').exists())"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(servers)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]
    assert [one.communicate(timeout=60)[0].strip() for one in both] == ["True", "True"]
    assert calls.read_text().split() == ["run"]


def test_a_failed_fetch_is_one_line_with_the_cause_and_the_next_try_starts_anew(calls: Path, servers: Path) -> None:
    failing = calls.with_name("calls.fail")
    failing.touch()
    with pytest.raises(LocalStackError) as error:
        maven.provision_kafka(servers, quiet)
    assert "Unknown host" in str(error.value)
    assert "network" in str(error.value)
    assert "\n" not in str(error.value)
    failing.unlink()
    assert maven.provision_kafka(servers, quiet).exists()


def test_what_an_interrupted_fetch_left_is_not_trusted(calls: Path, servers: Path) -> None:
    half = servers / f".kafka-{maven.KAFKA}.1234.part" / "jars"
    half.mkdir(parents=True)
    (half / "half.jar").touch()
    assert [path.name for path in maven.provision_kafka(servers, quiet).iterdir()] == ["kafka.jar"]
    assert calls.exists()
    assert not half.exists()


def test_a_missing_maven_is_named_with_the_remedy(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LocalStackError, match="apt-get install maven"):
        maven.provision_kafka(servers, quiet)


def test_an_interrupted_fetch_ends_its_program_at_once(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", "sleep 600; touch late"], log=tmp_path / "log", failed="", report=interrupt, folder=tmp_path)
    assert not (tmp_path / "late").exists()


def test_the_first_error_of_an_output_tells_the_cause() -> None:
    assert telling_line("reading\n\x1b[31m[ERROR]\x1b[0m first\n[ERROR] second\n") == "[ERROR] first"
    assert telling_line("reading\nE: no such package\n") == "E: no such package"
    assert telling_line("one\ntwo\n\n") == "two"
    assert telling_line("") == "it said nothing"
