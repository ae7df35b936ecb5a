"""The world around the real cores: logs, commits, owners and zombies, compaction and tables, in any order of events."""

import json
import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from model import SECOND_US, JsonCodec, JsonRows, Record, SetView, raw_batch

from processors.combine import Combiner, ViewPartition
from processors.combine_restore import CombineRestore
from processors.partial import REPEAT_HEARTBEAT_CALLS, PartialWorker, SourcePartition
from processors.partial_restore import PartialRestore
from processors.records import Flush, Message

RECORD_US = 100_000  # of the broker's clock, for each record that it takes in
PAUSE_US = 60 * SECOND_US
TopicPartition = tuple[str, int]


class Log:
    """One partition of a topic: offsets stay what they are when compaction takes records out."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes | None]] = []
        self.append_us: dict[int, int] = {}
        self.end = 0

    def append(self, key: bytes, value: bytes | None, append_us: int) -> None:
        self.append_us[self.end] = append_us
        self.records.append((self.end, key, value))
        self.end += 1

    def compact(self) -> None:
        last = {key: offset for offset, key, _ in self.records}
        self.records = [r for r in self.records if last[r[1]] == r[0] and r[2] is not None]


class Owner:
    """One ownership of a partition: a core, and its messages on their way to the broker."""

    def __init__(self, at: TopicPartition, core: PartialWorker | Combiner) -> None:
        self.at, self.core = at, core
        self.sending: dict[TopicPartition, deque[tuple[Message, Flush | None]]] = defaultdict(deque)
        self.unacknowledged = 0
        self.flush: Flush | None = None
        self.zombie = False

    def send(self, messages: list[Message], flush: Flush | None) -> None:
        for message in messages:
            self.sending[message.topic, message.partition].append((message, flush))
            self.unacknowledged += flush is not None


class World:
    """Everything outside the cores. A subclass with one rule broken shows that the checks notice."""

    restore: type[PartialRestore] = PartialRestore
    combine_restore: type[CombineRestore] = CombineRestore

    def __init__(
        self,
        inputs: list[list[Record]],
        views: list[SetView],
        *,
        view_partitions: int,
        out_of_orderness_us: int = 2 * SECOND_US,
    ) -> None:
        self.inputs, self.views, self.view_partitions = inputs, views, view_partitions
        self.out_of_orderness_us = out_of_orderness_us
        self.arrived = [0] * len(inputs)  # records in the source topic by now
        self.logs: dict[TopicPartition, Log] = defaultdict(Log)
        self.commits: dict[TopicPartition, tuple[int, str]] = {}
        self.tables: dict[str, dict[tuple[str, int], dict[str, Any]]] = {view.name: {} for view in views}
        self.dirty: set[tuple[str, str, int]] = set()  # (view, instrument, pane start)
        self.sink_at: dict[TopicPartition, int] = defaultdict(int)
        self.owners: dict[TopicPartition, Owner] = {}
        self.zombies: list[Owner] = []
        self.clock_us = 10 * SECOND_US  # of the broker
        self._writers = 0
        self.trace: list[str] = []
        for at in self.places():
            self.own(at)

    def places(self) -> list[TopicPartition]:
        partials = [(f"{view.name}.partials", q) for view in self.views for q in range(self.view_partitions)]
        return [("s", p) for p in range(len(self.inputs))] + partials

    # --- ownership --------------------------------------------------------------------------------------------------

    def own(self, at: TopicPartition) -> None:
        """A new owner restores: the committed position, then the ends of the logs, then their records."""
        topic, partition = at
        committed = self.commits.get(at)
        restore: Any
        if topic == "s":
            source = SourcePartition("s", "id", partition, self.view_partitions, 1 << 60, self.out_of_orderness_us)
            restore = self.restore(source, self.views, JsonCodec(), committed, 0, self.arrived[partition])
        else:
            view = next(view for view in self.views if topic == f"{view.name}.partials")
            part = ViewPartition(topic, "id", partition, len(self.inputs))
            restore = self.combine_restore(part, view, JsonRows(), committed, self.logs[at].end)
        ends = restore.begin({wanted: self.logs[wanted].end for wanted in restore.wanted()})
        for wanted, end in ends.items():
            for offset, _, value in self.logs[wanted].records:
                if offset < end:
                    restore.take(*wanted, offset, value)
        owner = self.owners[at] = Owner(at, restore.finish(self.writer()))
        if committed is None:  # the first commit comes before anything is taken in
            self.flush(owner)
            self.commit(owner)

    def writer(self) -> bytes:
        self._writers += 1
        return self._writers.to_bytes(16, "big")

    def may_commit(self, owner: Owner) -> bool:
        """Everything acknowledged; and the broker refuses who is not the group's present member."""
        return owner.flush is not None and owner.unacknowledged == 0 and not owner.zombie

    def take(self, owner: Owner, most: int) -> None:
        topic, partition = owner.at
        first = owner.core.position
        if topic == "s":
            after = min(first + most, self.arrived[partition])
            log = self.inputs[partition]
            records: list[tuple[int, bytes | None]] = [(o, json.dumps(log[o]).encode()) for o in range(first, after)]
        else:
            rest = [(o, value) for o, _, value in self.logs[owner.at].records if o >= first]
            records = rest[:most]
            after = records[-1][0] + 1 if len(rest) > most else self.logs[owner.at].end
        append_us = None if topic == "s" else [self.logs[owner.at].append_us[offset] for offset, _ in records]
        owner.core.take(raw_batch(topic, partition, first, records, after, append_us))

    def flush(self, owner: Owner) -> None:
        flush = owner.core.flush()
        if flush is not None:
            owner.flush = flush
            owner.send(flush.messages, flush)

    def deliver(self, owner: Owner, to: TopicPartition) -> None:
        message, flush = owner.sending[to].popleft()
        self.clock_us += RECORD_US
        self.logs[to].append(message.key, message.value, self.clock_us)
        if flush is not None:
            flush.ends[to] = self.logs[to].end
        owner.unacknowledged -= flush is not None
        if not owner.sending[to]:
            del owner.sending[to]

    def commit(self, owner: Owner) -> None:
        """Only the group's present member commits: the broker refuses others by their generation."""
        if owner.flush is None:
            return
        checkpoint = owner.core.acknowledged(owner.flush)
        owner.flush = None
        self.commits[owner.at] = (checkpoint.position, checkpoint.metadata)
        owner.send(owner.core.committed(checkpoint), None)

    def behind(self, owner: Owner) -> bool:
        topic, partition = owner.at
        end = self.arrived[partition] if topic == "s" else self.logs[owner.at].end
        return owner.core.position < end

    # --- the view sink ----------------------------------------------------------------------------------------------

    def sink(self, at: TopicPartition) -> None:
        for offset, _, value in self.logs[at].records:
            if offset < self.sink_at[at]:
                continue
            self.sink_at[at] = offset + 1
            row = json.loads(value or b"{}")
            if row["mark_offset"] is not None:
                self.dirty.add((at[0], row["instrument"], row["window_start"]))
                return
            table, key = self.tables[at[0]], (row["instrument"], row["window_start"])
            known = table.get(key)
            if known is not None:
                assert row["revision"] != known["revision"] or row["bits"] == known["bits"], ("tie", key, known, row)
                assert row["revision"] <= known["revision"] or row["bits"] & known["bits"] == known["bits"], (
                    "not a chain", key, known, row)  # fmt: skip
            assert row["revision"] == row["count"] == row["bits"].bit_count(), ("doubled", key, row)
            if known is None or (row["revision"], row["closed"]) > (known["revision"], known["closed"]):
                row["closed"] |= known is not None and known["closed"]
                table[key] = row
            elif row["closed"]:
                known["closed"] = True
            return

    # --- what may happen next ---------------------------------------------------------------------------------------

    def actions(self, rng: random.Random, budget: dict[str, int]) -> list[tuple[str, Callable[[], None]]]:
        found: list[tuple[str, Callable[[], None]]] = []

        def may(name: str, action: Callable[..., None], *arguments: Any) -> None:
            found.append((name, lambda: action(*arguments)))

        for owner in [*self.owners.values(), *self.zombies]:
            if self.behind(owner):
                may("take", self.take, owner, rng.randint(1, 3))
            if owner.flush is None:
                may("flush", self.flush, owner)
            elif self.may_commit(owner):
                may("commit", self.commit, owner)
            for to in list(owner.sending):
                may("deliver", self.deliver, owner, to)
            if owner.zombie:
                may("die", self.zombies.remove, owner)
        for at, owner in self.owners.items():
            if budget["crash"] > 0:
                may("crash", self.spend, budget, "crash", self.own, at)
            if budget["zombie"] > 0:
                may("zombie", self.spend, budget, "zombie", self.turn_zombie, at)
            settled = self.commits.get(at, (0, ""))[0] == owner.core.position and owner.flush is None
            if at[0] == "s" and budget["idle"] > 0 and settled and not self.behind(owner):
                may("idle", self.spend, budget, "idle", self.idle, owner)
        if budget["pause"] > 0:
            may("pause", self.spend, budget, "pause", self.pause)
        for p, log in enumerate(self.inputs):
            if self.arrived[p] < len(log):
                may("arrive", self.arrive, p)
        for at, log in list(self.logs.items()):
            if at[0] in self.tables and log.end > self.sink_at[at]:
                may("sink", self.sink, at)
            if at[0] in self.tables and budget["again"] > 0 and self.sink_at[at]:
                may("again", self.spend, budget, "again", self.sink_at.__setitem__, at, 0)
            if budget["compact"] > 0 and log.records:
                may("compact", self.spend, budget, "compact", log.compact)
        return found

    def arrive(self, p: int) -> None:
        self.arrived[p] += 1

    def idle(self, owner: Owner) -> None:
        """Say it, though it may have been said before: owners repeat it every so often."""
        for _ in range(REPEAT_HEARTBEAT_CALLS):
            owner.send(owner.core.heartbeat(idle=True), None)

    def pause(self) -> None:
        """Time passes and nobody says anything."""
        self.clock_us += PAUSE_US

    def turn_zombie(self, at: TopicPartition) -> None:
        old = self.owners[at]
        old.zombie = True
        self.zombies.append(old)
        self.own(at)

    @staticmethod
    def spend(budget: dict[str, int], what: str, action: Callable[..., None], *arguments: Any) -> None:
        budget[what] -= 1
        action(*arguments)

    def work(self, owner: Owner) -> None:
        """Let an owner take in what there is, and see it through."""
        while self.behind(owner):
            self.take(owner, 3)
        self.flush(owner)
        while owner.sending:
            self.deliver(owner, next(iter(owner.sending)))
        if owner.flush is not None and owner.unacknowledged == 0:
            self.commit(owner)
        while owner.sending:
            self.deliver(owner, next(iter(owner.sending)))

    def quiesce(self, *, idle: bool) -> None:
        """Let everything that waits be done, and every source partition say that it is idle."""
        for _ in range(200):
            before = self._progress()
            for owner in self.owners.values():
                self.work(owner)
            for at in list(self.logs):
                while at[0] in self.tables and any(o >= self.sink_at[at] for o, _, _ in self.logs[at].records):
                    self.sink(at)
            if self._progress() == before:
                if not idle:
                    return
                for at, owner in self.owners.items():
                    if at[0] == "s":
                        self.idle(owner)
                idle = False
        raise AssertionError("the pipeline does not come to rest")

    def _progress(self) -> tuple[int, ...]:
        return (*(log.end for log in self.logs.values()), *(c[0] for c in self.commits.values()))
