"""The pace: no drift, no burst beyond its bound, and everything that is due in the end."""

import pytest

from producers.pacing import CATCH_UP, PAUSE_S, Pacer


def run(pacer: Pacer, seconds: float, begin_s: float = 0.0, step_s: float = 0.01, sent: int = 0) -> list[int]:
    """What is sent at each look at the clock."""
    sends = []
    for look in range(1, round(seconds / step_s) + 1):
        allowed = pacer.allowed(begin_s + look * step_s)
        assert allowed is not None
        sends.append(max(allowed - sent, 0))
        sent = max(allowed, sent)
    return sends


@pytest.mark.parametrize("pace_hz", [0.5, 10.0, 333.3, 20_000.0])
def test_the_schedule_is_kept_without_drift(pace_hz: float) -> None:
    sends = run(Pacer(pace_hz, 0.0), 1000.0)
    assert abs(sum(sends) - (1000.0 * pace_hz + 1)) <= 1


def test_nothing_is_sent_before_its_time() -> None:
    pacer, sent = Pacer(10.0, 5.0), 0
    for look in range(2000):
        now_s = 5.0 + look * 0.007
        allowed = pacer.allowed(now_s)
        assert allowed is not None
        assert allowed <= (now_s - 5.0) * 10.0 + 1 + 1e-6
        sent = allowed
    assert sent > 100


def test_after_a_pause_it_catches_up_in_bounded_bursts() -> None:
    pace_hz, paused_s = 100.0, 60.0
    pacer = Pacer(pace_hz, 0.0)
    sent = sum(run(pacer, 1.0))
    behind = pacer.behind_s(1.0 + paused_s)
    sends = run(pacer, 10.0, begin_s=1.0 + paused_s, sent=sent)
    assert behind > paused_s - 0.1
    assert max(sends) <= CATCH_UP * PAUSE_S * pace_hz + 1
    assert all(count <= CATCH_UP * 0.01 * pace_hz + 1 for count in sends[1:])
    assert abs(sent + sum(sends) - ((1.0 + paused_s + 10.0) * pace_hz + 1)) <= 1
    assert pacer.behind_s(1.0 + paused_s + 10.0) < 0.02


def test_a_wait_ends_when_the_next_trigger_is_due_and_never_spins() -> None:
    pacer = Pacer(10.0, 0.0)
    pacer.allowed(0.0)
    assert pacer.wait_s(1, 0.06) == pytest.approx(0.04)
    assert pacer.wait_s(100, 0.0) == PAUSE_S / 2
    assert pacer.wait_s(1, 500.0) > 0


def test_without_a_pace_there_is_no_bound_and_no_wait() -> None:
    assert Pacer(0.0, 0.0).allowed(1.0) is None
    assert Pacer(0.0, 0.0).wait_s(5, 1.0) == 0.0


def test_a_clock_that_stands_still_or_jumps_back_sends_nothing_more() -> None:
    pacer = Pacer(10.0, 0.0)
    first = pacer.allowed(1.0)
    assert pacer.allowed(1.0) == first
    again = pacer.allowed(0.5)
    assert again is not None
    assert first is not None
    assert again <= first
