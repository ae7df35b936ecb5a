"""Panes and windows are whole numbers of event time; what is shown and forgotten follows from the watermark alone."""

from hypothesis import given
from hypothesis import strategies as st

from processors.windows import Windows

numbers = st.integers(-1000, 1000)
spans = st.integers(1, 60)


@given(numbers, spans)
def test_a_window_has_one_block_boundary_or_begins_at_one(window: int, span: int) -> None:
    windows = Windows(1, span, 0)
    panes, split = windows.panes(window), windows.split(window)
    assert split % span == 0
    assert panes[0] <= split <= panes[-1]
    assert not any(pane % span == 0 for pane in panes if pane != split)


@given(numbers, spans, numbers)
def test_a_shown_window_has_ended_or_is_the_one_that_ends_next(pane: int, span: int, watermark_us: int) -> None:
    windows = Windows(7, span, 0)
    shown = [w for w in range(pane, pane + span) if windows.shown(w, watermark_us)]
    assert list(windows.of_pane(pane, watermark_us)) == shown
    if span > 1:
        assert not windows.closed(windows.next(watermark_us), watermark_us)
        assert windows.closed(windows.next(watermark_us) - 1, watermark_us)


@given(numbers, spans, st.integers(0, 100), numbers)
def test_a_pane_is_forgotten_when_its_last_window_has_been_closed_for_lateness(
    pane: int, span: int, lateness_us: int, watermark_us: int
) -> None:
    windows = Windows(7, span, lateness_us)
    _, last_end = windows.bounds_us(pane + span - 1)
    assert (pane <= windows.horizon(watermark_us)) == (last_end + lateness_us <= watermark_us)


def test_a_window_is_named_by_its_last_pane() -> None:
    assert Windows(10, 3, 0).bounds_us(5) == (30, 60)
    assert list(Windows(10, 3, 0).panes(5)) == [3, 4, 5]
    assert Windows(10, 1, 0).bounds_us(-1) == (-10, 0)
