"""The stages as child processes on the real servers, to be started, killed and drained by tests."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cli.drain import Drain
from cli.servers import Addresses
from schemas.status import Status, read_status

COMMANDS = {
    "producer": ["producers"],
    "processors": ["processors"],
    "raw-sink": ["sinks", "raw"],
    "view-sink": ["sinks", "views"],
}
STOP_S_MAX = 15.0


class Pipeline:
    """For example::

    pipeline = Pipeline(stack, tmp_path)
    pipeline.setup()
    pipeline.start("processors")
    pipeline.run_producer("ring", "--rate=0", "--triggers=100")
    pipeline.drain(timeout_s=60)
    """

    def __init__(self, stack: Any, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def setup(self) -> None:
        """Topics, schemas and tables, by the one-shot commands."""
        for command in (["schemas", "setup"], ["processors", "setup"], ["sinks", "migrate"]):
            self._run(command, "owner")

    def run_producer(self, *arguments: str) -> None:
        """Run a producer to its end."""
        self._run(["producers", *arguments], "writer")

    def start(self, stage: str, *arguments: str) -> None:
        environ = self.stack.environ("writer") | {"STROBE_STATUS_FILE": str(self.folder / f"{stage}.json")}
        command = [sys.executable, "-m", *COMMANDS[stage], *arguments]
        with (self.folder / f"{stage}.log").open("ab") as log:
            self._children[stage] = subprocess.Popen(command, env=environ, stdout=log, stderr=log)

    def kill(self, stage: str) -> None:
        """SIGKILL, without a word of warning."""
        child = self._children.pop(stage)
        child.kill()
        child.wait()

    def stop(self, stage: str) -> int:
        """SIGTERM, and the exit code of an orderly end."""
        child = self._children.pop(stage)
        child.terminate()
        return child.wait(STOP_S_MAX)

    def stop_all(self) -> None:
        for child in self._children.values():
            child.terminate()
        for stage in list(self._children):
            try:
                self._children[stage].wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill(stage)

    def status(self, stage: str) -> Status | None:
        return read_status(self.folder / f"{stage}.json")

    def log(self, stage: str) -> str:
        return (self.folder / f"{stage}.log").read_text()

    def drain(self, timeout_s: float) -> None:
        """Wait until all that was sent has gone all the way and the windows of silent sources have closed."""
        local = self.stack.local
        roles = {role: self.stack.database(role) for role in ("owner", "writer", "reader")}
        drain = Drain(Addresses(local.kafka, local.registry, roles), to_the_end=True)
        until = time.monotonic() + timeout_s
        while not drain.done():
            for stage, child in self._children.items():
                assert child.poll() is None, f"{stage} ended with {child.poll()}:\n{self.log(stage)[-2000:]}"
            assert time.monotonic() < until, f"not drained within {timeout_s} s: {drain.left}"
            time.sleep(0.2)

    def _run(self, command: list[str], role: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *command], env=self.stack.environ(role), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[-2000:]}"
