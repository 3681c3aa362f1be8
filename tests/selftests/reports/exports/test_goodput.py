"""Goodput of a job that fails now and then, and energy from sampled power."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from reports.exports import goodput

pytestmark = pytest.mark.cpu


def _simulated(seed: int, *, mtbf: float, interval: float, checkpoint: float, detect: float,
               restart: float, failures: int) -> float:  # fmt: skip
    """The share of useful time of a job with so many failures, event by event."""
    rng = random.Random(seed)
    now = useful = 0.0
    while failures:
        left = rng.expovariate(1 / mtbf)
        now += left
        useful += left // (interval + checkpoint) * interval
        failures -= 1
        while failures and (again := rng.expovariate(1 / mtbf)) < detect + restart:
            now += again
            failures -= 1
        now += detect + restart
    return useful / now


@pytest.mark.parametrize("mtbf_h", [2, 12, 60])
def test_goodput_is_what_a_simulation_of_failures_gives(mtbf_h):
    given = {"checkpoint": 60.0, "detect": 90.0, "restart": 300.0}
    mtbf = 3600.0 * mtbf_h
    interval = goodput.best_interval_s(mtbf_s=mtbf, checkpoint_s=60)
    expected = goodput.goodput(
        mtbf_s=mtbf, interval_s=interval, checkpoint_s=60, detect_s=90, restart_s=300
    )
    runs = [
        _simulated(seed, mtbf=mtbf, interval=interval, failures=200, **given)
        for seed in range(40)
    ]  # fmt: skip
    assert statistics.fmean(runs) == pytest.approx(expected, abs=0.01)
    assert sum(abs(run - expected) < 0.03 for run in runs) >= 38


def test_the_best_interval_has_the_most_goodput():
    times = {"mtbf_s": 40000.0, "checkpoint_s": 50.0, "detect_s": 30.0, "restart_s": 200.0}
    best = goodput.best_interval_s(mtbf_s=40000.0, checkpoint_s=50.0)
    at_best = goodput.goodput(interval_s=best, **times)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert goodput.goodput(interval_s=factor * best, **times) < at_best
    assert goodput.goodput(interval_s=1e9, **times) == 0.0
    with pytest.raises(ValueError, match="more than 0"):
        goodput.goodput(interval_s=0.0, **times)


def test_energy_is_the_integral_of_the_samples_and_of_nothing_else():
    samples = [(0.2 * k, 500 + 100 * math.sin(k / 3)) for k in range(101)]
    whole = goodput.joules(samples, 1.03, 18.77)
    exact = 500 * 17.74 + 100 * 0.6 * (math.cos(1.03 / 0.6) - math.cos(18.77 / 0.6))
    assert whole == pytest.approx(exact, rel=0.002)
    assert goodput.joules(samples, -1.0, 5.0) is None
    assert goodput.joules(samples, 15.0, 20.5) is None
    gap = [s for s in samples if not 6 < s[0] < 8]
    assert goodput.joules(gap, 1.0, 18.0) is None
    assert goodput.joules([], 0.0, 1.0) is None


def test_times_are_positive_and_may_be_short():
    times = {"mtbf_s": 0.5, "interval_s": 0.5, "checkpoint_s": 0.0, "detect_s": 0.5,
             "restart_s": 0.0}  # fmt: skip
    # Half a second that takes 0.5 x e x (e - 1).
    assert goodput.goodput(**times) == pytest.approx(1 / (math.e * (math.e - 1)))
    for name, value in (("mtbf_s", 0.0), ("checkpoint_s", -1.0), ("restart_s", -0.1)):
        with pytest.raises(ValueError, match="positive"):
            goodput.goodput(**{**times, name: value})
    assert goodput.DAY_S == 24 * 60 * 60


def test_a_job_that_fails_700_times_in_a_segment_has_no_goodput():
    times = {"mtbf_s": 1.0, "checkpoint_s": 0.0, "detect_s": 0.0, "restart_s": 0.0}
    assert goodput.goodput(interval_s=701.0, **times) == 0.0
    assert 0 < goodput.goodput(interval_s=700.0, **times) < 1e-300


def test_the_interval_is_the_mean_time_where_a_checkpoint_takes_half_of_it():
    assert goodput.best_interval_s(mtbf_s=100.0, checkpoint_s=50.0) == 100.0
    # Daly 2006, equation 37, by hand.
    assert goodput.best_interval_s(mtbf_s=100.0, checkpoint_s=49.0) == pytest.approx(69.02, abs=0.1)


def test_energy_needs_samples_at_both_ends_and_one_each_second():
    assert goodput.joules([(1, 100), (0, 100)], 0, 1) == 100
    assert goodput.joules([(0, 100), (0, 300), (1, 300)], 0, 1) == pytest.approx(200, abs=101)
    for samples, start, end in (
        ([(0, 100)], 0, 0.0), ([(0, 100), (1, 100)], 1, 0), ([(0, 1), (1, 1)], 0.5, 0.5),
        ([(0.1, 100), (1, 100)], 0, 1), ([(0, 100), (0.9, 100)], 0, 1),
        ([(0, 100), (1.5, 100)], 0, 1.5),
    ):  # fmt: skip
        assert goodput.joules(samples, start, end) is None
