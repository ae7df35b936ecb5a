"""The compiled loop that writes columns as Avro bodies, by a program of int64 rows. Knows no schema, no Python object.

Its caller has sized `out` for the longest that the columns can become, and checked every code and length.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Operations of a program: the first word of a row; a and b are the others.
END = 0
READINGS = 1  # a: row after the array
NEXT_READING = 2  # a: row of its READINGS
OPTION = 3  # a: slot, b: branch of null; the next row writes the other branch
NUMBER = 4  # a: slot, here and below
TEXT = 5
FLOAT = 6
DOUBLE = 7
BOOLEAN = 8

NUMBER_BYTES_MAX = 10  # of a variable-length number

Number = Any  # NumPy's or Python's: the compiler infers which
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@njit(cache=True, nogil=True)
def write_records(
    out: Bytes,
    ends: Ints,
    header: Bytes,
    program: Ints,
    i8: Ints,
    valid: Bytes,
    bounds: Ints,
    arena: Bytes,
    counts: Ints,
) -> Number:
    """Write one record after the other; ends[i] is one past record i. Returns the bytes written.

    i8: [slot, row], a row being a record or a reading as the field is of the one or the other; floats by their bits.
    bounds, arena: text of code c is arena[bounds[c] : bounds[c + 1]].
    """
    at = 0
    first = 0  # reading of the record
    for i in range(len(counts)):
        for k in range(len(header)):
            out[at + k] = header[k]
        at += len(header)
        row = i
        pc = 0
        while True:
            op, a, b = program[pc, 0], program[pc, 1], program[pc, 2]
            pc += 1
            number: Number = np.int64(0)
            if op == FLOAT:
                bits = i8[a, row]
                for k in range(4):
                    out[at + k] = (bits >> (8 * k)) & 255
                at += 4
                continue
            if op == NUMBER:
                number = i8[a, row]
            elif op == OPTION:
                if valid[a, row]:
                    number = 1 - b
                else:
                    number = b
                    pc += 1
            elif op == TEXT:
                code = i8[a, row]
                number = bounds[code + 1] - bounds[code]
            elif op == NEXT_READING:
                row += 1
                if row < first + counts[i]:
                    pc = a + 1
                    continue
                row = i
            elif op == READINGS:
                number = counts[i]
                if number == 0:
                    pc = a
                row = first
            elif op == DOUBLE:
                bits = i8[a, row]
                for k in range(8):
                    out[at + k] = (bits >> (8 * k)) & 255
                at += 8
                continue
            elif op == BOOLEAN:
                out[at] = i8[a, row] & 1
                at += 1
                continue
            else:  # END
                break
            left = (np.uint64(number) << np.uint64(1)) ^ np.uint64(number >> 63)
            while left > np.uint64(127):
                out[at] = np.uint8(left & np.uint64(127)) | np.uint8(128)
                at += 1
                left >>= np.uint64(7)
            out[at] = np.uint8(left)
            at += 1
            if op == TEXT:
                begin = bounds[code]
                for k in range(number):
                    out[at + k] = arena[begin + k]
                at += number
            elif op == READINGS and number == 0:
                row = i
        first += counts[i]
        ends[i] = at
    return at
