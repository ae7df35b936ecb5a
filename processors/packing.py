"""Record batches of a fetch as one packed record, and a packed record as a `RawBatch`. Pure functions on bytes.

A client that looks at each message costs 65 µs a message; one that is handed a whole fetch as a single record costs
0.01 µs. So the batches that a fetch brought are checked, decompressed, stripped of what a consumer must not see,
and wrapped as the value of one synthetic record. Knows Kafka's wire format, and no client.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
import google_crc32c
import numpy as np
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from processors.packing_kernels import CREATE_TIME, GOOD, MEANINGS, count_records, find_values
from schemas.batch import RawBatch

# One v2 record batch: the header, as on the wire.
HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT = 8, 16, 21
LENGTH_COUNTS_FROM = 12
CODEC, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20
DECODERS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
DECOMPRESSION_ERRORS = (cramjam.DecompressionError, zlib.error, ValueError, OSError, EOFError, struct.error)
KEY = struct.Struct(">qq")  # of the packed record: the offset asked for, the epoch of the asking


class DamagedBatchError(ValueError):
    """Bytes of a partition that are no sound record batches: topic, partition and what is wrong."""


class TimestampTypeError(ValueError):
    """A topic whose records carry the producers' clocks: event times cannot be judged by them."""


class Packed(NamedTuple):
    """Records `first` to `last` of a partition as uncompressed batches, which may begin before `first`."""

    topic: str
    partition: int
    first: int
    last: int
    epoch: int
    data: bytes


def pack(data: bytes, first: int, epoch: int, aborted: Sequence[tuple[int, int]], where: str) -> bytes:
    """Wrap the complete batches of `data` as one batch of one record, whose offset is that of their last record.

    `aborted` lists the aborted transactions as (producer id, first offset). Less than one batch is given back as
    it is: the client knows what to do.
    """
    parts: list[Any] = []
    next_offset = None
    for after, header, records in _unpacked(data, aborted, where):
        next_offset = after
        if records is not None:
            fields = list(header)
            fields[1] = HEADER.size - LENGTH_COUNTS_FROM + len(records)
            fields[5] &= ~CODEC
            parts += HEADER.pack(*fields), records
    if next_offset is None:
        return data
    value_bytes = sum(map(len, parts))
    start = b"\0\0\0" + _varint(KEY.size) + KEY.pack(first, epoch) + _varint(value_bytes)  # attributes and deltas: 0
    record_bytes = len(start) + value_bytes + 1  # 1: no headers
    start = _varint(record_bytes) + start
    length = HEADER.size - LENGTH_COUNTS_FROM + len(start) + value_bytes + 1
    head = HEADER.pack(next_offset - 1, length, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return b"".join((head, start, *parts, b"\0"))


def unpack(topic: str, partition: int, offset: int, key: bytes, value: bytes) -> Packed:
    """What `pack` wrapped, from the fields of its one record."""
    first, epoch = KEY.unpack(key)
    return Packed(topic, partition, first, offset, epoch, value)


def raw_batch(topic: str, partition: int, first: int, last: int, data: bytes) -> RawBatch:
    """The values in uncompressed record batches, records before `first` left out.

    Raises DamagedBatchError, and TimestampTypeError for a topic without LogAppendTime.
    """
    bytes_ = np.frombuffer(data, np.uint8)
    count, status = count_records(bytes_)
    if status == GOOD:
        starts, sizes, offsets, append_us = (np.empty(count, np.int64) for _ in range(4))
        found, status = find_values(bytes_, first, starts, sizes, offsets, append_us)
    if status == CREATE_TIME:
        raise TimestampTypeError(
            f"topic {topic} does not keep the broker's append time, by which event times are judged: kafka-configs.sh"
            f" --alter --entity-type topics --entity-name {topic} --add-config message.timestamp.type=LogAppendTime,"
            " then let the records that came before run out (retention), or create the topic anew"
        )
    if status != GOOD:
        raise DamagedBatchError(f"{topic}/{partition} from offset {first}: {MEANINGS[status]}")
    fields = (column[:found] for column in (starts, sizes, offsets, append_us))
    return RawBatch(topic, partition, first, last + 1, bytes_, *fields)


def _unpacked(
    data: bytes, aborted: Sequence[tuple[int, int]], where: str
) -> Iterator[tuple[int, tuple[Any, ...], bytes | memoryview | None]]:
    """(next offset, header, records) of each complete batch; `records` is None where a consumer must not see them:
    in a control batch, and in one of an aborted transaction.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    at = 0
    while at + HEADER.size <= len(data):
        end = at + LENGTH_COUNTS_FROM + int.from_bytes(data[at + LENGTH_AT : at + LENGTH_COUNTS_FROM], "big")
        if end > len(data):
            break  # the broker cuts a response at its size, also within a batch
        if data[at + MAGIC_AT] != 2 or end < at + HEADER.size:
            raise DamagedBatchError(f"{where}: {len(data)} bytes with no batch of format 2 at byte {at}")
        header = HEADER.unpack_from(data, at)
        base, crc, attributes, last_delta, producer = header[0], header[4], header[5], header[6], header[9]
        if google_crc32c.value(data[at + ATTRIBUTES_AT : end]) != crc:
            raise DamagedBatchError(f"{where}: the checksum of the batch at offset {base} does not match")
        while waiting and waiting[0][1] <= base:
            aborting.add(waiting.pop(0)[0])
        records: bytes | memoryview | None = None
        if attributes & CONTROL:
            aborting.discard(producer)
        elif not (attributes & TRANSACTIONAL and producer in aborting):
            records = memoryview(data)[at + HEADER.size : end]
            if attributes & CODEC:
                records = _decompressed(attributes & CODEC, bytes(records), f"{where}: the batch at offset {base}")
        yield base + last_delta + 1, header, records
        at = end


def _decompressed(codec: int, data: bytes, where: str) -> bytes:
    if codec not in DECODERS:
        raise DamagedBatchError(f"{where} is compressed in a way that is not known ({codec})")
    try:
        return bytes(DECODERS[codec](data))
    except DECOMPRESSION_ERRORS as error:
        raise DamagedBatchError(f"{where} cannot be decompressed: {error}") from error


def _varint(value: int) -> bytes:
    """A non-negative number as a zigzag varint."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
