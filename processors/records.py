"""What processors write for themselves: partials, marks, heartbeats and seen triggers, as bytes. Knows no Kafka.

Every value is self-contained and begins with a format number and a kind. Keys serve compaction only: no key has
two writers, because each ownership of a partition writes under its own `writer` (an older owner that lives on can
then never displace a newer one's record; rule 2 of docs/decisions/0001).
"""

import json
import struct
from typing import Any, NamedTuple, Protocol

from schemas.batch import RawBatch
from schemas.triggers import FormatError

FORMAT = 1
PARTIAL, MARK, HEARTBEAT, SEEN, ROW = 1, 2, 3, 5, 6  # 4 is kept for recomputed windows

NEVER_US = -(1 << 62)  # the watermark before the first reading
METADATA_FORMAT = 1
METADATA_BYTES_MAX = 4000  # Kafka's offset.metadata.max.bytes is 4096

PARTIAL_HEAD = struct.Struct("<BBiiqqq16sI")  # format, kind, generation, p, pane, absorbed, n, writer, group bytes
_PARTIAL_PREFIX = bytes((FORMAT, PARTIAL))
_PARTITION_BYTES = slice(6, 10)  # of PARTIAL_HEAD
_HEARTBEAT = struct.Struct("<BBiiqqq?16s")  # format, kind, generation, p, position, watermark, start, idle, writer
_SEEN_HEAD = struct.Struct("<BBi16sIH")  # format, kind, p, writer, instrument bytes, versions
_VERSION = struct.Struct("<qI")  # position, bytes
_KEY = struct.Struct("<BBqi16s")  # format, kind, pane or window, p, writer


class LostDataError(RuntimeError):
    """Positions and logs disagree, so going on would lose or double readings in silence."""


class Message(NamedTuple):
    """What is to be sent; a value of None deletes the key."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


class Checkpoint(NamedTuple):
    """What is to be committed for a partition: the next offset, and what goes with it."""

    position: int
    metadata: str


def checkpoint_content(metadata: str, names: dict[str, type], where: str) -> dict[str, Any]:
    """What goes with a committed position; `names` must be there. Raises FormatError for what we did not write."""
    try:
        content = json.loads(metadata)
    except ValueError:
        content = None
    known = isinstance(content, dict) and content.get("format") == METADATA_FORMAT
    if not known or any(not isinstance(content.get(name), kind) for name, kind in names.items()):
        raise FormatError(f"{where}: the committed position carries {metadata[:60]!r}, which this version cannot read")
    found: dict[str, Any] = content
    return found


class Flush:
    """A snapshot on its way: all its messages must be acknowledged before its checkpoint may be committed.

    `ends` is for the sender to fill: by (topic, partition) one past the offset of the last acknowledged message.
    """

    def __init__(self, messages: list[Message], checkpoint: Checkpoint) -> None:
        self.messages = messages
        self.checkpoint = checkpoint
        self.ends: dict[tuple[str, int], int] = {}


class Core(Protocol):
    """Pure state of one partition, driven by the worker: take, flush, (all sent), acknowledged, (commit), committed."""

    position: int

    def take(self, raw: RawBatch) -> None: ...

    def flush(self) -> Flush | None: ...

    def acknowledged(self, flush: Flush) -> Checkpoint: ...

    def committed(self, checkpoint: Checkpoint) -> list[Message]: ...

    def heartbeat(self, *, idle: bool) -> list[Message]: ...


class Restore(Protocol):
    """Makes a core from the logs: what to read, up to where, and each record of it in order."""

    def wanted(self) -> list[tuple[str, int]]: ...

    def begin(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]: ...

    def take(self, topic: str, partition: int, offset: int, value: bytes | None) -> None: ...

    def finish(self, writer: bytes) -> Core: ...


class Partial(NamedTuple):
    """One source partition's part of one (group, pane), or with n = 0 and no state the mark of a late reading."""

    kind: int
    generation: int
    partition: int
    pane: int
    absorbed: int  # one past the offset of the last reading in it (of a mark: of the late reading)
    n: int
    writer: bytes
    group: bytes
    state: bytes


class Heartbeat(NamedTuple):
    """How far a source partition has come, sent only after everything up to there is acknowledged and committed."""

    generation: int
    partition: int
    position: int
    watermark_us: int
    start_us: int  # the view began behind this event time: panes up to it are not whole. NEVER_US: from the beginning
    idle: bool
    writer: bytes


class SeenRow(NamedTuple):
    """The seen triggers of one instrument as of each flush since the last commit, and as of that commit."""

    partition: int
    writer: bytes
    instrument: str | int
    versions: list[tuple[int, bytes]]  # (position of the flush, what schemas.seen packed), ascending


def group_bytes(values: list[str | int]) -> bytes:
    """A group as bytes: equal groups are equal bytes, on every machine and version."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def group_values(group: bytes) -> list[str | int]:
    """The inverse of group_bytes."""
    values: list[str | int] = json.loads(group)
    return values


def pack_partial(partial: Partial) -> bytes:
    head = PARTIAL_HEAD.pack(FORMAT, *partial[:7], len(partial.group))
    return b"".join((head, partial.group, partial.state))


def partial_key(kind: int, pane: int, partition: int, writer: bytes, group: bytes) -> bytes:
    return _KEY.pack(FORMAT, kind, pane, partition, writer) + group


def partial_of_another(value: bytes, partition: int) -> bool:
    """Whether this is a partial of another source partition: a cheap look, for restores pass over most of a log."""
    return value[:2] == _PARTIAL_PREFIX and value[_PARTITION_BYTES] != partition.to_bytes(4, "little", signed=True)


def pack_heartbeat(heartbeat: Heartbeat) -> bytes:
    return _HEARTBEAT.pack(FORMAT, HEARTBEAT, *heartbeat)


def unpack(value: bytes, where: str) -> Partial | Heartbeat | SeenRow:
    """The record in a value. Raises FormatError, naming `where`, for anything that this version did not write."""
    if len(value) < 2 or value[0] != FORMAT:
        raise FormatError(
            f"{where}: a record in format {value[:1].hex() or 'none'}, this version reads {FORMAT}:"
            " run the version of Strobe that wrote it"
        )
    kind = value[1]
    if kind in (PARTIAL, MARK):
        _, _, generation, partition, pane, absorbed, n, writer, size = PARTIAL_HEAD.unpack_from(value)
        state_at = PARTIAL_HEAD.size + size
        group, state = value[PARTIAL_HEAD.size : state_at], value[state_at:]
        return Partial(kind, generation, partition, pane, absorbed, n, writer, group, state)
    if kind == HEARTBEAT:
        return Heartbeat(*_HEARTBEAT.unpack(value)[2:])
    if kind == SEEN:
        return _unpack_seen(value)
    raise FormatError(
        f"{where}: a record of kind {kind}, which this version does not know: run the version that wrote it"
    )


def pack_seen(row: SeenRow) -> bytes:
    instrument = group_bytes([row.instrument])
    parts = [_SEEN_HEAD.pack(FORMAT, SEEN, row.partition, row.writer, len(instrument), len(row.versions)), instrument]
    for position, packed in row.versions:
        parts += _VERSION.pack(position, len(packed)), packed
    return b"".join(parts)


def seen_key(partition: int, writer: bytes, instrument: str | int) -> bytes:
    return _KEY.pack(FORMAT, SEEN, 0, partition, writer) + group_bytes([instrument])


def row_key(window: int, writer: bytes, group: bytes) -> bytes:
    """The key of a finished row of <view>; opaque to its readers."""
    return _KEY.pack(FORMAT, ROW, window, 0, writer) + group


def _unpack_seen(value: bytes) -> SeenRow:
    _, _, partition, writer, size, count = _SEEN_HEAD.unpack_from(value)
    at = _SEEN_HEAD.size + size
    (instrument,) = group_values(value[_SEEN_HEAD.size : at])
    versions = []
    for _ in range(count):
        position, size = _VERSION.unpack_from(value, at)
        at += _VERSION.size
        versions.append((position, value[at : at + size]))
        at += size
    return SeenRow(partition, writer, instrument, versions)
