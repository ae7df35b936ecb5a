"""Faust transport that hands an agent one event for each fetch and partition of a packed topic, and never commits.

The stock driver does group membership, assignment, retries and threads. Three things are added for packed topics:

1. *Packing.* Between aiokafka's client and its fetcher, the record batches that a fetch brought are wrapped as the
   value of ONE record (processors.packing), which aiokafka and Faust handle as they would any other.
2. *Held partitions.* A newly assigned partition is paused until its owner has restored and says where to begin
   (`open`). So neither Kafka's committed offset nor an automatic reset decides where reading starts.
3. *Positions of our own.* Faust acknowledges what it skips at a rebalance, and commits too early after one. Here it
   is told nothing, and only `commit_positions` commits: within the group's generation, and never while a revocation
   is handled.

The only file that knows the insides of faust-streaming 0.15.3 and aiokafka 0.14.0; tests/test_transport_pins.py
fails when they change.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future  # noqa: TC003 - beside the others, and free
from typing import Any, NamedTuple, Protocol, cast

import faust
from aiokafka.errors import IllegalGenerationError, KafkaError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ack_lock
from mode.utils.futures import notify

from processors.packing import DamagedBatchError, pack, unpack

log = logging.getLogger(__name__)

NOT_A_MEMBER = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)

# How long the broker may hold back a fetch that finds less than FETCH_MIN_BYTES. An event costs 1 ms of CPU whatever
# its size, so a trickle is better collected; each hop waits so long at most. Measured from a record's append to the
# append of the view's row, 120 instruments at 10 Hz, 3 views: 20 ms: half within 58 ms, 35 % of a (busy) core; 50 ms:
# 111 ms, 28 %; 100 ms: 203 ms, 30 %. Idle: 2 to 4 %.
FETCH_WAIT_MS = 20
FETCH_MIN_BYTES = 1 << 20
BUFFERED_EVENTS = 4  # packed events of a topic that may wait for its agent
DAMAGED_FETCHES_MAX = 5  # in a row; damage on the way is gone by then, damage on the broker's disk is not
DAMAGED_WAIT_S = 0.2
OFFSET_OUT_OF_RANGE = 1  # Kafka's error code


class Claim(NamedTuple):
    """One assignment of a partition. A later one has a higher epoch; nothing of this one counts from then on."""

    topic: str
    partition: int
    epoch: int


class PositionLostError(RuntimeError):
    """The next offset wanted is no longer, or not yet, in the log."""


class Owner(Protocol):
    """Who works on the partitions; called on the event loop of the agents."""

    def revoked(self) -> None: ...

    def assigned(self, claims: list[Claim]) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Driver(faust.App):
    """A Faust app whose agents receive a `Packed` for each fetch from one of the `packed` topics."""

    def __init__(self, *args: Any, packed: Iterable[str] = (), owner: Owner, **options: Any) -> None:
        self.packed = frozenset(packed)
        self.owner = owner
        options.setdefault("stream_buffer_maxsize", BUFFERED_EVENTS)
        options.setdefault("stream_wait_empty", False)  # else an agent that is behind holds up a rebalance
        super().__init__(*args, **options)

    def _new_transport(self) -> "Transport":
        return Transport(self.conf.broker_consumer, self)

    @property
    def _positions(self) -> "ConsumerThread":
        return cast("Consumer", self.consumer)._thread

    async def committed(self, claim: Claim) -> tuple[int, str] | None:
        """The group's position and what was committed with it, None where there is none."""
        position: tuple[int, str] | None = await self._positions.on_its_loop(self._positions.committed(claim))
        return position

    async def open(self, claim: Claim, position: int) -> None:
        """Begin to fetch a partition at `position`. Without effect once the claim is void."""
        await self._positions.on_its_loop(self._positions.open(claim, position))

    async def commit_positions(self, positions: Mapping[Claim, tuple[int, str]]) -> bool:
        """Commit offsets with their metadata; False where the partitions are no longer ours."""
        return bool(await self._positions.on_its_loop(self._positions.commit_positions(positions)))

    def end(self, claim: Claim, age_s_max: float) -> int | None:
        """One past the last offset in the log, if a fetch said so within `age_s_max`."""
        end, when = self._positions.ends.get((claim.topic, claim.partition), (0, -age_s_max))
        return end if time.monotonic() - when <= age_s_max else None

    def silence_s(self) -> float:
        """For how long no fetch of an open partition has been answered."""
        heard = [when for _, when in self._positions.ends.copy().values()]
        return time.monotonic() - max(heard) if heard else 0.0

    async def leave(self) -> None:
        """Leave the group at once, so that others get the partitions without waiting for the session's end."""
        await self._positions.on_its_loop(self._positions.leave())


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The aiokafka consumer in its own thread; all but `ends` and `on_its_loop` is for that thread's loop only."""

    app: Driver

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ends: dict[tuple[str, int], tuple[int, float]] = {}  # (topic, partition) -> (end, when it was said)
        self._epoch = 0  # of the current assignment
        self._member: tuple[int, str] | None = None  # as whom the group gave us the partitions
        self._claims: dict[tuple[str, int], Claim] = {}
        self._committing = asyncio.Lock()
        self._damaged: dict[tuple[str, int], int] = {}  # fetches in a row

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._client.send = self._packing(consumer._client.send)
        consumer._fetch_max_wait_ms, consumer._fetch_min_bytes = FETCH_WAIT_MS, FETCH_MIN_BYTES
        consumer._isolation_level = "read_committed"
        consumer._check_crcs = False
        return consumer

    async def on_its_loop(self, work: Awaitable[Any]) -> Any:
        """Run on the consumer's loop, wait on the caller's."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.thread_loop)  # type: ignore[arg-type]
        return await asyncio.wrap_future(future)

    def hold(self, assigned: Iterable[TopicPartition]) -> list[Claim]:
        """Keep packed partitions from being fetched until they are opened.

        Called as the first thing after an assignment, before aiokafka can ask for a committed offset: a partition
        that has a position is not given another one.
        """
        consumer = self._ensure_consumer()
        self._epoch += 1
        self._member = self._membership()
        self.ends.clear()
        self._damaged.clear()
        for topic, partition in assigned:
            if topic in self.app.packed:
                consumer.seek(TopicPartition(topic, partition), 0)
                consumer.pause(TopicPartition(topic, partition))
                self._claims[topic, partition] = Claim(topic, partition, self._epoch)
        return list(self._claims.values())

    async def committed(self, claim: Claim) -> tuple[int, str] | None:
        """The consumer's public call leaves the metadata out, and confluent-kafka's reads beyond its end."""
        place = TopicPartition(claim.topic, claim.partition)
        coordinator = self._ensure_consumer()._coordinator
        found = (await coordinator.fetch_committed_offsets([place])).get(place)
        return None if found is None else (found.offset, found.metadata)

    async def open(self, claim: Claim, position: int) -> None:
        if self._claims.get((claim.topic, claim.partition)) == claim:
            place = TopicPartition(claim.topic, claim.partition)
            consumer = self._ensure_consumer()
            consumer.seek(place, position)
            consumer.resume(place)

    async def commit_positions(self, positions: Mapping[Claim, tuple[int, str]]) -> bool:
        """Once, and as the member that the claims were assigned to.

        aiokafka's own commit repeats under whatever membership holds by then, none included: and a group that is
        empty at that moment takes the position of one that was thrown out long ago.
        """
        consumer = self._ensure_consumer()
        async with self._committing:
            await consumer._coordinator.ensure_coordinator_known()
            if self._member != self._membership() or any(
                self._claims.get((claim.topic, claim.partition)) != claim for claim in positions
            ):
                return False
            offsets = {
                TopicPartition(claim.topic, claim.partition): OffsetAndMetadata(position, metadata)
                for claim, (position, metadata) in positions.items()
            }
            try:
                assignment = consumer._subscription.subscription.assignment
                await asyncio.shield(consumer._coordinator._do_commit_offsets(assignment, offsets))
            except KafkaError as error:
                if error.retriable or isinstance(error, NOT_A_MEMBER):  # again later, or a rebalance follows
                    log.info("positions were not committed: %r", error)
                    return False
                raise
            return True

    def _membership(self) -> tuple[int, str]:
        coordinator = self._ensure_consumer()._coordinator
        return coordinator.generation, coordinator.member_id

    async def void(self) -> None:
        """End all claims, once a commit on its way has been answered.

        aiokafka repeats a commit under whatever generation holds by then: an old owner's could so be accepted.
        """
        async with self._committing:
            self._claims.clear()
            self.ends.clear()

    async def leave(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()

    def _packing(self, send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The client's `send`, with the batches of fetch responses checked and packed."""

        async def send_and_pack(node_id: int, request: Any, **options: Any) -> Any:
            if not isinstance(request, FetchRequest):
                return await send(node_id, request, **options)
            if self._damaged:
                await asyncio.sleep(DAMAGED_WAIT_S)
            response = await send(node_id, request, **options)
            # No waiting from here on: the epoch that `_pack` notes is the one in which the fetcher looks at the batch.
            asked = {(topic, part): offset for topic, parts in request.topics for part, offset, *_ in parts}
            topics = []
            for topic, parts in response.topics:
                packed = []
                for fields in parts:
                    try:
                        kept = self._pack(topic, asked[topic, fields[0]], fields)
                    except DamagedBatchError as error:
                        self._note_damage(topic, fields[0], error)
                        continue
                    packed += [kept] if kept is not None else []
                topics.append((topic, packed))
            response.topics = topics  # what is missing here is fetched again
            return response

        return send_and_pack

    def _pack(self, topic: str, first: int, fields: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """One partition of a fetch response, packed; None where the fetcher is not to see it.

        Fields (from version 4 on): partition, error, high watermark, last stable offset, … aborted …, batches.
        """
        partition, error, _, stable_end, *_ = fields
        *before, data = fields
        claim = self._claims.get((topic, partition))
        if topic not in self.app.packed:
            return fields
        if claim is None:
            return None
        if error == OFFSET_OUT_OF_RANGE:  # aiokafka would begin somewhere else, in silence
            lost = PositionLostError(
                f"{topic}/{partition}: offset {first} is not in the log: records were deleted before they were read,"
                " or the topic was truncated; nothing is skipped in silence, so this needs a decision"
            )
            self._tell(self.app.owner.failed, lost)
            return None
        if error == 0:
            self.ends[topic, partition] = (stable_end, time.monotonic())
        if error == 0 and data:
            aborted = next((field for field in before if isinstance(field, list)), ())
            data = pack(data, first, claim.epoch, aborted, f"{topic}/{partition}")
            self._damaged.pop((topic, partition), None)
        return (*before, data)

    def _note_damage(self, topic: str, partition: int, error: DamagedBatchError) -> None:
        count = self._damaged[topic, partition] = self._damaged.get((topic, partition), 0) + 1
        log.warning("%s (try %d of %d)", error, count, DAMAGED_FETCHES_MAX)
        if count >= DAMAGED_FETCHES_MAX:
            self._tell(self.app.owner.failed, error)

    def _tell(self, listener: Callable[..., None], *arguments: Any) -> None:
        if not self.parent_loop.is_closed():
            self.parent_loop.call_soon_threadsafe(listener, *arguments)


class RebalanceListener(driver.ConsumerRebalanceListener):
    """Called by aiokafka on the consumer's thread, in the middle of a rebalance."""

    _thread: ConsumerThread

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> Awaitable[None]:
        rest = super().on_partitions_revoked(revoked)
        self._thread._tell(self._thread.app.owner.revoked)

        async def void_first() -> None:
            await self._thread.void()
            await rest

        return void_first()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        claims = self._thread.hold(assigned)
        await super().on_partitions_assigned(assigned)
        self._thread._tell(self._thread.app.owner.assigned, claims)


class Consumer(driver.Consumer):
    """Faust's consumer, relieved of all bookkeeping for packed topics."""

    app: Driver
    _thread: ConsumerThread
    RebalanceListener = RebalanceListener

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def _to_message(self, tp: Any, record: Any) -> Any:
        message: Any = super()._to_message(tp, record)
        if tp.topic in self.app.packed:
            message.value = unpack(tp.topic, tp.partition, record.offset, record.key, record.value)
            message.key = None
            self._read_offset[tp] = None  # else Faust drops what comes again after an earlier position was opened
        return message

    def ack(self, message: Any) -> bool:
        """Release a packed message; what it says of positions is not kept."""
        if message.topic not in self.app.packed:
            return bool(super().ack(message))
        with ack_lock:
            message.acked = True
            self._unacked_messages.discard(message)
            notify(self._waiting_for_ack)
        return True

    def _new_offset(self, tp: Any) -> int | None:
        return None if tp.topic in self.app.packed else super()._new_offset(tp)

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        if tp.topic not in self.app.packed:
            await super()._add_gap(tp, offset_from, offset_to)

    async def seek_to_committed(self) -> Mapping[Any, int]:
        """After a rebalance Faust goes back to what is committed: not for packed topics, which wait to be opened."""
        stock = [tp for tp in self.assignment() if tp.topic not in self.app.packed]
        if not stock:
            return {}
        consumer = self._thread._ensure_consumer()
        return dict(await self._thread.call_thread(consumer.seek_to_committed, *stock))

    def on_buffer_full(self, tp: Any) -> None:
        """Do without Faust's back-pressure, which takes the partition out of the fetch until the stream's buffer is
        nearly empty: it starves that partition while others keep the buffer full, and if none is left it sleeps
        for a second. Without it, whoever fills the buffer waits for room, all partitions in turn.
        """
        if tp.topic not in self.app.packed:
            super().on_buffer_full(tp)

    def verify_event_path(self, now: float, tp: Any) -> None:
        """Faust's watch for partitions that stand still: a packed one may wait for its restore as long as it takes."""
        if tp.topic not in self.app.packed:
            super().verify_event_path(now, tp)


class Transport(driver.Transport):
    """The driver that Faust is given."""

    Consumer = Consumer
