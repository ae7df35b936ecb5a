"""A log counts as read only from its wanted end on, whatever a broker says in between."""

import pytest
from confluent_kafka import KafkaError

from processors.restore_reader import BrokerTroubleError, _hand_over

LOG = ("bpm_1s.partials", 3)


class Told:
    """A message as the client hands it out: a record, an end of the log, or trouble."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset, self._error = offset, error

    def topic(self) -> str:
        return LOG[0]

    def partition(self) -> int:
        return LOG[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def value(self) -> bytes:
        return b"%d" % self._offset


def end_at(offset: int) -> Told:
    return Told(offset, KafkaError(KafkaError._PARTITION_EOF))


def handed_over(wanted_end: int, *messages: Told) -> tuple[list[int], bool]:
    """The offsets that were taken, and whether the log counts as read."""
    taken: list[int] = []
    missing = {LOG: wanted_end}

    def take(topic: str, partition: int, offset: int, value: bytes | None) -> None:
        assert (topic, partition, value) == (*LOG, b"%d" % offset)
        taken.append(offset)

    _hand_over(list(messages), missing, take)  # type: ignore[arg-type]
    return taken, not missing


def test_a_log_is_read_with_the_record_before_its_end_and_no_further() -> None:
    assert handed_over(3, Told(0), Told(1)) == ([0, 1], False)
    assert handed_over(3, Told(0), Told(1), Told(2), Told(3)) == ([0, 1, 2], True)
    assert handed_over(3, Told(0), Told(5)) == ([0], True), "compaction took the last records, and the log has grown"


def test_the_end_counts_where_compaction_took_the_record_before_it() -> None:
    assert handed_over(3, Told(0), end_at(3)) == ([0], True)
    assert handed_over(3, Told(0), end_at(7)) == ([0], True)


def test_an_end_before_the_wanted_one_is_not_taken_for_it() -> None:
    """A new leader that does not yet know how far its predecessor had got."""
    assert handed_over(3, Told(0), end_at(1)) == ([0], False)
    assert handed_over(3, Told(0), end_at(1), Told(1), Told(2)) == ([0, 1, 2], True)


def test_trouble_of_the_log_is_told() -> None:
    with pytest.raises(BrokerTroubleError, match=r"bpm_1s\.partials/3"):
        handed_over(3, Told(0, KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
