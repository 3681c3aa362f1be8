"""The fleet rule on simulated fleets: a small twin of tests/tools/bench_statistics.py."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from fixtures.paths import CHECKOUT, THRESHOLDS
from fixtures.records.files import read_json
from fixtures.records.model import Record
from fixtures.statistics.fleet_rule import MIN_FLEET, FleetRule, deviations
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict import power
from fixtures.verdict.outliers import sibling_values
from fixtures.verdict.samples import Invalid
from tests.selftests.support import DATA
from tests.tools import bench_statistics
from tests.tools.bench_statistics import FLEETS, kinds

pytestmark = pytest.mark.cpu
RECORDED = ("h200-1x4", "h200-2x2")
MORE = tuple(pytest.param(nodes, marks=pytest.mark.slow) for nodes in (128, 1024))
"""Sizes that `make soak` tries; bench_statistics has 1,000 fleets of each."""
WORKLOADS = CHECKOUT / "fixtures" / "workloads"


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(THRESHOLDS)


@pytest.mark.parametrize("nodes", [2, 16, *MORE])
@pytest.mark.parametrize("name", FLEETS)
def test_nobody_in_a_healthy_fleet_is_accused(name: str, nodes: int, limits: Thresholds) -> None:
    assert (
        bench_statistics.healthy_runs_accused(limits, nodes, name, 20 if nodes < 1024 else 2) == 0
    )


@pytest.mark.parametrize(
    ("name", "slow"),
    [("gemm", 0.15), ("gemm_per_clock", 0.08), ("hbm", 0.03), ("hostcopy", 0.03),
     ("hostcopy_all", 0.25), ("collective", 0.08)],
)  # fmt: skip
@pytest.mark.parametrize("group", ["GPU", "node"])
def test_a_slow_device_is_named(name: str, slow: float, group: str, limits: Thresholds) -> None:
    (kind,) = [k for k in kinds(limits) if k.name == name]
    for nodes in (16, 128):
        assert bench_statistics.share_named(kind, nodes, slow, group, 20) >= 0.95


def test_a_gpu_that_is_5_percent_slow_per_clock_is_named_in_most_runs(limits: Thresholds) -> None:
    (kind,) = [k for k in kinds(limits) if k.name == "gemm_per_clock"]
    for nodes, least in ((2, 0.9), (16, 0.85), (128, 0.8)):
        assert bench_statistics.share_named(kind, nodes, 0.05, "GPU", 300) >= least


@pytest.mark.parametrize("slow", [0.03, 0.05, 0.08, 0.15])
def test_detection_is_as_good_as_with_a_known_fleet(slow: float, limits: Thresholds) -> None:
    """With 64 values or more, beside a rule that knows median and spread, at the same risk."""
    for kind in kinds(limits):
        found = [
            bench_statistics.share_named(kind, 128, slow, "GPU", 200, known)
            for known in (False, True)
        ]
        assert found[0] == pytest.approx(found[1], abs=0.10), kind.name


def test_a_spread_that_the_fleet_shows_is_as_good_as_a_known_one() -> None:
    """Where nothing was recorded: a floor of half the spread, and no delta that matters."""
    rng = np.random.default_rng(1)
    sigma, count = 0.018, 1024
    rule = FleetRule(delta=0.001, device_sigma=sigma / 2, run_sigma=1e-4, criteria=50)
    for slow in (0.07, 0.09, 0.10, 0.11, 0.12):
        fleets = rng.normal(1, sigma, (400, count))
        fleets[:, 0] -= slow
        known = np.exp(-deviations(count, rule.criteria) * sigma)
        found = [(fleets[:, 0] < wall).mean() for wall in (rule.walls(fleets), known)]
        assert found[0] == pytest.approx(found[1], abs=0.10)


def test_a_device_at_delta_is_not_accused_for_noise() -> None:
    """A third of the fleet is slower by all that may last, so its own spread shows nothing."""
    rng = np.random.default_rng(2)
    rule = FleetRule(delta=0.02, device_sigma=0.001, run_sigma=0.005, criteria=50)
    lasting = np.where(np.arange(900) < 300, 0.98, 1.0)
    accused = 0
    for rounds in (1, 3):
        measured = lasting * (1 + rng.normal(0, 0.005, (rounds, 200, 900)))
        walls = rule.walls(np.median(measured, axis=0), rounds)
        accused += int((measured.max(axis=0) < walls[:, None]).any(axis=1).sum())
    assert accused <= 1


@pytest.mark.parametrize("nodes", [1, 2, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["gemm", "hbm", "collective", "hostcopy_all"])
def test_the_stated_defect_is_found_with_95_percent(
    name: str, nodes: int, limits: Thresholds
) -> None:
    """Within 5 points, of 300 plants with fixed seeds; bench_statistics has 1,000."""
    (kind,) = [k for k in kinds(limits) if k.name == name]
    stated, found = bench_statistics.share_found_as_stated(kind, nodes, plants=300)
    assert stated is not None
    assert found == pytest.approx(0.95, abs=0.05)


def test_a_smaller_defect_than_the_stated_one_is_found_less_often() -> None:
    values, bounds = np.array([1.0, 1.01, 0.99, 1.0]), np.full(4, 0.9)
    stated = power.smallest_found(values, bounds, sigma=0.005, rounds=3)
    assert stated is not None
    shares = [
        power.found_share(values, bounds, defect=stated * k, sigma=0.005, rounds=3)
        for k in (0.8, 1.0, 1.2)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[1] == pytest.approx(0.95, abs=0.01)


def test_a_time_is_found_above_its_limit() -> None:
    found = power.smallest_found(
        np.array([10.0]), np.array([20.0]), sigma=0.01, rounds=1, time=True
    )
    assert found == pytest.approx(1.05, abs=0.01)


@pytest.mark.parametrize("repetitions", [1, 10, 100])
def test_a_repeated_check_finds_what_its_repetitions_show(repetitions: int) -> None:
    share = power.smallest_fault(repetitions)
    assert 1 - (1 - share) ** repetitions == pytest.approx(0.95)


def test_the_workloads_that_repeat_are_those_that_say_so() -> None:
    found = [p for p in WORKLOADS.glob("*/*.py") if "repeat_rounds.measure" in p.read_text()]
    assert sorted(p.stem for p in found) == sorted(power.REPEATED)


def test_the_risk_of_a_run_is_shared_by_criteria_and_devices() -> None:
    alone = deviations(1, 1)
    assert 0.5 * math.erfc(alone / math.sqrt(2)) == pytest.approx(0.003)
    assert (0.5 * math.erfc(deviations(1, 1, 3) / math.sqrt(2))) ** 3 == pytest.approx(0.003)
    assert deviations(8192, 30) > deviations(16, 30) > deviations(16, 1) > alone


@pytest.mark.parametrize("run", RECORDED)
def test_a_fleet_of_the_recorded_gpus_accuses_none_of_them(run: str, limits: Thresholds) -> None:
    """As many nodes like the recorded ones as one likes: their GPUs were taken for healthy."""
    compared = 0
    for criterion in limits.criteria.values():
        if not criterion.spread or criterion.statistic == "spread" or criterion.per != "node":
            continue
        for path in sorted((DATA / run / "records").glob(f"{criterion.workload}@*.json")):
            record = Record.from_json(read_json(path))
            with suppress(Invalid):
                found = sibling_values(criterion, record, record.nodes, record.nodes[0])
                values = [value for _, value in found]
                if len(values) < 2:
                    continue
                spread = limits.spread[criterion.spread].for_model("H200 SXM")
                rule = FleetRule.of(spread, limits.compared_criteria)
                for copies in (8, 64, 2048):
                    fleet = np.tile(values, copies)
                    assert min(values) >= rule.walls(fleet), criterion.key
                compared += 1
    assert compared >= 5


def test_a_fleet_of_64_values_shows_its_own_spread_and_a_smaller_one_does_not():
    rule = FleetRule(delta=0.08, device_sigma=0.001, run_sigma=0.001, criteria=1)
    wide = np.linspace(90.0, 110.0, 64)
    assert float(rule.lasting_sigma(wide[:63])) == 0.001
    assert float(rule.lasting_sigma(wide)) == pytest.approx(0.075, abs=0.005)


def test_fewer_than_four_devices_are_not_compared():
    assert MIN_FLEET == 4, "of three, one slow device moves the median by itself"
