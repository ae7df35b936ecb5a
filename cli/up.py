"""`./strobe up`: everything from the servers to the last row, until asked to stop or for a given time."""

import json
import os
import sys
import time
from dataclasses import dataclass, field

from cli.drain import DRAIN_S_MAX, Drain
from cli.failure import FailedError, UserMistakeError
from cli.freshness_watch import VIEW
from cli.home import Home
from cli.pipeline import PRODUCER, Ring, one_shots, stages
from cli.proof import Finding, Proof, begin_proof
from cli.run import Run
from cli.screen import Screen
from cli.servers import Servers
from deploy.local.error import LocalStackError
from deploy.local.home import Claim
from schemas.settings import Settings

FIRST_TRIGGER_S_MAX = 60.0  # Kafka answers already
VISIBLE_S_MAX = 120.0  # the first start of all compiles for up to a minute
RATE_HZ_MAX = 1_000_000.0
HURRIED = "interrupted once more: what is left waits in Kafka and is taken up at the next start"


@dataclass(frozen=True)
class Wanted:
    """What was asked on the command line."""

    kafka: str | None = None
    database: str | None = None
    registry: str | None = None
    ring: Ring | None = field(default_factory=Ring)  # None: no producer
    for_s: float | None = None
    as_json: bool = False

    def check(self) -> None:
        if self.for_s is not None and not 0 < self.for_s < float("inf"):
            raise UserMistakeError(f"--for {self.for_s:g}: give seconds, such as 60")
        if self.as_json and self.for_s is None:
            raise UserMistakeError("--json tells how a run ended: give --for SECONDS too")
        if self.ring is None:
            return
        if self.ring.instruments < 1 or not 1 <= self.ring.sources <= self.ring.instruments:
            raise UserMistakeError("--instruments and --sources: at least 1, and not more sources than instruments")
        if not 0 < self.ring.rate_hz <= RATE_HZ_MAX:
            raise UserMistakeError(f"--rate {self.ring.rate_hz:g}: give triggers per second, such as 10")

    def arguments(self) -> list[str]:
        """The same again, as a command line; with `named` beside it."""
        words = [*self.ring.arguments()] if self.ring else ["--no-producer"]
        words += ["--for", str(self.for_s)] if self.for_s is not None else []
        return [*words, "--json"] if self.as_json else words

    def named(self) -> dict[str, str]:
        """Servers, as the environment names them: a password has no place among the arguments of a process."""
        named = {"STROBE_KAFKA": self.kafka, "STROBE_DATABASE": self.database, "STROBE_REGISTRY": self.registry}
        return {name: value for name, value in named.items() if value is not None}


def up(home: Home, wanted: Wanted) -> int:
    """Exit codes: 0 all went well; 1 something failed, or readings were lost or duplicated."""
    wanted.check()
    home.make()
    claim = Claim(home.lock)
    try:
        claim.take()
    except LocalStackError as error:
        raise UserMistakeError(str(error)) from None
    servers = Servers(home.path, kafka=wanted.kafka, registry=wanted.registry, database=wanted.database)
    result: Finding | None = None
    try:
        with (
            Screen(sys.stderr if wanted.as_json else sys.stdout) as screen,
            Run(home, servers, screen) as run,
            run.signals(),
        ):
            result = _run(run, home, wanted)
    finally:
        claim.release()
    if result is None:
        return 0
    if wanted.as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        for line in result.lines():
            print(line)
    return 0 if result.good else 1


def _run(run: Run, home: Home, wanted: Wanted) -> Finding | None:
    run.start_servers()
    run.check_asked()
    run.one_shots(one_shots(run.addresses, os.environ))
    proof = None
    if wanted.for_s is not None:
        views = Settings.from_environ(os.environ).views
        proof = begin_proof(run.addresses, views, instruments=wanted.ring.instruments if wanted.ring else 1)
    run.start_stages(stages(home, run.addresses, os.environ, wanted.ring))
    if proof is None or wanted.for_s is None:
        run.wait(lambda: False)
        _wind_down(run)
        return None
    with proof.watching():
        _visible(run, wanted, proof)
        run.wait(lambda: False, wanted.for_s)
        completed = not run.asked
        result = None
        drained = _drained(run, to_the_end=completed)
        if completed and run.asked < 2:
            run.message = "comparing topics and tables"
            run.show(at_once=True)
            result = proof.end(run.overview(), drained=drained)
    run.stop_stages()
    if result is None:
        raise FailedError("interrupted before it was done: nothing to report; what was sent is kept")
    return result


def _visible(run: Run, wanted: Wanted, proof: Proof) -> None:
    """The seconds count from when every instrument is visible: until then stages restore, and the first time compile.

    What was sent before is compared like everything else.
    """
    if wanted.ring is None:
        return

    def sent() -> bool:
        status = run.supervisor.status(PRODUCER)
        return status is not None and status.records > 0

    if not run.wait(sent, FIRST_TRIGGER_S_MAX) and not run.asked:
        why = run.supervisor.last_words(PRODUCER)
        raise FailedError(f"no trigger was sent within {FIRST_TRIGGER_S_MAX:.0f} s ({why}); see ./strobe logs producer")
    if not run.wait(lambda: proof.seen, VISIBLE_S_MAX) and not run.asked:
        run.screen.say(f"not every instrument has a row in {VIEW} after {VISIBLE_S_MAX:.0f} s; see ./strobe status")


def _wind_down(run: Run) -> None:
    _drained(run, to_the_end=False)
    run.stop_stages()


def _drained(run: Run, *, to_the_end: bool) -> bool:
    """Producers first; then until nothing waits in Kafka any more, or the bound is reached, which is said."""
    asked = run.asked
    run.phase = "draining"
    run.message = "the producer stops; then what it sent goes all the way"
    run.stop_stage(PRODUCER)
    began_s = time.monotonic()
    drain = Drain(run.addresses, to_the_end=to_the_end)

    def done() -> bool:
        run.message = drain.left or run.message
        return drain.done() or run.asked > max(asked, 1)

    reached = run.wait(done, DRAIN_S_MAX, heed=False)
    run.message = ""
    if run.asked > max(asked, 1):
        run.screen.say(HURRIED)
        return False
    if not reached:
        waited_s = time.monotonic() - began_s
        run.screen.say(f"not drained after {waited_s:.0f} s: {drain.left}; it is taken up at the next start")
    else:
        run.screen.say(f"drained in {time.monotonic() - began_s:.1f} s")
    return reached
