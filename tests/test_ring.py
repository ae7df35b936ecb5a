"""The simulated ring: the same bytes however it is run, and a beam that the buttons agree on."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from producers.crates import Crates, default_run
from producers.faults import Faults
from producers.options import build_parser, owned_crates
from producers.pickup import PIPE_RADIUS_MM, amplitudes_v, positions_mm
from producers.ring import GRID_V, Ring
from schemas.encoder import Encoder
from schemas.stream import load_stream

STREAM = load_stream(Path(__file__).parents[1] / "schemas" / "streams" / "bpm.avsc")
START_US = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000
EVERY_FAULT = Faults(
    dropouts=0.05,
    stuck=0.05,
    duplicates=0.1,
    disorder=0.1,
    late=0.05,
    late_by_s=3.0,
    missing=0.05,
    restarts=0.01,
    damaged=0.05,
    clock_source=1,
    clock_offset_s=-10_800.0,
)


def ring(instruments: int = 10, sources: int = 3, rate_hz: str = "10", seed: int = 1, *, grid: bool = False) -> Ring:
    return Ring(instruments, sources, Fraction(rate_hz), seed, grid=grid)


def crates(faults: Faults = EVERY_FAULT, owned: tuple[int, ...] = (0, 1, 2), **options: object) -> Crates:
    model = ring(**options)  # type: ignore[arg-type]
    return Crates(model, faults, START_US, default_run(START_US, model.seed), list(owned))


def sent(source: Crates, cuts: list[int], triggers: int) -> list[tuple[str, bytes]]:
    """All that is sent, as (key, payload), when the slots are cut so."""
    encoder = Encoder(STREAM, 7)
    records = []
    for first, stop in zip([0, *cuts], [*cuts, triggers + source.reach_slots], strict=True):
        step = source.step(first, stop, triggers)
        records += zip(step.outgoing.source, step.spoiled(encoder.encode(step.outgoing)), strict=True)
    return records


def of_each(records: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    return {source: [payload for key, payload in records if key == source] for source, _ in records}


def test_same_seed_and_start_give_the_same_bytes() -> None:
    assert sent(crates(), [], 300) == sent(crates(), [], 300)


def test_another_seed_gives_other_bytes() -> None:
    assert sent(crates(), [], 20) != sent(crates(seed=2), [], 20)


@pytest.mark.parametrize("cuts", [[1], [128], [7, 129, 130, 299], list(range(1, 340))])
def test_where_the_slots_are_cut_does_not_matter(cuts: list[int]) -> None:
    assert sent(crates(), cuts, 300) == sent(crates(), [], 300)


def test_two_processes_that_own_a_part_each_send_what_one_would() -> None:
    whole = of_each(sent(crates(), [], 300))
    parts = of_each(sent(crates(owned=(0, 2)), [100], 300)) | of_each(sent(crates(owned=(1,)), [], 300))
    assert parts == whole


def test_a_process_that_looks_at_a_late_part_first_computes_the_same() -> None:
    late_first = crates()
    late_first.step(200, 210, None)
    assert sent(late_first, [], 300) == sent(crates(), [], 300)


def test_a_restart_of_the_counter_is_found_again_by_a_process_that_begins_later() -> None:
    faults = Faults(restarts=0.0001)
    far = 1_000_000
    here = crates(faults).step(far, far + 5, None).outgoing
    stepwise = crates(faults)
    for first in range(0, far, 50_000):
        stepwise.step(first, first + 1, None)
    there = stepwise.step(far, far + 5, None).outgoing
    assert here.run.tolist() == there.run.tolist()
    assert here.trigger.tolist() == there.trigger.tolist()
    assert here.run.max() > default_run(START_US, 1)


def test_crates_own_contiguous_parts_and_together_everything() -> None:
    model = ring(instruments=11, sources=4)
    parts = [model.names[model.part(source)] for source in range(4)]
    assert [name for part in parts for name in part] == model.names
    assert max(map(len, parts)) - min(map(len, parts)) == 1
    assert model.names[0] == "bpm001"
    assert model.source_names == ["crate1", "crate2", "crate3", "crate4"]


def test_records_hold_the_instruments_of_their_crate_in_order() -> None:
    outgoing = crates(Faults()).step(0, 2, None).outgoing
    assert outgoing.source == ["crate1", "crate2", "crate3"] * 2
    assert outgoing.counts.tolist() == [3, 3, 4] * 2
    assert list(outgoing.instrument) == ring().names * 2
    assert outgoing.trigger.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("rate_hz", "third_us"), [("10", 200_000), ("3", 666_666), ("0.5", 4_000_000), ("11245.5", 177)]
)
def test_event_times_are_the_schedule_floored_to_microseconds(rate_hz: str, third_us: int) -> None:
    assert crates(Faults(), rate_hz=rate_hz).step(2, 3, None).outgoing.time_us.tolist() == [START_US + third_us] * 3


def test_times_stay_exact_after_years() -> None:
    triggers = np.array([10 * 86_400 * 365 * 20])
    assert ring().time_us(triggers).tolist() == [86_400 * 365 * 20 * 1_000_000]
    assert np.isfinite(ring().amplitudes(0, triggers)).all()


def test_the_default_run_follows_start_and_seed() -> None:
    assert default_run(START_US, 1) == default_run(START_US, 1) != default_run(START_US, 2)
    assert 0 <= default_run(START_US, 1) - START_US < 1_000_000


def test_the_beam_is_found_again_from_the_buttons_within_noise() -> None:
    model = ring(instruments=40, sources=1)
    triggers = np.arange(1000)
    x_mm, y_mm = model.positions_mm(triggers, slice(0, 40))
    found_x_mm, found_y_mm = positions_mm(model.amplitudes(0, triggers))
    # The estimate is linear in noise_v / (2 V): 4 µm; its own curvature at 2 mm of 22 mm is below 10 µm more.
    noise_mm = PIPE_RADIUS_MM / np.sqrt(2) * model.noise_v / 2
    for found_mm, true_mm in ((found_x_mm, x_mm), (found_y_mm, y_mm)):
        near = np.hypot(x_mm, y_mm) < 0.5
        assert np.std((found_mm - true_mm)[near]) < 1.3 * noise_mm
        assert np.abs(found_mm - true_mm).max() < 0.05


def test_the_pickup_is_symmetric_and_the_outer_and_upper_buttons_see_a_beam_that_comes_near() -> None:
    centre = amplitudes_v(np.zeros(1), np.zeros(1), np.full(1, 100.0))[0]
    np.testing.assert_allclose(centre, 1.0)
    top_in, bot_in, bot_out, top_out = amplitudes_v(np.full(1, 2.0), np.full(1, 1.0), np.full(1, 100.0))[0]
    assert top_out > bot_out > top_in > bot_in
    small_mm = 0.01
    x_mm, y_mm = positions_mm(amplitudes_v(np.full(1, small_mm), np.full(1, -small_mm), np.full(1, 50.0)))
    np.testing.assert_allclose([x_mm[0], y_mm[0]], [small_mm, -small_mm], rtol=1e-3)


def test_a_beam_beyond_the_pipe_still_reads_finite() -> None:
    assert np.isfinite(amplitudes_v(np.full(1, 1e6), np.full(1, -1e6), np.full(1, 100.0))).all()


def test_the_beam_oscillates_at_its_tunes_about_an_orbit_that_drifts_slowly() -> None:
    model = ring(instruments=8, sources=1, rate_hz="390100")  # every turn is a trigger
    turns = np.arange(4096)
    x_mm, y_mm = model.positions_mm(turns, slice(0, 8))
    for signal_mm, fraction in ((x_mm, 0.565), (y_mm, 0.602)):
        spectrum = np.abs(np.fft.rfft(signal_mm[:, 3] - signal_mm[:, 3].mean()))
        assert abs(np.argmax(spectrum) / 4096 - (1 - fraction)) < 1 / 4096
    slow = ring(instruments=8, sources=1, rate_hz="0.1")
    hours_mm, _ = slow.positions_mm(np.arange(720), slice(0, 8))
    assert 0.001 < np.std(hours_mm.mean(axis=1)) < 1.0


def test_the_closed_orbit_closes() -> None:
    model = ring(instruments=1000, sources=1)
    x_mm = model.orbit.closed_mm(0, np.zeros(1), slice(0, 1000))[0]
    steps_mm = np.abs(np.diff(x_mm))
    assert abs(x_mm[0] - x_mm[-1]) < 3 * steps_mm.max()


def test_the_current_decays_and_is_topped_up() -> None:
    model = ring()
    current_ma = model.current_ma(np.arange(0, 6000, 10))
    assert current_ma.max() == 100.0
    assert (np.diff(current_ma) > 0).sum() == 1  # ten minutes: one top-up in the middle


def test_on_the_grid_every_amplitude_is_a_multiple_and_sums_are_exact() -> None:
    read = ring(grid=True).amplitudes(0, np.arange(500)).astype(np.float64)
    assert np.array_equal(read, np.rint(read / GRID_V) * GRID_V)
    assert read.sum() == float(sum(Fraction(value) for value in read.ravel().tolist()))


def test_noise_of_one_instrument_does_not_depend_on_the_others() -> None:
    alone = ring(instruments=10, sources=10).amplitudes(4, np.arange(300))[:, 0]
    together = ring(instruments=10, sources=1).amplitudes(0, np.arange(300))[:, 4]
    assert np.array_equal(alone, together)


@pytest.mark.parametrize(
    ("text", "owned"), [("1-2", [0, 1]), ("1,3", [0, 2]), ("crate2", [1]), ("2-4,1", [0, 1, 2, 3])]
)
def test_crates_are_owned_as_named(text: str, owned: list[int]) -> None:
    assert owned_crates(build_parser().parse_args(["ring", "--own", text])) == owned
