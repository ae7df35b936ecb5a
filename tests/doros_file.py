"""Makes an HDF5 file of the layout of the LHC's DOROS turn-by-turn files, for tests that have no measured one.

Each monitor is a group with four electrode amplitudes (float32 counts, gzip), the positions that the electronics
computed of them, (V1 - V2) / (V1 + V2) in float64 rounded to float32, and stamps; beside them stand tables, which no
reader of readings should touch.
"""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

MONITORS = ("LHC.BPM.1L1.B1_DOROS", "LHC.BPM.1L1.B2_DOROS", "LHC.BPM.1L2.B1_DOROS")
BST_US = 1_727_573_829_040_156
ELECTRODES = ("horOrbitRawV1", "horOrbitRawV2", "verOrbitRawV1", "verOrbitRawV2")


@dataclass(frozen=True)
class Doros:
    """What stands in the file."""

    path: Path
    turns: int
    starts_us: dict[str, int]  # by monitor
    amplitudes: dict[str, np.ndarray]  # by monitor: float32[electrode, turn]
    positions: dict[str, np.ndarray]  # by monitor: float32[plane, turn]


def make_doros_file(
    path: Path, turns: int = 50_000, monitors: tuple[str, ...] = MONITORS, apart_us: int = 0, seed: int = 1
) -> Doros:
    """Write the file; the monitors' stamps are `apart_us` apart."""
    rng = np.random.default_rng(seed)
    starts_us, amplitudes, positions = {}, {}, {}
    with h5py.File(path, "w") as file:
        for number, monitor in enumerate(monitors):
            group = file.create_group(monitor)
            level = rng.uniform(2.1e9, 3.2e9, (4, 1))
            read = (level * (1 + 3e-5 * rng.standard_normal((4, turns)))).astype(np.float32)
            starts_us[monitor] = BST_US + number * apart_us
            amplitudes[monitor] = read
            first, second = read[0::2].astype(np.float64), read[1::2].astype(np.float64)
            positions[monitor] = ((first - second) / (first + second)).astype(np.float32)
            for name, electrode in zip(ELECTRODES, read, strict=True):
                group.create_dataset(name, data=electrode, chunks=(min(3125, turns),), compression="gzip")
            group["horPositions"], group["verPositions"] = positions[monitor]
            group["horOscillationData"] = group["verOscillationData"] = np.zeros(turns, np.int32)
            stamps = {"bstTimestamp": starts_us[monitor], "acqStamp": starts_us[monitor] + 4_482_202 + 213 * number}
            for name, stamp_us in stamps.items():
                group.create_dataset(name, data=np.array([stamp_us]), compression="gzip")
            group["nbOrbitSamplesRead"] = np.array([turns])
            group["bpmPositionInRing"] = np.array([171.328 * (number + 1)])
        file.create_group("METADATA").attrs["n_turns_initial"] = turns
        table = file.create_group("TIMESTAMPS_TABLE")
        table["data"] = np.array([[starts_us[monitor]] * 3 for monitor in monitors])
        table["columns"] = np.array([b"acqStamp", b"bstStamp", b"ucapStamp"])
    return Doros(path, turns, starts_us, amplitudes, positions)
