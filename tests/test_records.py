"""Records of our own survive the way through bytes, and one of an unknown format stops with a line that names it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.partial_batch import read_partials
from processors.records import (
    MARK,
    PARTIAL,
    Heartbeat,
    Partial,
    SeenRow,
    group_bytes,
    group_values,
    pack_heartbeat,
    pack_partial,
    pack_seen,
    partial_of_another,
    unpack,
)
from schemas.batch import RawBatch
from schemas.triggers import FormatError

int64s = st.integers(-(1 << 63), (1 << 63) - 1)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
writers = st.binary(min_size=16, max_size=16)
groups = st.lists(st.one_of(st.text(max_size=5), int64s), min_size=1, max_size=2).map(group_bytes)
WORDS = 2
states = st.binary(min_size=8 * WORDS, max_size=8 * WORDS)
partials = st.one_of(
    st.builds(Partial, st.just(PARTIAL), int32s, int32s, int64s, int64s, int64s, writers, groups, states),
    st.builds(Partial, st.just(MARK), int32s, int32s, int64s, int64s, st.just(0), writers, groups, st.just(b"")),
)
heartbeats = st.builds(Heartbeat, int32s, int32s, int64s, int64s, int64s, st.booleans(), writers)
versions = st.lists(st.tuples(int64s, st.binary(max_size=40)), max_size=3)
seen_rows = st.builds(SeenRow, int32s, writers, st.one_of(st.text(max_size=5), int64s), versions)


def batch_of(values: list[bytes | None]) -> RawBatch:
    sizes = np.array([-1 if value is None else len(value) for value in values], np.int64)
    starts = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    offsets = np.arange(len(values), dtype=np.int64)
    return RawBatch("v.partials", 3, 0, len(values), data, starts, sizes, offsets, offsets)


@given(partials, heartbeats, seen_rows)
def test_a_record_is_what_it_was(partial: Partial, heartbeat: Heartbeat, seen: SeenRow) -> None:
    assert unpack(pack_partial(partial), "x") == partial
    assert unpack(pack_heartbeat(heartbeat), "x") == heartbeat
    assert not partial_of_another(pack_heartbeat(heartbeat), heartbeat.partition + 1)
    assert not partial_of_another(pack_partial(partial), partial.partition)
    assert partial_of_another(pack_partial(partial), partial.partition ^ 1) == (partial.kind == PARTIAL)
    assert unpack(pack_seen(seen), "x") == seen
    assert group_bytes(group_values(partial.group)) == partial.group


@given(st.lists(st.one_of(st.none(), partials, heartbeats), max_size=12), int32s)
def test_a_batch_holds_what_its_records_hold(records: list[Partial | Heartbeat | None], generation: int) -> None:
    values = [
        None if record is None else pack_partial(record) if isinstance(record, Partial) else pack_heartbeat(record)
        for record in records
    ]
    generation = next((record.generation for record in records if record is not None), generation)
    batch, beats = read_partials(batch_of(values), generation, WORDS)
    current = [record for record in records if record is not None and record.generation == generation]
    expected = [record for record in current if isinstance(record, Partial)]
    assert [beat for beat, _ in beats] == [record for record in current if isinstance(record, Heartbeat)]
    for name in ("kind", "partition", "pane", "absorbed", "n"):
        assert getattr(batch, name).tolist() == [getattr(record, name) for record in expected]
    assert batch.groups == [record.group for record in expected]
    assert batch.writers == [record.writer for record in expected]
    whole = np.flatnonzero(batch.kind == PARTIAL)
    assert [row.tobytes() for row in batch.states(whole, WORDS)] == [r.state for r in expected if r.kind == PARTIAL]


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x02\x01" + bytes(80), b"\x01\x09" + bytes(80)])
def test_a_record_of_an_unknown_format_stops_with_one_line(value: bytes) -> None:
    with pytest.raises(FormatError, match="this version") as raised:
        read_partials(batch_of([value]), 1, WORDS)
    assert "v.partials/3" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_state_of_another_size_stops_naming_it() -> None:
    partial = Partial(PARTIAL, 1, 0, 0, 1, 1, bytes(16), b'["a"]', bytes(8))
    with pytest.raises(FormatError, match="a state of 8 bytes instead of 16"):
        read_partials(batch_of([pack_partial(partial)]), 1, WORDS)
