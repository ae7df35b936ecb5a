"""Arithmetic of panes and windows, in whole numbers: pane k covers [k, k + 1) * pane_us, floored from event time.

A window is named by its last pane: window w of a view whose windows span `span` panes covers panes w - span + 1 to w
and ends at (w + 1) * pane_us. A tumbling window is its only pane. Knows no state.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Windows:
    """The windows of one view."""

    pane_us: int
    span: int  # panes of a window
    lateness_us: int

    def bounds_us(self, window: int) -> tuple[int, int]:
        """Start and end of a window, µs since 1970."""
        end = (window + 1) * self.pane_us
        return end - self.span * self.pane_us, end

    def panes(self, window: int) -> range:
        return range(window - self.span + 1, window + 1)

    def closed(self, window: int, watermark_us: int) -> bool:
        return (window + 1) * self.pane_us <= watermark_us

    def next(self, watermark_us: int) -> int:
        """The window that ends first after the watermark."""
        return watermark_us // self.pane_us

    def shown(self, window: int, watermark_us: int) -> bool:
        """Tumbling windows are shown as they grow; of overlapping ones those that ended, and the one that ends next."""
        return self.span == 1 or window <= self.next(watermark_us)

    def of_pane(self, pane: int, watermark_us: int) -> range:
        """The windows that contain a pane and are shown."""
        last = pane + self.span - 1
        return range(pane, last + 1 if self.span == 1 else min(last, self.next(watermark_us)) + 1)

    def split(self, window: int) -> int:
        """The block boundary in a window: the first pane of it that begins a block of `span` panes.

        Blocks lie at absolute pane numbers, so the order in which panes are folded depends on event time alone:
        panes before the boundary from right to left, those from it on from left to right, then the two parts.
        Both parts can be carried over from window to window (van Herk, 1992), at a cost that no overlap raises.
        """
        first = window - self.span + 1
        return -(-first // self.span) * self.span

    def horizon(self, watermark_us: int) -> int:
        """The last pane whose last window has been closed for `lateness`: it and all before it may be forgotten."""
        return (watermark_us - self.lateness_us) // self.pane_us - self.span
