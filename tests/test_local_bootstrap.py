"""The script ./strobe makes the environment when it must, and says in one line why it cannot. Python is a fake."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAKE_PYTHON = """\
#!/bin/bash
# A Python that logs what it is asked; makes environments by copying itself.
case "$*" in
  *version_info*) [ -z "$FAKE_OLD" ] ;;
  *ensurepip*) [ -z "$FAKE_NO_ENSUREPIP" ] ;;
  *platform*) echo 3.11.7 ;;
  "-m venv "*)
    echo venv >>"$FAKE_LOG"
    [ -n "$FAKE_NO_ENSUREPIP" ] && { echo 'ensurepip is not available'; exit 1; }
    mkdir -p "$3/bin" "$3/lib/python3.11/site-packages" && cp "$0" "$3/bin/python" ;;
  "-m virtualenv "*) exit 1 ;;
  "-m pip "*)
    echo pip >>"$FAKE_LOG"
    sleep 0.3
    [ -n "$FAKE_PIP_SAYS" ] && { echo "$FAKE_PIP_SAYS"; exit 1; }
    exit 0 ;;
  "-m cli"*) shift 2; echo "cli $* in $PWD with $PYTHONPATH home $STROBE_HOME from $0" ;;
  *) exit 1 ;;
esac
"""


class Checkout:
    """A copy of the script with a requirements file, and a PATH on which the only Python is the fake."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.log = folder / "calls"
        (self.root / "requirements").mkdir(parents=True)
        (self.root / "requirements" / "dev.txt").write_text("one==1\n")
        (self.root / "strobe").write_bytes((ROOT / "strobe").read_bytes())
        (self.root / "strobe").chmod(0o755)
        programs = folder / "programs"
        programs.mkdir()
        for name in ("python3", "python3.13", "python3.12", "python3.11", "python"):
            (programs / name).write_text(FAKE_PYTHON)
            (programs / name).chmod(0o755)
        self.environ = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder / "user"),
            "STROBE_HOME": str(folder / "home"),
            "FAKE_LOG": str(self.log),
            "CI": "true",
        }

    def start(self, *arguments: str, script: Path | None = None, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(script or self.root / "strobe"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=self.environ | environ,
        )

    def run(self, *arguments: str, script: Path | None = None, **environ: str) -> tuple[int, str, str]:
        process = self.start(*arguments, script=script, **environ)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def calls(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_environment_is_made_once_and_arguments_go_through(checkout: Checkout) -> None:
    code, output, errors = checkout.run("up", "--for", "6 0")
    assert (code, output.split(" with ")[0]) == (0, "cli up --for 6 0 in /")
    assert "making the Python environment" in errors
    assert checkout.run("status")[2] == ""
    assert checkout.calls() == ["venv", "pip"]


def test_changed_requirements_are_installed_into_the_environment_there_is(checkout: Checkout) -> None:
    checkout.run("status")
    (checkout.root / "requirements" / "dev.txt").write_text("one==2\n")
    assert checkout.run("status")[0] == 0
    assert checkout.calls() == ["venv", "pip", "pip"]


def test_a_symbolic_link_leads_to_the_checkout(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "strobe").symlink_to("../checkout/strobe")
    (tmp_path / "link").symlink_to(tmp_path / "bin" / "strobe")
    code, output, _ = checkout.run("status", script=tmp_path / "link")
    assert code == 0
    assert f"with {checkout.root} " in output


def test_two_at_once_make_one_environment(checkout: Checkout) -> None:
    both = [checkout.start("status") for _ in range(2)]
    ends = [(process.communicate(timeout=60), process.returncode)[1] for process in both]
    assert ends == [0, 0]
    assert checkout.calls() == ["venv", "pip"]


def test_a_failed_installation_is_one_line_and_is_tried_again(checkout: Checkout) -> None:
    for complaint, told in (
        ("ERROR: hashes do not match", "hashes do not match"),
        ("WARNING: NewConnectionError('no route')", "is there a network?"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
    ):
        code, output, errors = checkout.run("status", FAKE_PIP_SAYS=complaint)
        assert (code, output) == (2, "")
        assert told in errors.splitlines()[-1]
        assert len(errors.splitlines()) == 2  # what it does, and why it cannot
    assert checkout.run("status")[0] == 0


def test_without_a_fitting_python_the_versions_are_named(checkout: Checkout) -> None:
    code, _, errors = checkout.run("status", FAKE_OLD="yes")
    assert code == 2
    assert "3.11, 3.12 or 3.13" in errors.splitlines()[-1]


def test_without_ensurepip_the_missing_package_is_named(checkout: Checkout) -> None:
    code, _, errors = checkout.run("status", FAKE_NO_ENSUREPIP="yes")
    assert code == 2
    assert "apt-get install python3-venv" in errors.splitlines()[-1]


def test_the_home_is_the_users_unless_named(checkout: Checkout) -> None:
    home = "/var/lib/strobe" if os.geteuid() == 0 else f"{checkout.environ['HOME']}/.local/share/strobe"
    checkout.run("status")  # makes the environment under the named home, so that nothing is written to the default
    assert f" home {home} " in checkout.run("status", STROBE_HOME="")[1]
    assert " home /relative " in checkout.run("status", STROBE_HOME="relative")[1].replace("//", "/")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_checkout_that_cannot_be_written_to_has_its_environment_in_the_home(checkout: Checkout) -> None:
    checkout.root.chmod(0o555)
    code, output, _ = checkout.run("status")
    checkout.root.chmod(0o755)
    assert code == 0
    assert f"from {checkout.environ['STROBE_HOME']}/checkouts/" in output
