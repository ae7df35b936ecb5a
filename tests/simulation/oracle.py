"""What the tables must hold in the end, worked out from the input alone, without any code of the engine."""

from collections import defaultdict

from model import Reading, Record, SetView

Row = tuple[str, int]  # instrument, start of the window in µs


def good_readings(log: list[Record]) -> list[tuple[int, Reading]]:
    """(offset, reading) of a source partition, the first of each identity."""
    known, good = set(), []
    for offset, record in enumerate(log):
        for reading in record:
            identity = (reading.instrument, reading.trigger)
            if identity not in known:
                known.add(identity)
                good.append((offset, reading))
    return good


def late_panes(log: list[Record], view: SetView, out_of_orderness_us: int) -> set[tuple[str, int, int]]:
    """(instrument, pane, offset) of the readings that came later than lateness."""
    late = set()
    newest, newest_before, at = -(1 << 62), -(1 << 62), -1
    for offset, reading in good_readings(log):
        if offset != at:
            newest_before, at = newest, offset
        pane = reading.time_us // view.pane_us
        if (pane + 1) * view.pane_us + view.lateness_us <= newest_before - out_of_orderness_us:
            late.add((reading.instrument, pane, offset))
        newest = max(newest, reading.time_us)
    return late


def rows(logs: list[list[Record]], view: SetView) -> dict[Row, set[int]]:
    """The readings of every window that has any."""
    expected: dict[Row, set[int]] = defaultdict(set)
    for log in logs:
        for _, reading in good_readings(log):
            pane = reading.time_us // view.pane_us
            span = view.size_us // view.pane_us
            for start in range(pane - span + 1, pane + 1):
                expected[reading.instrument, start * view.pane_us].add(reading.bit)
    return dict(expected)


def newest_us(log: list[Record]) -> int:
    return max((reading.time_us for _, reading in good_readings(log)), default=-(1 << 62))
