"""The fixture `stack`: a real Kafka, TimescaleDB and schema registry on free ports, for one pytest session."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from deploy.local.error import LocalStackError
from deploy.local.home import default_home
from deploy.local.ports import Ports
from deploy.local.stack import LocalStack
from schemas.settings import Settings

# The first example of a test may compile a kernel; and a failure found in CI must be repeatable anywhere.
hypothesis.settings.register_profile("strobe", deadline=None, print_blob=True)
hypothesis.settings.load_profile("strobe")

ROOT = Path(__file__).parent.parent
LOOPBACK = "127.0.0.1,localhost"


class Stack:
    """Three servers and what a stage needs to reach them.

    For example::

        @pytest.mark.stack
        def test_rows_survive_a_crash(stack: Stack) -> None:
            settings = stack.settings("writer")
            stack.kill("database")
            stack.start("database")  # same port, same data
    """

    def __init__(self, local: LocalStack) -> None:
        self.local = local

    def settings(self, role: str = "writer") -> Settings:
        return Settings.from_environ(self.environ(role))

    def environ(self, role: str = "writer") -> dict[str, str]:
        """The whole environment of a child process; proxies of the machine do not apply to loopback."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STROBE_")}
        return inherited | {
            "STROBE_KAFKA": self.local.kafka,
            "STROBE_REGISTRY": self.local.registry,
            "STROBE_DATABASE": self.database(role),
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": LOOPBACK,
            "no_proxy": LOOPBACK,
        }

    def database(self, role: str = "owner") -> str:
        """URL with password; role is owner, writer, reader or superuser."""
        return self.local.database(role)

    def kill(self, name: str) -> None:
        """SIGKILL to "kafka", "database" or "registry"."""
        self.local.kill(name)

    def stop(self, name: str) -> None:
        self.local.stop_server(name)

    def start(self, name: str) -> None:
        """Returns when it really answers again."""
        self.local.start_server(name)

    def alive(self, name: str) -> bool:
        return self.local.alive(name)


def started() -> Iterator[Stack]:
    """Without the servers' programs the tests that ask for it fail with the remedy; they are never skipped.

    The home lies directly under the temporary folder and is open to all: as root, PostgreSQL is another user.
    """
    home = Path(tempfile.mkdtemp(prefix="strobe-test-"))
    home.chmod(0o755)
    local = LocalStack(home, Ports.any_free(), "test", downloads=default_home(os.environ, os.geteuid()))
    try:
        local.start()
    except LocalStackError as error:
        shutil.rmtree(home, ignore_errors=True)
        pytest.fail(f"the stack does not start: {error}", pytrace=False)
    try:
        yield Stack(local)
    finally:
        local.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The servers that all tests share: each keeps to topics and tables of its own."""
    yield from started()


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    """Servers of one test alone, for those that look at all that is in them."""
    yield from started()
