"""The crates of the simulated ring: their records, faults included, to be encoded. Knows neither Kafka nor pace."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from producers.draws import bits
from producers.faults import STATUS_INVALID, Faults, Plan, Planner, damaged, spoil
from producers.pickup import BUTTONS
from producers.ring import Ring
from schemas.batch import Int64s, Vector
from schemas.encoder import Outgoing

RUN_US = 1_000_000  # runs of different seeds with one start differ within a second


class Step(NamedTuple):
    """What is sent in some slots, in the order of sending."""

    outgoing: Outgoing
    slot: Int64s  # per record: when it is due
    damage: Int64s  # per record: index into DAMAGES; -1: whole
    draw: Int64s  # per record: where and how it is damaged
    counts: Counter[str]  # what was done to it

    def spoiled(self, payloads: list[bytes]) -> list[bytes]:
        """Damage the encoded records that are to be damaged."""
        for record in np.flatnonzero(self.damage >= 0).tolist():
            payloads[record] = damaged(payloads[record], int(self.damage[record]), int(self.draw[record]))
        return payloads


class _Part(NamedTuple):
    """One crate's records in a step."""

    plan: Plan
    run: Int64s
    number: Int64s
    amplitudes: np.ndarray  # [record, instrument, button]
    dropped: np.ndarray  # [record, instrument]


def default_run(start_us: int, seed: int) -> int:
    """Name the run of a ring with a given start: the same for the same start and seed, and rarely else."""
    return start_us + int(bits(seed, "run", 0, np.zeros(1, np.int64))[0] % np.uint64(RUN_US))


@dataclass
class Crates:
    """The crates that this process owns; others may own the rest.

    For example::

        crates = Crates(ring, Faults(), start_us, run, owned=[0, 1])
        step = crates.step(0, 128, end=None)
        payloads = step.spoiled(encoder.encode(step.outgoing))
    """

    ring: Ring
    faults: Faults
    start_us: int
    run: int
    owned: list[int]  # numbers of crates, from 0, ascending

    def __post_init__(self) -> None:
        self.planners = {source: Planner(self.faults, self.ring, source) for source in self.owned}

    @property
    def reach_slots(self) -> int:
        """How many slots after the last trigger something may still be held back."""
        return max(planner.reach_slots for planner in self.planners.values())

    def step(self, first: int, stop: int, end: int | None) -> Step:
        """Give the records of slots [first, stop), if there are ever only `end` triggers (None: no end).

        Where the slots are cut does not matter: the records of each crate, and their order, are the same.
        """
        counts: Counter[str] = Counter()
        parts = [self._part(source, first, stop, end, counts) for source in self.owned]
        slot = np.concatenate([part.plan.slot for part in parts])
        owner = np.repeat(np.arange(len(parts)), [len(part.run) for part in parts])
        order = np.lexsort((owner, slot))  # stable: within a slot and a crate as planned
        width = np.array([part.dropped.shape[1] for part in parts], np.int64)[owner]
        start = np.cumsum(width) - width
        counts_out = width[order]
        skipped = np.repeat(start[order] - (np.cumsum(counts_out) - counts_out), counts_out)
        take = skipped + np.arange(len(skipped))
        amplitudes = np.concatenate([part.amplitudes.reshape(-1, len(BUTTONS)) for part in parts])[take]
        dropped = np.concatenate([part.dropped.reshape(-1) for part in parts])[take]
        names = np.concatenate(
            [np.tile(self._names(source), len(part.run)) for source, part in zip(self.owned, parts, strict=True)]
        )
        triggers = np.concatenate([part.plan.trigger for part in parts])[order]
        sources = np.array([self.ring.source_names[source] for source in self.owned], object)
        outgoing = Outgoing(
            source=sources[owner[order]].tolist(),
            run=np.concatenate([part.run for part in parts])[order],
            trigger=np.concatenate([part.number for part in parts])[order],
            time_us=self.start_us + self.ring.time_us(triggers) + self._clock_us()[owner[order]],
            counts=counts_out,
            instrument=names[take].tolist(),
            status=np.where(dropped, STATUS_INVALID, 0).astype(np.int32),
            values={name: Vector(amplitudes[:, button], ~dropped) for button, name in enumerate(BUTTONS)},
        )
        draws = [
            (bits(self.ring.seed, "bytes", source, part.plan.trigger) >> np.uint64(1)).astype(np.int64)
            for source, part in zip(self.owned, parts, strict=True)
        ]
        damage = np.concatenate([part.plan.damage for part in parts])[order]
        return Step(outgoing, slot[order], damage, np.concatenate(draws)[order], counts)

    def _part(self, source: int, first: int, stop: int, end: int | None, counts: Counter[str]) -> _Part:
        planner = self.planners[source]
        plan = planner.plan(first, stop, end)
        began, number = planner.counter(plan.trigger)
        amplitudes = self.ring.amplitudes(source, plan.trigger)
        dropped = spoil(self.faults, self.ring, source, plan.trigger, amplitudes)
        own = np.arange(first, stop if end is None else min(stop, end))
        held = plan.slot - plan.trigger
        late = planner.hit("late", plan.trigger) & ~plan.copied
        counts.update(
            duplicates=int(plan.copied.sum()),
            late=int(late.sum()),
            disordered=int(((held > 0) & ~plan.copied & ~late).sum()),
            missing=int(planner.hit("missing", own).sum()),
            restarts=int(planner.hit("restarts", own[own > 0]).sum()),
            damaged=int((plan.damage >= 0).sum()),
            dropouts=int(dropped.sum()),
        )
        return _Part(plan, self.run + self.ring.time_us(began), number, amplitudes, dropped)

    def _names(self, source: int) -> np.ndarray:
        return np.array(self.ring.names[self.ring.part(source)], object)

    def _clock_us(self) -> Int64s:
        offset_us = round(self.faults.clock_offset_s * 1e6)
        return np.array([offset_us if source == self.faults.clock_source else 0 for source in self.owned], np.int64)
