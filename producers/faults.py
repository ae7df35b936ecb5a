"""What can go wrong on purpose: which triggers come late, twice or not at all, and which readings are wrong.

Everything is a pure function of seed, source and trigger number (schemas and Kafka are unknown here), so that a fault
hits the same triggers whatever the pace, the number of processes, and where the stream is cut into steps.

Time here is counted in slots: trigger k is due in slot k; a fault may move it, or a copy of it, to a later slot.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.draws import bits, chances
from producers.ring import Ring
from schemas.batch import Bools, Floats, Int64s

DISORDER_SLOTS = 4  # a disordered trigger comes after 1 to 4 of its successors
COPY_SLOTS = 8  # a record is sent again 1 to 8 slots after the first time
STUCK_TRIGGERS = 1024  # a button that is stuck stays so for so many triggers
COUNTED_TRIGGERS = 65_536  # looked through at once for restarts of the counter
STATUS_INVALID = 3  # EPICS severity INVALID
DAMAGES = ("cut short", "foreign first byte", "unknown schema id", "text")
UNKNOWN_SCHEMA_ID = 0x7FFFFFF0


class FaultError(ValueError):
    """A fault that cannot be: which one, and what it may be."""


@dataclass(frozen=True)
class Faults:
    """Which part of triggers or readings each fault hits; all off by default.

    For example::

        Faults(duplicates=0.01, late=0.001, late_by_s=30.0)
    """

    dropouts: float = 0.0  # of readings: amplitudes null, status INVALID
    stuck: float = 0.0  # of readings: one button stays where it was
    duplicates: float = 0.0  # of records: sent a second time, byte for byte
    disorder: float = 0.0  # of records: overtaken by up to DISORDER_SLOTS successors
    late: float = 0.0  # of records: sent `late_by_s` after their time
    late_by_s: float = 5.0
    missing: float = 0.0  # of records: never sent, their trigger numbers are missing
    restarts: float = 0.0  # of triggers: the crate's counter begins anew there, in a new run
    damaged: float = 0.0  # of records: sent as bytes that nobody can decode
    clock_source: int | None = None  # the crate with the wrong clock, from 0
    clock_offset_s: float = 0.0  # what its clock is ahead; negative: behind

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name in FRACTIONS and not 0.0 <= getattr(self, one.name) <= 1.0:
                raise FaultError(f"{one.name}={getattr(self, one.name):g}: give a fraction from 0 to 1")
        if not 0.0 <= self.late_by_s <= 86_400.0:
            raise FaultError(f"late_by_s={self.late_by_s:g}: give seconds from 0 to 86400")


FRACTIONS = ("dropouts", "stuck", "duplicates", "disorder", "late", "missing", "restarts", "damaged")


class Plan(NamedTuple):
    """What one source sends in some slots, in the order of sending."""

    slot: Int64s
    trigger: Int64s  # number since the start of the ring, whatever the crate's own counter says
    copied: Bools  # sent before
    damage: Int64s  # index into DAMAGES; -1: whole


class Planner:
    """Decides what one source sends when."""

    def __init__(self, faults: Faults, ring: Ring, source: int) -> None:
        self.faults = faults
        self.ring = ring
        self.source = source
        self.late_slots = int(np.ceil(faults.late_by_s * float(ring.rate_hz))) if faults.late else 0
        self._counter = _Counter(self)

    @property
    def reach_slots(self) -> int:
        """How many slots after its own a trigger may still be sent."""
        return max(self.late_slots, DISORDER_SLOTS) + COPY_SLOTS

    def plan(self, first: int, stop: int, end: int | None) -> Plan:
        """Name what is sent in slots [first, stop), if there are ever only `end` triggers (None: no end)."""
        triggers = self._candidates(first, stop, end)
        triggers = triggers[~self.hit("missing", triggers)]
        slot = triggers + self._shift(triggers)
        again = np.flatnonzero(self.hit("duplicates", triggers))
        gap = 1 + (self.draw("gap", triggers[again]) * COPY_SLOTS).astype(np.int64)
        plan = Plan(
            slot=np.concatenate([slot, slot[again] + gap]),
            trigger=np.concatenate([triggers, triggers[again]]),
            copied=np.arange(len(triggers) + len(again)) >= len(triggers),
            damage=self._damage(np.concatenate([triggers, triggers[again]])),
        )
        now = np.flatnonzero((plan.slot >= first) & (plan.slot < stop))
        # Within a slot the punctual trigger comes first: what is moved to the slot comes after its successor.
        order = now[np.lexsort((plan.copied[now], -plan.trigger[now], plan.slot[now]))]
        return Plan(plan.slot[order], plan.trigger[order], plan.copied[order], plan.damage[order])

    def counter(self, triggers: Int64s) -> tuple[Int64s, Int64s]:
        """Say what the crate's own counter shows: at which trigger it last began anew, and its number since."""
        began = self._counter.began(triggers)
        return began, triggers - began

    def hit(self, fault: str, triggers: Int64s) -> Bools:
        fraction: float = getattr(self.faults, fault)
        return self.draw(fault, triggers) < fraction

    def draw(self, purpose: str, triggers: Int64s) -> Floats:
        return chances(self.ring.seed, purpose, self.source, triggers)

    def _candidates(self, first: int, stop: int, end: int | None) -> Int64s:
        near = np.arange(max(0, first - DISORDER_SLOTS - COPY_SLOTS), stop)
        if self.late_slots:
            far = np.arange(max(0, first - self.late_slots - COPY_SLOTS), max(0, stop - self.late_slots))
            near = np.union1d(far, near)
        return near if end is None else near[near < end]

    def _shift(self, triggers: Int64s) -> Int64s:
        shift = np.zeros(len(triggers), np.int64)
        disordered = self.hit("disorder", triggers)
        shift[disordered] = 1 + (self.draw("shift", triggers[disordered]) * DISORDER_SLOTS).astype(np.int64)
        shift[self.hit("late", triggers)] = self.late_slots
        return shift

    def _damage(self, triggers: Int64s) -> Int64s:
        kind = (self.draw("damage", triggers) * len(DAMAGES)).astype(np.int64)
        return np.where(self.hit("damaged", triggers), kind, -1)


class _Counter:
    """Remembers where a crate's counter began anew: the one thing that needs all triggers before."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.known_to = 0
        self.begins = np.zeros(1, np.int64)

    def began(self, triggers: Int64s) -> Int64s:
        if not self.planner.faults.restarts:
            return np.zeros(len(triggers), np.int64)
        if triggers.min(initial=self.known_to) < self.begins[0]:
            self.known_to, self.begins = 0, np.zeros(1, np.int64)  # asked for what was let go: learn it again
        stop = int(triggers.max(initial=-1)) + 1
        while self.known_to < stop:
            self._learn(min(stop, self.known_to + COUNTED_TRIGGERS))
        return self.begins[np.searchsorted(self.begins, triggers, "right") - 1]

    def _learn(self, stop: int) -> None:
        fresh = np.arange(max(self.known_to, 1), stop)
        fresh = fresh[self.planner.hit("restarts", fresh)]
        self.known_to = stop
        # Keep what a trigger may still ask for: bounded by the reach, however long the ring runs.
        oldest = np.searchsorted(self.begins, stop - 2 * COUNTED_TRIGGERS - self.planner.reach_slots, "right") - 1
        self.begins = np.concatenate([self.begins[max(0, int(oldest)) :], fresh])


def spoil(faults: Faults, ring: Ring, source: int, triggers: Int64s, read: NDArray[np.float32]) -> Bools:
    """Put stuck buttons into `read` [trigger, instrument, button]; say which readings dropped out."""
    part = ring.part(source)
    instruments = np.arange(part.start, part.stop)
    dropped = np.zeros(read.shape[:2], np.bool_)
    if faults.dropouts:
        dropped = chances(ring.seed, "dropouts", instruments, triggers[:, np.newaxis]) < faults.dropouts
    if faults.stuck:
        stretch = triggers // STUCK_TRIGGERS
        stuck = chances(ring.seed, "stuck", instruments, stretch[:, np.newaxis]) < faults.stuck
        for at in np.flatnonzero(stuck.any(axis=0)).tolist():
            rows, instrument = np.flatnonzero(stuck[:, at]), part.start + at
            button = bits(ring.seed, "button", instrument, stretch[rows]) % np.uint64(read.shape[2])
            read[rows, at, button] = _stuck_at(ring, stretch[rows] * STUCK_TRIGGERS, instrument, button)
    return dropped


def _stuck_at(ring: Ring, since: Int64s, instrument: int, button: NDArray[np.uint64]) -> NDArray[np.float32]:
    """What the button read when it stuck."""
    at = slice(instrument, instrument + 1)
    values = ring.silent_amplitudes_v(since, at)[np.arange(len(since)), 0, button]
    return ring.gridded(values)


def damaged(payload: bytes, damage: int, draw: int) -> bytes:
    """Spoil a framed payload so that it can never be decoded, whatever the schema."""
    kind = DAMAGES[damage]
    if kind == "cut short":
        return payload[: 1 + draw % (len(payload) - 1)]  # any prefix lacks at least the end of its last field
    if kind == "foreign first byte":
        return bytes([1 + draw % 255]) + payload[1:]
    if kind == "unknown schema id":
        return payload[:1] + UNKNOWN_SCHEMA_ID.to_bytes(4, "big") + payload[5:]
    return b'{"note": "this is not Avro"}'
