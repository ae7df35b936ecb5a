"""Compiled loops over Kafka's record batches: where each record's value lies. Knows the format, checks every length."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from schemas.batch import Int64s

Bytes = NDArray[np.uint8]
Number = Any  # int and np.int64, which numba does not tell apart

# What a kernel found wrong; MEANINGS says it to a person.
GOOD, CUT_OFF, OLD_FORMAT, COMPRESSED, CREATE_TIME, RECORD_CUT_OFF, WRONG_COUNT = range(7)
MEANINGS = {
    CUT_OFF: "a batch is cut off",
    OLD_FORMAT: "a batch is in a format older than Kafka 0.11",
    COMPRESSED: "a batch is still compressed",
    RECORD_CUT_OFF: "a record reaches beyond its batch",
    WRONG_COUNT: "a batch holds another number of records than it says",
}

# Layout of a batch's header (format v2); its length counts from byte 12.
LENGTH_AT, LENGTH_COUNTS_FROM, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT = 8, 12, 16, 21, 23
MAX_TIMESTAMP_AT, COUNT_AT, HEADER_BYTES = 35, 57, 61
CODEC_BITS, LOG_APPEND_TIME_BIT = 0x07, 0x08
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, key, value, headers: a byte each
VARINT_BITS_MAX = 63
US_PER_MS = 1000


@njit(cache=True, nogil=True)
def count_records(data: Bytes) -> tuple[Number, Number]:
    """How many records the batches say they hold, and what is wrong with the batches' frames."""
    at, count = 0, 0
    while at < len(data):
        end, status = batch_end(data, at)
        if status != GOOD:
            return 0, status
        records = integer(data, at + COUNT_AT, 4)
        if records < 0 or records * RECORD_BYTES_MIN > end - at - HEADER_BYTES:
            return 0, WRONG_COUNT
        if records > 0 and not data[at + ATTRIBUTES_AT + 1] & LOG_APPEND_TIME_BIT:
            return 0, CREATE_TIME
        count += records
        at = end
    return count, GOOD


@njit(cache=True, nogil=True)
def find_values(
    data: Bytes, first: Number, starts: Int64s, sizes: Int64s, offsets: Int64s, append_us: Int64s
) -> tuple[Number, Number]:
    """Note every record from offset `first` on; the arrays have room for all that `count_records` counted."""
    at, found = 0, 0
    while at < len(data):
        end, status = batch_end(data, at)
        if status != GOOD:
            return 0, status
        base, last_delta = integer(data, at, 8), integer(data, at + LAST_DELTA_AT, 4)
        appended_us = integer(data, at + MAX_TIMESTAMP_AT, 8) * US_PER_MS
        place = at + HEADER_BYTES
        for _ in range(integer(data, at + COUNT_AT, 4)):
            start, size, delta, place = find_value(data, place, end)
            if place < 0:
                return 0, RECORD_CUT_OFF
            if delta < 0 or delta > last_delta or found >= len(starts):
                return 0, WRONG_COUNT
            if base + delta >= first:
                starts[found], sizes[found] = start, size
                offsets[found], append_us[found] = base + delta, appended_us
                found += 1
        if place != end:
            return 0, WRONG_COUNT
        at = end
    return found, GOOD


@njit(cache=True, nogil=True)
def batch_end(data: Bytes, at: Number) -> tuple[Number, Number]:
    """Where the batch at `at` ends: within the data, and with room for its header."""
    if at + HEADER_BYTES > len(data):
        return at, CUT_OFF
    end = at + LENGTH_COUNTS_FROM + integer(data, at + LENGTH_AT, 4)
    if end < at + HEADER_BYTES or end > len(data):
        return at, CUT_OFF
    if data[at + MAGIC_AT] != 2:
        return at, OLD_FORMAT
    if data[at + ATTRIBUTES_AT + 1] & CODEC_BITS:
        return at, COMPRESSED
    return end, GOOD


@njit(cache=True, nogil=True)
def find_value(data: Bytes, at: Number, end: Number) -> tuple[Number, Number, Number, Number]:
    """(start of the value, its size or -1 for null, offset delta, where the next record begins or -1: damaged)."""
    damaged = (np.int64(0), np.int64(0), np.int64(0), np.int64(-1))
    size, at = varint(data, at, end)
    if at < 0 or size < RECORD_BYTES_MIN - 1 or size > end - at:
        return damaged
    end = at + size
    _, at = varint(data, at + 1, end)  # 1: attributes; the time delta, which LogAppendTime overrules
    if at < 0:
        return damaged
    delta, at = varint(data, at, end)
    if at < 0:
        return damaged
    key_bytes, at = varint(data, at, end)
    if at < 0 or key_bytes < -1 or key_bytes > end - at:
        return damaged
    at += max(key_bytes, 0)
    value_bytes, at = varint(data, at, end)
    if at < 0 or value_bytes < -1 or value_bytes > end - at:
        return damaged
    return at, value_bytes, delta, end


@njit(cache=True, nogil=True)
def varint(data: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """A zigzag number and where it ends; -1 where it does not end in time."""
    value, bits = np.int64(0), 0
    while at < end and bits < VARINT_BITS_MAX:
        byte = np.int64(data[at])
        value |= (byte & 0x7F) << bits
        at += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        bits += 7
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True)
def integer(data: Bytes, at: Number, size: Number) -> Number:
    """A big-endian signed number; the caller has checked that it lies within the data."""
    value = np.int64(np.int8(data[at]))
    for i in range(1, size):
        value = (value << 8) | np.int64(data[at + i])
    return value
