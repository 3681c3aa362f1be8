"""Statistics of a fleet from which a limit is proposed."""

from __future__ import annotations

import random

import pytest

from fixtures.calibration.fleet_statistics import FleetStatistics, estimate, shortage

pytestmark = pytest.mark.cpu


def values_of_fleet(
    devices: int, runs: int, *, device: float, run: float
) -> dict[str, list[float]]:
    """A fleet of known relative sigmas around 100."""
    dice = random.Random(20261120)
    return {
        f"gpu{k}": [100 * (1 + own + dice.gauss(0, run)) for _ in range(runs)]
        for k in range(devices)
        for own in [dice.gauss(0, device)]
    }


def test_the_limit_lies_five_sigma_from_the_median():
    found = estimate({"a": [99.0, 99.0], "b": [100.0, 100.0], "c": [102.0, 102.0]})
    assert found.expect == 100
    assert found.device_sigma == pytest.approx(0.014826)
    assert found.run_sigma == 0
    assert found.fail_below == pytest.approx(100 * (1 - 5 * 0.014826))
    assert found.fail_above == pytest.approx(100 * (1 + 5 * 0.014826))


@pytest.mark.parametrize(("device", "run"), [(0.01, 0.001), (0.001, 0.01), (0.02, 0.02)])
def test_the_sigmas_of_a_large_fleet_are_found(device, run):
    found = estimate(values_of_fleet(400, 3, device=device, run=run))
    assert found.run_sigma == pytest.approx(run, rel=0.15)
    # A device's own median still holds some of the runs' noise.
    assert device * 0.85 < found.device_sigma < (device**2 + run**2) ** 0.5 * 1.15
    assert found.expect == pytest.approx(100, rel=0.005)


def test_a_sick_device_does_not_move_the_limit_far():
    healthy = values_of_fleet(16, 3, device=0.005, run=0.003)
    limit = estimate(healthy).fail_below
    sick = {**healthy, "gpu0": [60.0, 61.0, 59.0]}
    assert estimate(sick).fail_below == pytest.approx(limit, rel=0.02)
    assert max(sick["gpu0"]) < estimate(sick).fail_below


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"a": [1.0, 1.0], "b": [1.0, 1.0]}, "the same number"),
        ({"a": [1.0, 2.0], "b": [3.0, 1.0], "c": [2.0, 5.0]}, "the spread is too large"),
    ],
)
def test_no_limit_comes_of_numbers_that_say_nothing(values, why):
    assert why in estimate(values).too_lenient


@pytest.mark.parametrize("values", [{}, {"a": [1.0]}, {"a": [1.0, 2.0], "b": [1.0]}])
def test_figures_refuse_an_uneven_table(values):
    with pytest.raises(ValueError, match="as many runs"):
        estimate(values)


@pytest.mark.parametrize(
    ("runs", "devices", "said"),
    [
        (3, 8, ""),
        (2, 8, "2 of 3 runs, 8 of 8 devices"),
        (3, 7, "3 of 3 runs, 7 of 8 devices"),
        (1, 4, "1 of 3 runs, 4 of 8 devices"),
    ],
)
def test_shortage_says_how_many_there_are(runs, devices, said):
    assert shortage(runs, devices) == said


def made(device: float, run: float) -> FleetStatistics:
    return FleetStatistics(expect=100, device_sigma=device, run_sigma=run, devices=8, runs=3)


def test_a_limit_that_lies_half_the_value_away_is_the_widest():
    assert made(0.06, 0.08).sigma == pytest.approx(0.1)
    assert made(0.06, 0.08).too_lenient == ""
    assert made(0.0, 0.1).too_lenient == ""
    assert "too large (devices 0.00%, runs 10.10%, 5 sigma 50.5%)" in made(0, 0.101).too_lenient
    assert "the same number" in made(0, 0).too_lenient
    assert made(0.01, 0.02).spread == "devices 1.00%, runs 2.00%, 5 sigma 11.2%"


def test_values_are_counted_by_run_and_by_device():
    values = {"a": [1.0, 2.0, 4.0], "b": [1.0, 2.0, 4.0]}
    found = estimate(values)
    assert (found.devices, found.runs, found.expect) == (2, 3, 2.0)
    assert estimate(values, devices=1).devices == 1
    # Of the differences 1, 3 and 2 of each the median is 2: 1.4826 x 2 / sqrt(2) / 2.
    assert found.run_sigma == pytest.approx(1.04836, abs=1e-4)
