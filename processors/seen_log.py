"""Seen triggers of one source partition on their way to the log: as of every flush that a restart could need.

A restart begins at a committed position and must judge as of there; rows are written before the commit that makes
them count. So a row holds an instrument's triggers as of the last commit and as of each flush since
(docs/decisions/0006). Knows neither Kafka nor the clock.
"""

from processors.records import Message, SeenRow, pack_seen, seen_key
from schemas.seen import Seen


class SeenLog:
    """The versions of one ownership of a source partition."""

    def __init__(self, topic: str, partition: int, writer: bytes) -> None:
        self.seen = Seen()
        self._topic, self._partition, self._writer = topic, partition, writer
        self._restored_position = 0
        self._versions: list[list[tuple[int, bytes]]] = []  # by the number of the instrument in `seen`
        self._foreign: dict[int, set[bytes]] = {}  # keys of earlier writers, by instrument: deleted when replaced
        self._unsettled: set[int] = set()  # instruments with versions beyond the committed position

    def messages(self, position: int) -> list[Message]:
        """A row for each instrument that changed since the last call, as of `position`."""
        messages = []
        for number in self.seen.take_changed():
            instrument, versions = self.seen.ids[number], self._of(number)
            versions.append((position, self.seen.pack(number)))
            self._unsettled.add(number)
            row = SeenRow(self._partition, self._writer, instrument, versions)
            key = seen_key(self._partition, self._writer, instrument)
            messages.append(Message(self._topic, self._partition, key, pack_seen(row)))
        return messages

    def committed(self, position: int) -> list[Message]:
        """Keep of each instrument the newest version that a restart could need, and what came after it.

        Rows of earlier writers are deleted once one of ours, which is acknowledged, replaces them.
        """
        messages = []
        for number in list(self._unsettled):
            versions = self._of(number)
            settled = sum(version[0] <= position for version in versions)
            if settled == len(versions):
                self._unsettled.discard(number)
            del versions[: max(0, settled - 1)]
            if settled and versions[0][0] > self._restored_position:
                foreign = self._foreign.pop(number, ())
                messages += [Message(self._topic, self._partition, key, None) for key in foreign]
        return messages

    def restore(self, position: int) -> None:
        """Begin at a committed position."""
        self._restored_position = position

    def restore_row(self, row: SeenRow, version: tuple[int, bytes], foreign_keys: set[bytes]) -> None:
        """Take over the seen triggers of an instrument as of the committed position."""
        self.seen.restore(row.instrument, version[1])
        number = self.seen.numbering.number(row.instrument)
        self._of(number)[:] = [version]
        self._foreign[number] = foreign_keys

    def _of(self, number: int) -> list[tuple[int, bytes]]:
        while len(self._versions) <= number:
            self._versions.append([])
        return self._versions[number]
