"""The sequential test of the patrol: what it finds, and how seldom it accuses the healthy."""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
from collections.abc import Callable

import pytest

from fixtures.statistics import cusum
from fixtures.statistics.cusum import Design, Track
from tests.selftests import support

pytestmark = pytest.mark.cpu

SHIFT = 0.03
STREAMS, VISITS_PER_HOUR = 16, 1.0
"""A node of 8 GPUs with two metrics, visited every hour."""
ROUNDS_OF_A_VISIT = 24
BETWEEN = 0.002
"""Of a visit against another, besides the noise within a visit, which the recordings have."""


@functools.cache
def recorded(metric: str) -> tuple[tuple[float, ...], ...]:
    """The recorded samples of each of four H200, relative to their medians."""
    workload = {"triad": "memory", "bf16_per_ghz": "gemm"}[metric]
    path = support.DATA / "h200-1x4" / "records" / f"{workload}@node0.json"
    found = []
    for rank in json.loads(path.read_text())["ranks"]:
        for m in rank["measurements"]:
            if m["metric"] == metric:
                middle = statistics.median(m["samples"])
                found.append(tuple(x / middle for x in m["samples"]))
    return tuple(found)


def visits(metric: str, rng: random.Random) -> Callable[[], float]:
    """Return a source of visits of one GPU: means of recorded samples."""
    samples = rng.choice(recorded(metric))

    def visit() -> float:
        within = statistics.fmean(rng.choices(samples, k=ROUNDS_OF_A_VISIT))
        return within * (1 + rng.gauss(0, BETWEEN))

    return visit


def designed(metric: str) -> Design:
    """The test with the noise that visits of healthy GPUs have."""
    rng = random.Random(1)
    streams = {}
    for k in range(40):
        visit = visits(metric, rng)
        streams[str(k)] = [visit() for _ in range(12)]
    sigma = cusum.noise(streams)
    assert sigma is not None
    return cusum.design(sigma=sigma, shift=SHIFT, streams=STREAMS, visits_per_hour=VISITS_PER_HOUR)


@pytest.mark.parametrize("metric", ["triad", "bf16_per_ghz"])
def test_a_gpu_three_per_cent_slow_is_found_within_ten_visits(metric):
    test, rng = designed(metric), random.Random(2)
    needed = []
    for _ in range(1000):
        visit = visits(metric, rng)
        certified, track = visit(), Track()
        while not track.accused and track.visits < 10:
            track = cusum.follow(track, (1 - SHIFT) * visit(), certified, test)
        needed.append(track.visits if track.accused else math.inf)
    assert statistics.fmean(n <= 10 for n in needed) >= 0.99
    assert statistics.median(needed) <= math.ceil(test.visits) + 1
    assert min(needed) >= 2  # one visit accuses nobody


@pytest.mark.parametrize("metric", ["triad", "bf16_per_ghz"])
@pytest.mark.parametrize("years", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_healthy_node_is_accused_at_most_once_a_year(metric, years):
    test, rng = designed(metric), random.Random(3)
    alarms = 0
    for _ in range(years * STREAMS // 2):  # streams of this metric; half of the year's alarms
        visit = visits(metric, rng)
        certified, track = visit(), Track()
        for _ in range(round(VISITS_PER_HOUR * cusum.YEAR_H) if years > 2 else 2000):
            track = cusum.follow(track, visit(), certified, test)
            if track.accused:  # it is certified anew: the value it had is one measurement too
                alarms += 1
                certified, track = visit(), Track()
    assert alarms <= years


@pytest.mark.parametrize("allowance", [0.5, 1.0])
@pytest.mark.parametrize("limit", [2.0, 3.0])
def test_the_run_length_is_that_of_a_simulation(allowance, limit):
    rng = random.Random(4)
    test = Design(sigma=1.0, allowance=allowance, limit=limit)
    runs = []
    for _ in range(600):
        total = visits_done = 0.0
        while total <= test.limit:
            total = max(0.0, total + rng.gauss(0, 1) - allowance)
            visits_done += 1
        runs.append(visits_done)
    assert statistics.fmean(runs) == pytest.approx(cusum.mean_run(allowance, limit), rel=0.2)


def test_what_is_too_noisy_is_refused_and_longer_years_raise_the_limit():
    with pytest.raises(ValueError, match=r"too noisy to find 3\.0 %"):
        cusum.design(sigma=0.02, shift=0.03, streams=16, visits_per_hour=1)
    with pytest.raises(ValueError, match="more than 0"):
        cusum.design(sigma=0.004, shift=0, streams=16, visits_per_hour=1)
    limits = [
        cusum.design(sigma=0.006, shift=0.03, streams=16, visits_per_hour=n).limit
        for n in (0.1, 1, 10)
    ]
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]


def test_a_value_that_is_none_changes_nothing_and_recovery_clears_the_sum():
    test = cusum.design(sigma=0.005, shift=0.03, streams=16, visits_per_hour=1)
    sick = cusum.tracked([0.97] * 4, 1.0, test)
    assert sick.accused
    assert sick.loss == pytest.approx(0.03)
    for value in (math.nan, math.inf, 0.0, -1.0):
        assert cusum.follow(sick, value, 1.0, test) == sick
    assert cusum.tracked([0.97] * 2 + [1.0] * 10, 1.0, test) == Track(visits=12)
    # However slow one visit is, it alone accuses nobody.
    assert not cusum.tracked([1.0, 0.1], 1.0, test).accused


def test_noise_is_that_of_visits_not_of_a_sick_gpu_and_unknown_with_few():
    rng = random.Random(5)
    streams = {str(k): [rng.gauss(100, 0.5) for _ in range(12)] for k in range(20)}
    streams["sick"] = [rng.gauss(60, 0.3) for _ in range(12)]
    dropped = {name: [x * (0.96 if k > 6 else 1) for k, x in enumerate(values)]
               for name, values in streams.items()}  # fmt: skip
    assert cusum.noise(dropped) == pytest.approx(cusum.noise(streams), rel=0.3)
    streams["disturbed"] = [100.0] * 6 + [40.0] + [100.0] * 5
    assert cusum.noise(streams) == pytest.approx(0.0065, rel=0.4)
    assert cusum.noise({"a": [1.0, 1.1]}) is None


def test_half_of_the_fleet_sick_at_once_is_a_suspect_measurement():
    fleet = [f"n{k}" for k in range(8)]
    assert cusum.is_suspect(fleet[:4], fleet)
    assert not cusum.is_suspect(fleet[:3], fleet)
    assert not cusum.is_suspect(["n0"], ["n0"])  # too few to say
    assert not cusum.is_suspect(["m1", "m2", "m3", "m4"], fleet)


def test_a_test_says_what_it_finds_and_when():
    slow = Design(sigma=0.01, allowance=2.0, limit=4.0)
    assert slow.visits == 3.0, "a shift of 4 less 2, and the visit that passes the limit"
    assert slow.sentence == (
        "a loss of 4.0 % is found in about 3 visits, where a visit repeats to 1.00 %"
    )
    # One visit adds three quarters of the limit at most.
    assert Design(sigma=0.01, allowance=10.0, limit=4.0).visits == pytest.approx(1 + 4 / 3)


def test_a_healthy_node_is_accused_once_a_year_by_design():
    test = cusum.design(sigma=0.005, shift=0.03, streams=16, visits_per_hour=1)
    assert (test.sigma, test.allowance) == (0.005, pytest.approx(3))
    # The certified value is one visit too: the allowance is less by its deviation.
    assert cusum.mean_run(2.0, test.limit) == pytest.approx(16 * 365 * 24, rel=1e-6)
    assert cusum.design(sigma=0.001, shift=0.03, streams=1, visits_per_hour=1).sigma == 0.003
    assert cusum.design(sigma=0.008, shift=0.02, streams=1, visits_per_hour=1).allowance == 1.25
    with pytest.raises(ValueError, match="too noisy"):
        cusum.design(sigma=0.008, shift=0.0199, streams=1, visits_per_hour=1)
    for wrong in ("sigma", "shift", "streams", "visits_per_hour", "false_alarms"):
        given = {"sigma": 0.5, "shift": 5.0, "streams": 1, "visits_per_hour": 0.5}
        assert cusum.design(**given).sigma == 0.5  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="more than 0"):
            cusum.design(**given | {wrong: 0})  # type: ignore[arg-type]
    assert cusum.mean_run(5.0, 100.0) == math.inf
    assert math.isfinite(cusum.mean_run(1.0, 345.0))


def test_a_track_adds_up_what_exceeds_the_allowance():
    test = Design(sigma=0.01, allowance=1.0, limit=4.0)
    once = cusum.follow(Track(), 0.97, 1.0, test)
    assert once == Track(sum=pytest.approx(2), visits=1, loss=pytest.approx(0.03), rising=1)
    twice = cusum.follow(once, 0.98, 1.0, test)
    assert (twice.sum, twice.accused) == (pytest.approx(3), False)
    assert (twice.loss, twice.rising) == (pytest.approx(0.025), 2)
    assert cusum.follow(twice, 0.96, 1.0, test).accused
    assert cusum.follow(Track(), 0.5, 1.0, test).sum == 3.0, "three quarters of the limit"
    assert not cusum.follow(Track(sum=1.0), 0.5, 1.0, test).accused, "just the limit"
    assert cusum.follow(Track(sum=1.0), 1.0, 1.0, test) == Track(visits=1)
    assert cusum.follow(once, 0.5, 0.0, test) == once
    half = cusum.follow(Track(), 0.25, 0.5, test)
    assert half.sum == 3.0


def test_noise_needs_four_streams_of_five_visits():
    visits_of = [100.0, 101.0, 100.0, 101.0, 100.0]
    four = {str(k): visits_of for k in range(4)}
    assert cusum.noise(four) == pytest.approx(1.4826 / math.sqrt(2) / 100)
    assert cusum.noise({**four, "3": visits_of[:4]}) is None
    assert cusum.noise({**four, "3": [0.0] * 5}) is None


def test_half_of_four_nodes_are_suspect_and_of_three_none():
    assert cusum.is_suspect(["a", "b"], ["a", "b", "c", "d"])
    assert not cusum.is_suspect(["a"], ["a", "b", "c", "d"])
    assert not cusum.is_suspect(["a", "b", "c"], ["a", "b", "c"])
