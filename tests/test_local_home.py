"""The folder of the local stack: where it lies, who holds it, what it keeps secret."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.error import LocalStackError
from deploy.local.home import Claim, default_home, load_secrets, locked, make_folder, require_room
from deploy.local.leash import ROOT


def test_the_home_is_the_users_own_and_roots_can_be_reached_by_others() -> None:
    assert default_home({"HOME": "/home/me"}, 1000) == Path("/home/me/.local/share/strobe")
    assert default_home({"HOME": "/root"}, 0) == Path("/var/lib/strobe")
    assert default_home({"HOME": "/root", "STROBE_HOME": "/srv/strobe"}, 0) == Path("/srv/strobe")


def test_passwords_are_random_kept_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    first = load_secrets(tmp_path / "a.json")
    assert load_secrets(tmp_path / "a.json") == first
    assert load_secrets(tmp_path / "b.json") != first
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert len(set(first.values())) == len(first)


def test_damaged_secrets_are_told_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(LocalStackError, match=r"secrets\.json"):
        load_secrets(tmp_path / "secrets.json")


def test_a_home_has_one_supervisor_and_a_dead_one_does_not_count(tmp_path: Path) -> None:
    lock = tmp_path / "supervisor.lock"
    code = f"from deploy.local.home import Claim; from pathlib import Path; Claim(Path({str(lock)!r})).take(); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code + "\n", "x"], stdin=subprocess.PIPE, cwd=ROOT, stdout=subprocess.PIPE
    )
    while not (lock.exists() and lock.read_text()):
        assert other.poll() is None
    mine = Claim(lock)
    with pytest.raises(LocalStackError, match=str(other.pid)):
        mine.take()
    other.kill()
    other.communicate()
    mine.take()
    mine.take()
    mine.release()


def test_a_lock_waits_for_its_holder_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import fcntl,time; f=open({str(path)!r},'w'); fcntl.flock(f,2); print(1,flush=True); time.sleep(0.7)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    waited: list[int] = []
    with locked(path, lambda: waited.append(1)):
        assert waited
    other.communicate()


def test_too_little_room_names_the_need(tmp_path: Path) -> None:
    require_room(tmp_path, 1, "a test")
    with pytest.raises(LocalStackError, match=f"{10**12} MB"):
        require_room(tmp_path, 10**12, "a test")


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalStackError, match="STROBE_HOME"):
        make_folder(tmp_path / "file" / "folder")
