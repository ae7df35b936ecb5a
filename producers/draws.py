"""Randomness that any part of the ring can compute alone: numbers drawn by what they are for, not by order.

Knows neither the ring nor its faults. Everything is a pure function of (seed, purpose, number, trigger), so that
processes which share a ring, and a process that is started in the middle, draw the same.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Floats, Int64s

UInt64s = NDArray[np.uint64]
# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): a step and a mixer of
# 64 bits, each a bijection, so that neighbouring triggers share nothing.
_ONE = np.uint64(1)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def bits(seed: int, purpose: str, number: int | Int64s, triggers: Int64s) -> UInt64s:
    """64 random bits for each trigger of source or instrument `number`; the two broadcast."""
    state = np.zeros(1, np.uint64)
    for word in (seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(purpose.encode()), number):
        # Arrays, be it of one: NumPy warns of the wrap-around of scalars, and of arrays it does not.
        state = _mixed(state + (np.atleast_1d(np.asarray(word, np.uint64)) + _ONE) * _STEP)
    return _mixed(_mixed(state + triggers.astype(np.uint64) * _STEP))


def chances(seed: int, purpose: str, number: int | Int64s, triggers: Int64s) -> Floats:
    """A number in [0, 1) for each trigger: `chances(…) < fraction` picks that fraction of them."""
    return (bits(seed, purpose, number, triggers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(seed: int, instrument: int, block: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw Gaussian noise of one instrument over one block of triggers.

    Philox is counter-based: the key names seed and instrument, the upper half of the counter the block.
    """
    philox = np.random.Philox(key=[seed & 0xFFFFFFFFFFFFFFFF, instrument], counter=[0, 0, block, 0])
    return np.random.Generator(philox).standard_normal(shape, np.float32)


def _mixed(state: UInt64s) -> UInt64s:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
