"""The shell around the cores, on fakes: in which order things happen, and what happens when they go wrong."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from processors import worker as worker_module
from processors.packing import Packed
from processors.records import Checkpoint, Flush, LostDataError, Message
from processors.transport import Claim
from processors.worker import Worker
from schemas.batch import RawBatch
from schemas.registry import RegistryAwayError

CLAIM = Claim("bpm.v1", 0, 1)


def fetched(first: int, count: int, epoch: int = 1) -> Packed:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for i in range(count):
        builder.append(i, 0, None, b"x", [])
    data = bytearray(builder.build())
    data[0:8] = first.to_bytes(8, "big")
    data[22] |= 0x08
    return Packed("bpm.v1", 0, first, first + count - 1, epoch, bytes(data))


class Core:
    """Counts what it took in; notes every call."""

    def __init__(self, notes: list[str], position: int = 0) -> None:
        self.position, self.notes = position, notes
        self.newest_us, self.clock_runs = 0, True
        self.away = 0  # how often a server is away before a batch can be taken
        self._flushed, self._in_flight = position, False

    def take(self, raw: RawBatch) -> None:
        if self.away > 0:
            self.away -= 1
            raise RegistryAwayError("the registry does not answer")
        self.position = raw.next
        self.newest_us += self.clock_runs
        self.notes.append(f"take {raw.first}")

    def flush(self) -> Flush | None:
        if self._in_flight or self._flushed == self.position:
            return None
        self._flushed, self._in_flight = self.position, True
        self.notes.append(f"flush {self.position}")
        return Flush([Message("out", 0, b"", b"")], Checkpoint(self.position, "metadata"))

    def acknowledged(self, flush: Flush) -> Checkpoint:
        self._in_flight = False
        self.notes.append(f"acknowledged {flush.checkpoint.position}")
        return flush.checkpoint

    def committed(self, checkpoint: Checkpoint) -> list[Message]:
        self.notes.append(f"committed {checkpoint.position}")
        return [Message("heartbeat", 0, b"", b"")]

    def heartbeat(self, *, idle: bool) -> list[Message]:
        self.notes.append("idle" if idle else "heartbeat")
        return []


class World:
    """The driver, the outbox and the restores of one worker."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.core = Core(self.notes)
        self.log_end: int | None = 0
        self.ours = True
        self.safe_at_once = True
        self.waiting: list[Callable[[], None]] = []
        self.failures: list[BaseException] = []
        self.restores_away = 0
        self.worker = Worker(self, self, self.restore, self.failures.append)

    async def restore(self, claim: Claim) -> Core:
        if self.restores_away > 0:
            self.restores_away -= 1
            raise RegistryAwayError("the registry does not answer")
        self.notes.append(f"restore {claim.epoch}")
        return self.core

    async def open(self, claim: Claim, position: int) -> None:
        self.notes.append(f"open {claim.epoch} at {position}")

    async def commit_positions(self, positions: Mapping[Any, tuple[int, str]]) -> bool:
        for position, metadata in positions.values():
            self.notes.append(f"commit {position} {metadata}" if self.ours else "refused")
        return self.ours

    def end(self, claim: Claim, age_s_max: float) -> int | None:
        del claim, age_s_max
        return self.log_end

    def send(
        self, messages: list[Message], done: Callable[[], None], ends: dict[tuple[str, int], int] | None = None
    ) -> None:
        if ends is not None:
            ends[messages[0].topic, messages[0].partition] = 7
        self.notes.append(f"send {messages[0].topic}")
        if self.safe_at_once:
            asyncio.get_running_loop().call_soon(done)
        else:
            self.waiting.append(done)


def in_world(scene: Callable[[World], Awaitable[None]], monkeypatch: Any = None) -> World:
    del monkeypatch

    async def play() -> World:
        world = World()
        clock = asyncio.ensure_future(world.worker.run())
        world.worker.assigned([CLAIM])
        await eventually(lambda: "open 1 at 0" in world.notes)
        await scene(world)
        clock.cancel()
        return world

    return asyncio.run(play())


async def eventually(true: Callable[[], Any]) -> None:
    until = time.monotonic() + 5
    while not true():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


def steps(world: World) -> list[str]:
    return [note for note in world.notes if note not in ("heartbeat", "idle")]


def test_an_assignment_is_told_in_one_line_however_many_partitions_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(world: World) -> None:
        world.worker.revoked()
        world.worker.assigned([Claim("bpm.v1", partition, 2) for partition in range(3)] + [Claim("other.v1", 0, 2)])
        await eventually(lambda: world.notes.count("open 2 at 0") == 4)

    with caplog.at_level("INFO", logger="processors.worker"):
        in_world(scene)
    assert caplog.messages == ["restored 1 of bpm.v1", "restored 3 of bpm.v1, 1 of other.v1"]


def test_a_flush_is_sent_then_acknowledged_then_committed_then_told() -> None:
    async def scene(world: World) -> None:
        world.log_end = 3
        await world.worker.take(fetched(0, 3))
        await eventually(lambda: "send heartbeat" in world.notes)

    assert steps(in_world(scene)) == [
        "restore 1",
        "open 1 at 0",
        "take 0",
        "flush 3",
        "send out",
        "acknowledged 3",
        "commit 3 metadata",
        "committed 3",
        "send heartbeat",
    ]


def test_what_a_core_has_to_commit_from_the_start_is_committed_before_any_input() -> None:
    async def scene(world: World) -> None:
        world.worker.revoked()
        world.notes.clear()
        world.core = Core(world.notes)
        world.core._flushed = -1  # never committed
        world.worker.assigned([CLAIM._replace(epoch=2)])
        await eventually(lambda: "open 2 at 0" in world.notes)

    notes = steps(in_world(scene))
    assert notes.index("committed 0") < notes.index("open 2 at 0")


def test_while_more_input_waits_changes_are_sent_after_a_while_only() -> None:
    async def scene(world: World) -> None:
        world.log_end = 100
        await world.worker.take(fetched(0, 3))
        await world.worker.take(fetched(3, 3))
        assert "flush 6" not in world.notes
        await eventually(lambda: "committed 6" in world.notes)

    assert "flush 3" not in in_world(scene).notes


def test_one_flush_is_on_its_way_at_a_time_and_the_next_follows_at_once() -> None:
    async def scene(world: World) -> None:
        world.log_end, world.safe_at_once = 3, False
        await world.worker.take(fetched(0, 3))
        world.log_end = 6
        await world.worker.take(fetched(3, 3))
        assert world.notes.count("send out") == 1
        world.waiting.pop()()
        assert world.notes.count("send out") == 2

    in_world(scene)


def test_nothing_is_committed_before_it_is_acknowledged() -> None:
    async def scene(world: World) -> None:
        world.log_end, world.safe_at_once = 3, False
        await world.worker.take(fetched(0, 3))
        await asyncio.sleep(3 * worker_module.COMMIT_EVERY_S)

    assert not any(note.startswith("commit") for note in in_world(scene).notes)


def test_a_late_acknowledgement_after_a_revocation_counts_for_nothing() -> None:
    async def scene(world: World) -> None:
        world.log_end, world.safe_at_once = 3, False
        await world.worker.take(fetched(0, 3))
        world.worker.revoked()
        world.core = Core(world.notes)
        world.worker.assigned([CLAIM._replace(epoch=2)])
        await eventually(lambda: "open 2 at 0" in world.notes)
        world.waiting.pop()()
        await asyncio.sleep(2 * worker_module.COMMIT_EVERY_S)

    notes = in_world(scene).notes
    assert "acknowledged 3" not in notes
    assert not any(note.startswith("commit") for note in notes)


def test_a_fetch_of_an_earlier_assignment_is_not_taken_in() -> None:
    async def scene(world: World) -> None:
        world.worker.revoked()
        world.worker.assigned([CLAIM._replace(epoch=2)])
        await eventually(lambda: "open 2 at 0" in world.notes)
        await world.worker.take(fetched(0, 3, epoch=1))
        await world.worker.take(fetched(7, 3, epoch=1))
        await world.worker.take(fetched(0, 2, epoch=2))

    world = in_world(scene)
    assert [note for note in world.notes if note.startswith("take")] == ["take 0"]
    assert world.core.position == 2
    assert world.failures == []


def test_a_hole_stops_the_worker() -> None:
    async def scene(world: World) -> None:
        await world.worker.take(fetched(0, 3))
        await world.worker.take(fetched(4, 3))

    world = in_world(scene)
    (failure,) = world.failures
    assert isinstance(failure, LostDataError)
    assert "from offset 3 were wanted" in str(failure)
    assert not world.worker.drives


def test_an_error_of_a_core_stops_the_worker_and_only_the_first_counts() -> None:
    async def scene(world: World) -> None:
        world.core.take = None  # type: ignore[assignment,method-assign]
        await world.worker.take(fetched(0, 3))
        await world.worker.take(fetched(0, 3))

    assert [type(failure) for failure in in_world(scene).failures] == [TypeError]


def test_a_registry_that_is_away_is_waited_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_module, "AWAY_WAIT_S", 0.01)
    seen: list[str | None] = []

    async def scene(world: World) -> None:
        world.core.away = 3
        taking = asyncio.ensure_future(world.worker.take(fetched(0, 3)))
        await eventually(lambda: world.worker.waiting_for)
        seen.append(world.worker.waiting_for)
        await taking
        seen.append(world.worker.waiting_for)

    world = in_world(scene)
    assert world.core.position == 3
    assert seen == ["the registry does not answer", None]
    assert world.failures == []


def test_a_refused_commit_is_not_told_to_the_core() -> None:
    async def scene(world: World) -> None:
        world.log_end, world.ours = 3, False
        await world.worker.take(fetched(0, 3))
        await eventually(lambda: "refused" in world.notes)

    assert "committed 3" not in in_world(scene).notes


def test_heartbeats_come_only_at_the_log_s_end_and_idle_after_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_module, "HEARTBEAT_EVERY_S", 0.05)
    monkeypatch.setattr(worker_module, "IDLE_AFTER_S", 0.3)

    async def scene(world: World) -> None:
        world.log_end = None  # no fetch has said where the log ends
        before = len(world.notes)
        await asyncio.sleep(0.3)
        assert "heartbeat" not in world.notes[before:]
        world.log_end = 3
        await asyncio.sleep(0.3)
        assert "heartbeat" not in world.notes[before:]
        await world.worker.take(fetched(0, 3))
        await eventually(lambda: "idle" in world.notes)
        assert "heartbeat" in world.notes[: world.notes.index("idle")]
        world.core.clock_runs = False  # duplicates, dead letters, or a clock that stands still
        world.log_end = 6
        await world.worker.take(fetched(3, 3))
        await eventually(lambda: "committed 6" in world.notes)
        await asyncio.sleep(0.15)
        assert world.notes[-1] == "idle"
        world.core.clock_runs = True
        world.log_end = 9
        await world.worker.take(fetched(6, 3))
        await eventually(lambda: "committed 9" in world.notes)
        await eventually(lambda: world.notes[-1] == "heartbeat")

    in_world(scene)


def test_an_orderly_end_commits_what_was_taken_in_and_takes_no_more() -> None:
    async def scene(world: World) -> None:
        world.log_end = 100
        await world.worker.take(fetched(0, 3))
        draining = asyncio.ensure_future(world.worker.drain())
        await asyncio.sleep(0)
        await world.worker.take(fetched(3, 3))
        assert await draining
        assert "committed 3" in world.notes

    assert in_world(scene).core.position == 3
