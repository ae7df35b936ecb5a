"""The compiled loop that reads Avro bodies into columns, by a program of int64 rows. Knows no schema, no Python object.

One kernel serves every schema, so nothing is compiled when a new one arrives. Everything that another kernel here
calls stands in this file: numba's cache notices changes of the caller's file only.

Safety: a position never passes `end`, the end of the payload's own bytes, because each read compares what it wants
with `end - at` first; every row index is below the capacity that was checked when its block of readings began.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Operations of a program: the first word of a row; a, b, c are the other three.
END = 0  # the record is complete
JUMP = 1  # a: row
CALL = 2  # a: row
RETURN = 3
NEXT_ITEM = 4  # a: row of its BLOCKS
NEXT_READING = 5  # a: row of its READINGS
MISMATCH = 6  # a branch that the stream has no place for
SKIP_FIXED = 7  # a: bytes
SKIP_BOOLEAN = 8
ABSENT = 9  # a: slot, b: 0, c: bytes of a cell
CONSTANT = 10  # a: slot, b: bits, c: bytes of a cell
FLOAT = 11  # a: slot, here and below
FLOAT_TO_DOUBLE = 12
DOUBLE = 13
BOOLEAN = 14
NUMBERED = 15  # this and all that follow begin with a variable-length number
OPTION = 15  # b: branch of null, c: bytes of a cell; the next row reads the other branch
INT = 16  # b: 1 if the writer's type is int, so that more than 32 bits are refused, here and below
LONG = 17
LONG_TO_FLOAT = 18
LONG_TO_DOUBLE = 19
MILLIS = 20
NANOS = 21
INSTRUMENT_NUMBER = 22
INSTRUMENT_TEXT = 23
SOURCE = 24
READINGS = 25  # a: row after the array
SKIP_VARINT = 26
SKIP_TEXT = 27  # string or bytes
SKIP_ENUM = 28  # a: symbols
BRANCH = 29  # a: branches; as many JUMP rows follow
BLOCKS = 30  # a: row after the array or map that is skipped

# Fates of a record; 0 is good. schemas.codec names them.
NULL, EMPTY, SHORT, MAGIC, UNKNOWN, INCOMPATIBLE = 1, 2, 3, 4, 5, 6
TRUNCATED, VARINT, RANGE, LENGTH, COUNT, BLOCK, CHOICE = 7, 8, 9, 10, 11, 12, 13
NOT_BOOLEAN, NOT_TEXT, LONG_NAME, MANY_NAMES, DEEP, TRAILING, NO_PLACE = 14, 15, 16, 17, 18, 19, 20

# What the kernel stopped for.
DONE, MORE_ROWS, MORE_SOURCES, MORE_INSTRUMENTS = 0, 1, 2, 3

HEADER_BYTES = 5  # 0x00 and the schema id, big endian
DEPTH_MAX = 64  # calls and arrays within each other
NAME_BYTES_MAX = 255  # of an instrument or a source: they become keys of indexes in the database
READINGS_PER_RECORD_MAX = 1_000_000  # a crate has hundreds; beyond it a count is taken for damage
_FULL = -100  # instead of a code or a position: the names must grow first; other negative results are minus a fate


Number = Any  # NumPy's or Python's: the compiler infers which
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Uints = NDArray[np.uint32]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]


class Names(NamedTuple):
    """A dictionary of texts or of numbers, from value to code; codes count from 0."""

    table: NDArray[np.int64]  # open addressing, a power of two long; code or -1
    where: NDArray[np.int64]  # of a code in `table`, so that the newest can be taken back
    bounds: NDArray[np.int64]  # text of code c is arena[bounds[c] : bounds[c + 1]]; a number is bounds[c] itself
    arena: NDArray[np.uint8]
    follows: NDArray[np.int64]  # [c + 1]: the code that came after c last time, a guess that mostly holds
    used: NDArray[np.int64]  # [0]: codes in use; [1]: the code seen last, or -1


class Cells(NamedTuple):
    """One memory, [slot, row], seen as cells of each kind: a slot uses the kind of its column."""

    i8: NDArray[np.int64]
    f8: NDArray[np.float64]
    i4: NDArray[np.int32]
    u4: NDArray[np.uint32]
    f4: NDArray[np.float32]
    u1: NDArray[np.uint8]
    valid: NDArray[np.uint8]  # 0 where the value is null


@njit(cache=True, nogil=True)
def read_headers(data: Bytes, starts: Ints, sizes: Ints, ids: Ints, fates: Ints) -> None:
    """Schema id of each payload, or why it has none."""
    for i in range(len(starts)):
        at, size = starts[i], sizes[i]
        ids[i] = -1
        if size < 0:
            fates[i] = NULL
        elif size == 0:
            fates[i] = EMPTY
        elif data[at] != 0:
            fates[i] = MAGIC
        elif size < HEADER_BYTES:
            fates[i] = SHORT
        else:
            ids[i] = _big_endian(data, at + 1)


@njit(cache=True, nogil=True, inline="always")
def _big_endian(data: Bytes, at: Number) -> Number:
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@njit(cache=True, nogil=True)
def _bits32(data: Bytes, at: Number) -> Number:
    return (
        np.uint32(data[at])
        | (np.uint32(data[at + 1]) << np.uint32(8))
        | (np.uint32(data[at + 2]) << np.uint32(16))
        | (np.uint32(data[at + 3]) << np.uint32(24))
    )


@njit(cache=True, nogil=True)
def _varint(data: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """A zigzag number and the position after it; or anything, and minus the fate."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for i in range(10):
        if at + i >= end:
            return np.int64(0), -TRUNCATED
        byte = data[at + i]
        if i == 9 and byte > 1:
            return np.int64(0), -VARINT
        raw |= np.uint64(byte & 127) << shift
        if byte < 128:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at + i + 1
        shift += np.uint64(7)
    return np.int64(0), -VARINT


@njit(cache=True, nogil=True)
def _is_text(data: Bytes, at: Number, end: Number) -> bool:
    """Whether the bytes are UTF-8 as Python and PostgreSQL take it: no surrogates, no overlong forms, no NUL."""
    while at < end:
        first = data[at]
        if first == 0:
            return False
        if first < 0x80:
            at += 1
            continue
        if 0xC2 <= first <= 0xDF:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= first <= 0xEF:
            more, low, high = 2, 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            more, low, high = 3, 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF
        else:
            return False
        if more > end - at - 1:
            return False
        for i in range(more):
            byte = data[at + 1 + i]
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        at += 1 + more
    return True


@njit(cache=True, nogil=True)
def _same(left: Bytes, left_at: Number, right: Bytes, right_at: Number, size: Number) -> bool:
    for i in range(size):  # noqa: SIM110 - numba has no generators
        if left[left_at + i] != right[right_at + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _text_hash(data: Bytes, at: Number, size: Number) -> Number:
    """FNV-1a."""
    mixed = np.uint64(0xCBF29CE484222325)
    for i in range(size):
        mixed = (mixed ^ np.uint64(data[at + i])) * np.uint64(0x100000001B3)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@njit(cache=True, nogil=True)
def _number_hash(number: Number) -> Number:
    mixed = (np.uint64(number) ^ (np.uint64(number) >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(33))


@njit(cache=True, nogil=True)
def _note(names: Names, code: Number) -> None:
    names.follows[names.used[1] + 1] = code
    names.used[1] = code


@njit(cache=True, nogil=True)
def _text_code(names: Names, data: Bytes, at: Number, size: Number, names_max: Number) -> Number:
    """The code of a text, a new one if need be; minus the fate, or _FULL."""
    count = names.used[0]
    guess = names.follows[names.used[1] + 1]
    if 0 <= guess < count:
        begin = names.bounds[guess]
        if names.bounds[guess + 1] - begin == size and _same(names.arena, begin, data, at, size):
            names.used[1] = guess
            return guess
    mask = len(names.table) - 1
    place = _text_hash(data, at, size) & mask
    while True:
        code = names.table[place]
        if code < 0:
            break
        begin = names.bounds[code]
        if names.bounds[code + 1] - begin == size and _same(names.arena, begin, data, at, size):
            _note(names, code)
            return code
        place = (place + 1) & mask
    if size > NAME_BYTES_MAX:
        return -LONG_NAME
    if not _is_text(data, at, at + size):
        return -NOT_TEXT
    if count >= names_max:
        return -MANY_NAMES
    begin = names.bounds[count]
    if count >= len(names.where) or size > len(names.arena) - begin:
        return _FULL
    for i in range(size):
        names.arena[begin + i] = data[at + i]
    names.bounds[count + 1] = begin + size
    _insert(names, count, place)
    return count


@njit(cache=True, nogil=True)
def _number_code(names: Names, number: Number, names_max: Number) -> Number:
    """As `_text_code`, of a number."""
    count = names.used[0]
    guess = names.follows[names.used[1] + 1]
    if 0 <= guess < count and names.bounds[guess] == number:
        names.used[1] = guess
        return guess
    mask = len(names.table) - 1
    place = _number_hash(number) & mask
    while names.table[place] >= 0:
        code = names.table[place]
        if names.bounds[code] == number:
            _note(names, code)
            return code
        place = (place + 1) & mask
    if count >= names_max:
        return -MANY_NAMES
    if count >= len(names.where):
        return _FULL
    names.bounds[count] = number
    _insert(names, count, place)
    return count


@njit(cache=True, nogil=True)
def _insert(names: Names, code: Number, place: Number) -> None:
    names.table[place] = code
    names.where[code] = place
    names.used[0] = code + 1
    _note(names, code)


@njit(cache=True, nogil=True)
def _take_back(names: Names, count: Number) -> None:
    """Forget the newest names, so that a refused record leaves none. Newest first: no search path is cut."""
    for code in range(names.used[0] - 1, count - 1, -1):
        names.table[names.where[code]] = -1
    if names.used[0] > count:
        names.used[0] = count
        names.used[1] = -1


@njit(cache=True, nogil=True)
def rehash(names: Names, texts: Number) -> None:
    """Enter all codes into an empty table."""
    mask = len(names.table) - 1
    for code in range(names.used[0]):
        if texts:
            place = _text_hash(names.arena, names.bounds[code], names.bounds[code + 1] - names.bounds[code]) & mask
        else:
            place = _number_hash(names.bounds[code]) & mask
        while names.table[place] >= 0:
            place = (place + 1) & mask
        names.table[place] = code
        names.where[code] = place


@njit(cache=True, nogil=True)
def _share(i8: Ints, u4: Uints, u1: Bytes, valid: Bytes, shared: Ints, base: Number, rows: Number) -> None:
    """Give the record's own fields, read into its first row, to all its readings."""
    for k in range(len(shared)):
        slot, width = shared[k, 0], shared[k, 1]
        for row in range(base + 1, rows):
            valid[slot, row] = valid[slot, base]
            if width == 8:
                i8[slot, row] = i8[slot, base]
            elif width == 4:
                u4[slot, row] = u4[slot, base]
            else:
                u1[slot, row] = u1[slot, base]


@njit(cache=True, nogil=True)
def read_records(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    entries: Ints,
    program: Ints,
    cells: Cells,
    shared: Ints,
    one_each: Number,
    sources: Names,
    instruments: Names,
    names_max: Ints,
    progress: Ints,
    counts: Ints,
    fates: Ints,
    ats: Ints,
    wheres: Ints,
) -> Number:
    """Read records from progress[0] on into rows from progress[1] on; says what it stopped for.

    entries: the program row where a record's schema begins; -1: not to be read. shared: (slot, bytes) of the fields
    of the record, which all its readings get. one_each: 1 if a record is one reading, 0 if it has an array of them.
    names_max: of sources, of instruments. counts: readings of each record. fates, ats, wheres: why a record was
    refused, at which of its bytes and at which program row. A record is taken whole or not at all.
    """
    stack = np.empty(DEPTH_MAX, np.int64)  # items left in a block, or the row to return to
    i8, f8, i4, u4, f4, u1, valid = cells  # taken out once: a field of a tuple costs a reference count each time
    s_bounds, s_arena, s_follows, s_used = sources.bounds, sources.arena, sources.follows, sources.used
    i_bounds, i_arena, i_follows, i_used = instruments.bounds, instruments.arena, instruments.follows, instruments.used
    capacity = valid.shape[1]
    for i in range(progress[0], len(starts)):
        progress[0] = i
        counts[i] = 0
        if entries[i] < 0:
            continue
        base = progress[1]
        if base >= capacity:
            return MORE_ROWS
        sources_before, instruments_before = s_used[0], i_used[0]
        start = starts[i]
        end = start + sizes[i]
        at = start + HEADER_BYTES
        pc = entries[i]
        row = base
        rows = base + one_each
        items_left = end - at  # every item takes at least a byte: more items than bytes are damage
        calls_left = (end - at + 1) * DEPTH_MAX  # as many records within each other as bytes can fill
        depth = 0
        left = np.int64(0)  # readings in the block
        block_end: Number = np.int64(-1)  # where the block says that it ends; -1: it does not say
        number = np.int64(0)
        after = at  # or minus the fate
        stop = DONE
        while True:
            op, a, b = program[pc, 0], program[pc, 1], program[pc, 2]
            if op >= NUMBERED:
                if at < end and data[at] < 128:
                    number = (np.int64(data[at]) >> 1) ^ -(np.int64(data[at]) & 1)
                    at += 1
                else:
                    number, after = _varint(data, at, end)
                    if after < 0:
                        break
                    at = after
            if op == OPTION and number != b:
                if number != 1 - b:
                    after = -CHOICE
                    break
                valid[a, row] = 1
                pc += 1
            elif op == FLOAT:
                if end - at < 4:
                    after = -TRUNCATED
                    break
                u4[a, row] = (
                    np.uint32(data[at])
                    | (np.uint32(data[at + 1]) << np.uint32(8))
                    | (np.uint32(data[at + 2]) << np.uint32(16))
                    | (np.uint32(data[at + 3]) << np.uint32(24))
                )
                at += 4
                pc += 1
            elif op == INSTRUMENT_TEXT:
                if number < 0 or number > end - at:
                    after = -LENGTH
                    break
                code = i_follows[i_used[1] + 1]  # a guess: the name that came next the last time
                if 0 <= code < i_used[0] and i_bounds[code + 1] - i_bounds[code] == number:
                    begin = i_bounds[code]
                    k = 0
                    while k < number and i_arena[begin + k] == data[at + k]:
                        k += 1
                    code = code if k == number else -1
                else:
                    code = -1
                if code >= 0:
                    i_used[1] = code
                else:
                    code = _text_code(instruments, data, at, number, names_max[1])
                    if code == _FULL:
                        stop = MORE_INSTRUMENTS
                        break
                    if code < 0:
                        after = code
                        break
                i4[a, row] = code
                at += number
                pc += 1
            elif INT <= op <= NANOS:
                if b and (number < -2147483648 or number > 2147483647):
                    after = -RANGE
                    break
                if op == LONG:
                    i8[a, row] = number
                elif op == INT:
                    i4[a, row] = number
                elif op == LONG_TO_FLOAT:
                    f4[a, row] = number
                elif op == LONG_TO_DOUBLE:
                    f8[a, row] = number
                elif op == NANOS:
                    i8[a, row] = number // 1000
                elif number < -9223372036854775 or number > 9223372036854775:
                    after = -RANGE
                    break
                else:
                    i8[a, row] = number * 1000
                pc += 1
            elif op == NEXT_READING:
                row += 1
                left -= 1
                if left == 0 and block_end >= 0 and at != block_end:
                    after = -BLOCK
                    break
                pc = a + 1 if left > 0 else a
            elif op == READINGS:
                left = number
                block_end = -1
                if left < 0:
                    size, after = _varint(data, at, end)
                    if after < 0:
                        break
                    at = after
                    if size < 0 or size > end - at:
                        after = -LENGTH
                        break
                    block_end = at + size
                    left = -left  # the least int64 stays negative, which the next test refuses
                if left < 0 or left > items_left or left > READINGS_PER_RECORD_MAX - (row - base):
                    after = -COUNT
                    break
                items_left -= left
                if left == 0:
                    rows = row
                    row = base
                    pc = a
                elif left > capacity - row:
                    stop = MORE_ROWS
                    break
                else:
                    pc += 1
            elif op in (OPTION, ABSENT, CONSTANT):
                bits = b if op == CONSTANT else np.int64(0)
                valid[a, row] = op == CONSTANT
                if program[pc, 3] == 8:
                    i8[a, row] = bits
                elif program[pc, 3] == 4:
                    i4[a, row] = bits
                else:
                    u1[a, row] = bits
                pc += 2 if op == OPTION else 1
            elif op in (DOUBLE, FLOAT_TO_DOUBLE):
                if end - at < (8 if op == DOUBLE else 4):
                    after = -TRUNCATED
                    break
                u4[a, 2 * row] = _bits32(data, at)
                if op == DOUBLE:
                    u4[a, 2 * row + 1] = _bits32(data, at + 4)
                    at += 8
                else:  # by way of the lower half of its own cell
                    f8[a, row] = f4[a, 2 * row]
                    at += 4
                pc += 1
            elif op in (BOOLEAN, SKIP_BOOLEAN):
                if at >= end:
                    after = -TRUNCATED
                    break
                if data[at] > 1:
                    after = -NOT_BOOLEAN
                    break
                if op == BOOLEAN:
                    u1[a, row] = data[at]
                at += 1
                pc += 1
            elif op == INSTRUMENT_NUMBER:
                if b and (number < -2147483648 or number > 2147483647):
                    after = -RANGE
                    break
                code = i_follows[i_used[1] + 1]
                if 0 <= code < i_used[0] and i_bounds[code] == number:
                    i_used[1] = code
                else:
                    code = _number_code(instruments, number, names_max[1])
                    if code == _FULL:
                        stop = MORE_INSTRUMENTS
                        break
                    if code < 0:
                        after = code
                        break
                i4[a, row] = code
                pc += 1
            elif op == SOURCE:
                if number < 0 or number > end - at:
                    after = -LENGTH
                    break
                code = s_follows[s_used[1] + 1]  # a guess: the name that came next the last time
                if 0 <= code < s_used[0] and s_bounds[code + 1] - s_bounds[code] == number:
                    begin = s_bounds[code]
                    k = 0
                    while k < number and s_arena[begin + k] == data[at + k]:
                        k += 1
                    code = code if k == number else -1
                else:
                    code = -1
                if code >= 0:
                    s_used[1] = code
                else:
                    code = _text_code(sources, data, at, number, names_max[0])
                    if code == _FULL:
                        stop = MORE_SOURCES
                        break
                    if code < 0:
                        after = code
                        break
                i4[a, row] = code
                at += number
                pc += 1
            elif op == END:
                if at != end:
                    after = -TRAILING
                break
            elif op == SKIP_VARINT:
                pc += 1
            elif op == SKIP_TEXT:
                if number < 0 or number > end - at:
                    after = -LENGTH
                    break
                at += number
                pc += 1
            elif op == SKIP_FIXED:
                if a > end - at:
                    after = -TRUNCATED
                    break
                at += a
                pc += 1
            elif op == SKIP_ENUM:
                if number < 0 or number >= a:
                    after = -CHOICE
                    break
                pc += 1
            elif op == BRANCH:
                if number < 0 or number >= a:
                    after = -CHOICE
                    break
                pc += 1 + number
            elif op == JUMP:
                pc = a
            elif op == CALL:
                calls_left -= 1
                if depth >= DEPTH_MAX or calls_left < 0:
                    after = -DEEP
                    break
                stack[depth] = pc + 1
                depth += 1
                pc = a
            elif op == RETURN:
                depth -= 1
                pc = stack[depth]
            elif op == BLOCKS:
                if number == 0:
                    pc = a
                elif number < 0:  # the block says its bytes: skipped at once
                    size, after = _varint(data, at, end)
                    if after < 0:
                        break
                    at = after
                    if size < 0 or size > end - at:
                        after = -LENGTH
                        break
                    at += size
                elif number > items_left:
                    after = -COUNT
                    break
                elif depth >= DEPTH_MAX:
                    after = -DEEP
                    break
                else:
                    items_left -= number
                    stack[depth] = number
                    depth += 1
                    pc += 1
            elif op == NEXT_ITEM:
                stack[depth - 1] -= 1
                if stack[depth - 1] > 0:
                    pc = a + 1
                else:
                    depth -= 1
                    pc = a
            else:  # MISMATCH
                after = -NO_PLACE
                break
        if stop != DONE or after < 0:
            _take_back(sources, sources_before)
            _take_back(instruments, instruments_before)
            valid[:, base : min(max(row + 1, rows), capacity)] = 1
            if stop != DONE:
                return stop
            fates[i] = -after
            ats[i] = at - start
            wheres[i] = pc
            continue
        if rows == base:  # a record without readings: what it wrote there is not the next one's
            valid[:, base] = 1
        _share(i8, u4, u1, valid, shared, base, rows)
        counts[i] = rows - base
        progress[1] = rows
    progress[0] = len(starts)
    return DONE
