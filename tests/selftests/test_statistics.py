"""The fleet rule on simulated fleets: a small twin of tests/tools/bench_statistics.py."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from fixtures.paths import THRESHOLDS
from fixtures.records.files import read_json
from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict import power
from fixtures.verdict.fleet_rule import deviations, walls
from fixtures.verdict.outliers import sibling_values
from fixtures.verdict.samples import Invalid
from tests.selftests.support import DATA
from tests.tools import bench_statistics
from tests.tools.bench_statistics import FLEETS, kinds

pytestmark = pytest.mark.cpu
RECORDED = ("h200-1x4", "h200-2x2")


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(THRESHOLDS)


@pytest.mark.parametrize("nodes", [2, 16, 128])
@pytest.mark.parametrize("name", FLEETS)
def test_nobody_in_a_healthy_fleet_is_accused(name: str, nodes: int, limits: Thresholds) -> None:
    assert bench_statistics.healthy_runs_accused(limits, nodes, name, fleets=20) == 0


@pytest.mark.parametrize(
    ("name", "slow"),
    [("gemm", 0.15), ("gemm_per_clock", 0.05), ("hbm", 0.03), ("hostcopy", 0.03),
     ("collective", 0.05)],
)  # fmt: skip
@pytest.mark.parametrize("group", ["GPU", "node"])
def test_a_slow_device_is_named(name: str, slow: float, group: str, limits: Thresholds) -> None:
    (kind,) = [k for k in kinds(limits) if k.name == name]
    for nodes in (16, 128):
        assert bench_statistics.share_named(limits, kind, nodes, slow, group, 20) >= 0.95


def test_detection_is_as_good_as_with_a_known_spread(limits: Thresholds) -> None:
    """With 64 values or more, beside a rule that knows the spread, at the same risk."""
    rng = np.random.default_rng(1)
    criteria, sigma, count = limits.compared_criteria, 0.018, 1024
    for slow in (0.09, 0.10, 0.11, 0.12):
        fleets = rng.normal(1, sigma, (400, count))
        fleets[:, 0] -= slow
        wall = walls(fleets, delta=0.001, device_sigma=sigma / 2, criteria=criteria)
        known = 1 - deviations(count, criteria) * sigma
        assert abs((fleets[:, 0] < wall).mean() - (fleets[:, 0] < known).mean()) <= 0.10


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("name", ["gemm", "hbm", "collective", "hostcopy_all"])
def test_the_stated_defect_is_found_with_95_percent(
    name: str, nodes: int, limits: Thresholds
) -> None:
    """Within 5 points, of 300 plants with fixed seeds; bench_statistics has 1,000."""
    (kind,) = [k for k in kinds(limits) if k.name == name]
    stated, found = bench_statistics.share_found_as_stated(limits, kind, nodes, plants=300)
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


def test_the_risk_of_a_run_is_shared_by_criteria_and_devices() -> None:
    alone = deviations(1, 1)
    assert 0.5 * math.erfc(alone / math.sqrt(2)) == pytest.approx(0.003)
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
                values = sibling_values(criterion, record, record.nodes, record.nodes[0])
                if len(values) < 2:
                    continue
                spread = limits.spread[criterion.spread].for_model("H200 SXM")
                for copies in (8, 64, 2048):
                    fleet = np.tile(values, copies)
                    wall = walls(
                        fleet, delta=spread.delta, device_sigma=spread.device_sigma,
                        criteria=limits.compared_criteria,
                    )  # fmt: skip
                    assert min(values) >= wall, criterion.key
                compared += 1
    assert compared >= 5
