"""A simulated storage ring: what each monitor's buttons read at each trigger. Knows neither faults nor Kafka.

The beam stands on a closed orbit, bent by a few small kicks that drift over minutes and hours, and oscillates about it
at the tunes (betatron oscillation); the current decays and is topped up. Values are a pure function of seed,
instrument and trigger number, computed in blocks of triggers, so that any part of the ring gives the same bytes.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from producers.draws import chances, normals
from producers.pickup import BUTTONS, amplitudes_v
from schemas.batch import Floats, Int64s

BLOCK_TRIGGERS = 128  # computed at once: enough that NumPy's calls cost nothing, few enough that 1,000 monitors fit
BLOCKS_KEPT = 4  # of each part: the present one, and those from which late triggers come
REVOLUTION_HZ = 390_100  # of a ring of 768 m at the speed of light: CESR's size
TUNES = (10.565, 9.602)  # betatron oscillations in one turn, horizontal and vertical
BETA_M = (5.0, 35.0)  # least and greatest beta function of the ring
KICKS = 12  # sources of orbit distortion
KICK_RAD = 1e-5  # their size: distortions of the order of 1 mm
KICK_DRIFT = 0.1  # how far they wander, as a part of themselves
DRIFT_PERIODS_S = (600.0, 7200.0)  # cooling water to tunnel temperature
OSCILLATION_MM = 0.05  # at the mean beta function
CURRENT_MA = 100.0
LIFETIME_S = 36_000.0
TOP_UP_S = 300.0  # the current is brought back every five minutes
GRID_V = 2.0**-12  # sums of multiples of it are exact in float64


@dataclass(frozen=True)
class Orbit:
    """Optics at the monitors of one ring: phase advance, beta function and the kicks, per plane."""

    phase: Floats  # [plane, instrument], in turns of betatron oscillation
    root_beta: Floats  # [plane, instrument], √m
    kick_phase: Floats  # [plane, kick]
    kick_mm: Floats  # [plane, kick]: θ √β of the kick, in √m · mm/m
    drift_period_s: Floats  # [kick]
    drift_phase: Floats  # [kick]

    @classmethod
    def drawn(cls, instruments: int, seed: int) -> "Orbit":
        """Draw the optics from the seed: monitors stand evenly round the ring, kicks anywhere."""
        places = np.arange(instruments) / instruments
        kicks = np.arange(KICKS)
        least, most = BETA_M
        phase, root_beta, kick_phase, kick_mm = [], [], [], []
        for plane, tune in enumerate(TUNES):
            # Beta beats once in a cell; the planes in opposition, as in a FODO lattice.
            beat = np.cos(2 * np.pi * (16 * places + 0.5 * plane))
            beta = np.sqrt(least * most) * (most / least) ** (0.5 * beat)
            phase.append(tune * places)
            root_beta.append(np.sqrt(beta))
            kick_phase.append(tune * chances(seed, "kick place", plane, kicks))
            kick_mm.append(KICK_RAD * 1000.0 * np.sqrt(most) * (2.0 * chances(seed, "kick", plane, kicks) - 1.0))
        shortest, longest = DRIFT_PERIODS_S
        return cls(
            np.array(phase),
            np.array(root_beta),
            np.array(kick_phase),
            np.array(kick_mm),
            shortest * (longest / shortest) ** chances(seed, "drift period", 0, kicks),
            chances(seed, "drift phase", 0, kicks),
        )

    def closed_mm(self, plane: int, elapsed_s: Floats, part: slice) -> Floats:
        """Give the closed orbit, [time, instrument]: √β / (2 sin πQ) Σ θ √β_k cos(|ψ - ψ_k| - πQ)."""
        turns = np.pi * TUNES[plane]
        ahead = np.abs(self.phase[plane, part, np.newaxis] - self.kick_phase[plane]) * 2.0 * np.pi
        response = self.root_beta[plane, part, np.newaxis] * np.cos(ahead - turns) / (2.0 * np.sin(turns))
        wander = np.sin(2 * np.pi * (elapsed_s[:, np.newaxis] / self.drift_period_s + self.drift_phase))
        kicks = self.kick_mm[plane] * (1.0 + KICK_DRIFT * wander)
        orbit: Floats = (kicks[:, np.newaxis, :] * response[np.newaxis, :, :]).sum(
            axis=2
        )  # not @: BLAS sums as it likes
        return orbit

    def oscillation_mm(self, plane: int, turn: Int64s, part: slice) -> Floats:
        """Give the betatron oscillation, [time, instrument]: every monitor sees the same turn at its own phase."""
        root_mean = float(np.sqrt(np.sqrt(BETA_M[0] * BETA_M[1])))
        advance = np.mod(TUNES[plane] * turn.astype(np.float64), 1.0)
        phase = 2.0 * np.pi * (advance[:, np.newaxis] + self.phase[plane, part])
        return OSCILLATION_MM * self.root_beta[plane, part] / root_mean * np.cos(phase)


@dataclass
class Ring:
    """The buttons of every monitor at every trigger.

    For example::

        ring = Ring(instruments=120, sources=4, rate_hz=Fraction(10), seed=1)
        ring.amplitudes(0, np.arange(100))  # float32[100, 30, 4]: the first crate's monitors, BUTTONS
    """

    instruments: int
    sources: int
    rate_hz: Fraction
    seed: int
    noise_v: float = 0.0005
    grid: bool = False  # amplitudes are multiples of GRID_V
    orbit: Orbit = field(init=False)
    names: list[str] = field(init=False)
    source_names: list[str] = field(init=False)
    _kept: dict[tuple[int, int], NDArray[np.float32]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.orbit = Orbit.drawn(self.instruments, self.seed)
        digits = max(3, len(str(self.instruments)))
        self.names = [f"bpm{number:0{digits}d}" for number in range(1, self.instruments + 1)]
        self.source_names = [f"crate{number}" for number in range(1, self.sources + 1)]

    def part(self, source: int) -> slice:
        """Name the monitors of a crate: contiguous, as evenly as they go."""
        return slice(source * self.instruments // self.sources, (source + 1) * self.instruments // self.sources)

    def time_us(self, triggers: Int64s) -> Int64s:
        """Give the scheduled time of each trigger since the start, µs, floored; exact for any rate."""
        return triggers * (1_000_000 * self.rate_hz.denominator) // self.rate_hz.numerator

    def amplitudes(self, source: int, triggers: Int64s) -> NDArray[np.float32]:
        """Give what the buttons of a crate's monitors read, V: float32[trigger, instrument, button]."""
        part = self.part(source)
        read = np.empty((len(triggers), part.stop - part.start, len(BUTTONS)), np.float32)
        blocks = triggers // BLOCK_TRIGGERS
        for block in np.unique(blocks).tolist():
            at = np.flatnonzero(blocks == block)
            read[at] = self._block(source, block)[triggers[at] - block * BLOCK_TRIGGERS]
        return read

    def silent_amplitudes_v(self, triggers: Int64s, part: slice) -> Floats:
        """Give the same without noise and grid: what perfect electronics would read."""
        x, y = self.positions_mm(triggers, part)
        return amplitudes_v(x, y, np.broadcast_to(self.current_ma(triggers)[:, np.newaxis], x.shape))

    def positions_mm(self, triggers: Int64s, part: slice) -> tuple[Floats, Floats]:
        """Give where the beam is, [trigger, instrument], in both planes."""
        elapsed_us = self.time_us(triggers)
        elapsed_s = elapsed_us.astype(np.float64) * 1e-6
        whole_s, rest_us = np.divmod(elapsed_us, 1_000_000)  # apart, or the product overflows after nine months
        turn = whole_s * REVOLUTION_HZ + rest_us * REVOLUTION_HZ // 1_000_000
        x, y = (
            self.orbit.closed_mm(plane, elapsed_s, part) + self.orbit.oscillation_mm(plane, turn, part)
            for plane in (0, 1)
        )
        return x, y

    def current_ma(self, triggers: Int64s) -> Floats:
        since_top_up_s = np.mod(self.time_us(triggers) * 1e-6, TOP_UP_S)
        current_ma: Floats = CURRENT_MA * np.exp(-since_top_up_s / LIFETIME_S)
        return current_ma

    def _block(self, source: int, block: int) -> NDArray[np.float32]:
        kept = self._kept.get((source, block))
        if kept is None:
            kept = self._computed(source, block)
            ours = [key for key in self._kept if key[0] == source]
            if len(ours) >= BLOCKS_KEPT:
                del self._kept[ours[0]]
            self._kept[source, block] = kept
        return kept

    def _computed(self, source: int, block: int) -> NDArray[np.float32]:
        part = self.part(source)
        triggers = np.arange(block * BLOCK_TRIGGERS, (block + 1) * BLOCK_TRIGGERS)
        read = self.silent_amplitudes_v(triggers, part)
        shape = (BLOCK_TRIGGERS, len(BUTTONS))
        for at, instrument in enumerate(range(part.start, part.stop)):
            read[:, at] += self.noise_v * normals(self.seed, instrument, block, shape)
        return self.gridded(read)

    def gridded(self, read: Floats) -> NDArray[np.float32]:
        """Give what the electronics report: float32, on the grid if there is one."""
        return (np.rint(read / GRID_V) * GRID_V if self.grid else read).astype(np.float32)
