"""Fetched record batches, packed into one record and read again."""

import struct

import google_crc32c
import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from processors.packing import DamagedBatchError, TimestampTypeError, pack, raw_batch, unpack
from schemas.batch import RawBatch

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND_TIME = 0x08
APPENDED_MS = 1_700_000_000_123


def batch(
    base: int,
    values: list[bytes | None],
    codec: int = NONE,
    *,
    producer: int = -1,
    transactional: bool = False,
    control: bool = False,
    attributes: int = LOG_APPEND_TIME,
) -> bytes:
    """One record batch as a broker keeps it: offsets from `base` on, and the broker's time."""
    sequence = 0 if producer >= 0 else -1
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer, sequence, sequence, 1 << 24)
    for i, value in enumerate(values):
        builder.append(i, 1000 + 7 * i, b"key %d" % i if i % 3 else None, value, [("header", b"1")] if i % 2 else [])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    data[22] |= attributes | (0x20 if control else 0)
    struct.pack_into(">q", data, 35, APPENDED_MS)
    return sealed(data)


def sealed(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def numbered(first: int, count: int) -> list[bytes | None]:
    return [b"value %d " % number + b"x" * (number % 90) for number in range(first, first + count)]


def delivered(data: bytes, first: int = 0, epoch: int = 1, aborted: list[tuple[int, int]] | None = None) -> RawBatch:
    """What an agent gets of a fetch: packed, read by aiokafka's own reader, parsed."""
    records = MemoryRecords(pack(data, first, epoch, aborted or [], "bpm.v1/0"))
    (record,) = records.next_batch()
    assert not records.has_next()
    packed = unpack("bpm.v1", 0, record.offset, record.key, record.value)
    assert (packed.first, packed.epoch) == (first, epoch)
    return raw_batch(packed.topic, packed.partition, packed.first, packed.last, packed.data)


def payloads(raw: RawBatch) -> list[bytes | None]:
    data = raw.data.tobytes()
    places = zip(raw.starts.tolist(), raw.sizes.tolist(), strict=True)
    return [data[start : start + size] if size >= 0 else None for start, size in places]


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_every_compression_gives_the_values_offsets_and_append_times_that_were_sent(codec: int) -> None:
    data = batch(0, numbered(0, 50), codec) + batch(50, numbered(50, 7)) + batch(60, numbered(60, 20), codec)
    raw = delivered(data)
    assert payloads(raw) == numbered(0, 57) + numbered(60, 20)
    assert raw.offsets.tolist() == [*range(57), *range(60, 80)]
    assert (raw.first, raw.next) == (0, 80)
    assert set(raw.append_us.tolist()) == {APPENDED_MS * 1000}


def test_records_before_the_offset_that_was_asked_for_are_left_out() -> None:
    raw = delivered(batch(0, numbered(0, 50), LZ4), first=17)
    assert raw.offsets.tolist() == list(range(17, 50))
    assert payloads(raw) == numbered(17, 33)


def test_null_and_empty_values_are_told_apart() -> None:
    raw = delivered(batch(5, [None, b"", b"x"]), first=5)
    assert raw.sizes.tolist() == [-1, 0, 1]


def test_a_batch_that_the_response_cuts_off_is_left_for_the_next_fetch() -> None:
    whole, cut = batch(0, numbered(0, 5)), batch(5, numbered(5, 5))
    for size in (1, 40, 61, len(cut) - 1):
        assert delivered(whole + cut[:size]).next == 5


def test_less_than_a_batch_is_given_back_as_it_is() -> None:
    data = batch(0, numbered(0, 5))[:30]
    assert pack(data, 0, 1, [], "bpm.v1/0") == data


def test_aborted_transactions_and_their_markers_are_not_seen_but_the_position_passes_them() -> None:
    marker: list[bytes | None] = [b"\0\0\0\0"]
    data = (
        batch(0, numbered(0, 5), producer=7, transactional=True)
        + batch(5, numbered(5, 5), producer=9, transactional=True)
        + batch(10, marker, producer=7, transactional=True, control=True)
        + batch(11, marker, producer=9, transactional=True, control=True)
        + batch(12, numbered(12, 3), producer=7, transactional=True)
    )
    raw = delivered(data, aborted=[(7, 0)])
    assert raw.offsets.tolist() == [5, 6, 7, 8, 9, 12, 13, 14]
    assert delivered(data[: len(data)]).offsets.tolist() == [*range(10), 12, 13, 14]


def test_a_fetch_of_markers_only_moves_the_position() -> None:
    raw = delivered(batch(3, [b"\0\0\0\0"], producer=7, transactional=True, control=True), first=3)
    assert (len(raw.offsets), raw.first, raw.next) == (0, 3, 4)


def test_a_batch_emptied_by_compaction_moves_the_position() -> None:
    data = bytearray(batch(3, numbered(3, 1))[:61])
    struct.pack_into(">i", data, 8, 61 - 12)
    struct.pack_into(">i", data, 23, 4)
    struct.pack_into(">i", data, 57, 0)
    data[22] = 0  # such a batch no longer tells whose time it had
    raw = delivered(sealed(data), first=3)
    assert (len(raw.offsets), raw.next) == (0, 8)


def test_a_wrong_checksum_is_an_error_that_names_the_place() -> None:
    data = bytearray(batch(40, numbered(40, 5)))
    data[-3] ^= 1
    with pytest.raises(DamagedBatchError, match=r"bpm\.v1/0: the checksum of the batch at offset 40"):
        pack(bytes(data), 40, 1, [], "bpm.v1/0")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD, 7])
def test_what_cannot_be_decompressed_is_an_error_that_names_the_place(codec: int) -> None:
    data = bytearray(batch(0, numbered(0, 50)))
    data[22] |= codec
    with pytest.raises(DamagedBatchError, match="offset 0"):
        pack(sealed(data), 0, 1, [], "bpm.v1/0")


def test_a_topic_with_the_producers_time_is_refused_with_the_remedy() -> None:
    with pytest.raises(TimestampTypeError, match=r"--entity-name bpm\.v1 .*LogAppendTime"):
        delivered(batch(0, numbered(0, 5), attributes=0))


@given(st.data())
def test_damage_is_an_error_or_changes_values_but_never_reads_beyond_the_data(data: st.DataObject) -> None:
    good = batch(0, numbered(0, 4)) + batch(4, numbered(4, 3))
    damaged = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        raw = raw_batch("bpm.v1", 0, 0, 6, bytes(damaged))
    except (DamagedBatchError, TimestampTypeError):
        return
    held = raw.sizes >= 0
    assert np.all(raw.starts[held] + raw.sizes[held] <= len(damaged))
    assert np.all(raw.starts >= 0)
    assert np.all(raw.sizes >= -1)


@given(st.binary(max_size=400), st.integers(0, 100))
def test_arbitrary_bytes_lead_to_no_other_error(data: bytes, first: int) -> None:
    for parse in (lambda: pack(data, first, 1, [], "bpm.v1/0"), lambda: raw_batch("bpm.v1", 0, first, 6, data)):
        try:
            parse()
        except (DamagedBatchError, TimestampTypeError):
            continue
