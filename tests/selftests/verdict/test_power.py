"""The power of the test: the smallest defect that a criterion finds with 95 %."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.statistics.fleet_rule import FleetRule
from fixtures.thresholds.spread import Spread
from fixtures.verdict import power
from fixtures.verdict.power import Figure
from fixtures.verdict.sheet import Reading
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, row, state

pytestmark = pytest.mark.cpu

RULE = FleetRule(delta=0.08, device_sigma=0.018, run_sigma=0.003, criteria=1)
BELOW = row(fail_below=80)


def array(*values: float) -> Any:
    return np.array(values, dtype=float)


# --- the probability


def test_the_share_that_lasts_is_what_noise_does_not_explain():
    assert power.noise_share(array(90, 110, 100), 0.05) == 1.0, "too few to tell"
    # Relative variance 0.005, of which 0.05 squared is half.
    assert power.noise_share(array(90, 110, 100, 100), 0.05) == pytest.approx(0.5)
    assert power.noise_share(array(90, 110, 100, 100), 0.5) == 0.0
    assert power.noise_share(array(100, 100, 100, 100), 0.05) == 0.0


def found(defect: float, bound: float = 90, value: float = 100, **more: Any) -> float:
    given = {"sigma": 0.001, "rounds": 1} | more
    return power.found_share(array(value), array(bound), defect=defect, **given)


def test_a_defect_that_reaches_just_the_bound_is_found_by_chance():
    assert found(0.1) == pytest.approx(0.5, abs=0.01)
    assert found(0.11) == pytest.approx(1.0, abs=0.001)
    assert found(0.09) == pytest.approx(0.0, abs=0.001)
    # What was measured and two new rounds are three draws, of which the first must be the highest.
    assert found(0.1, rounds=2) == pytest.approx(1 / 3, abs=0.01)
    assert found(0.1, bound=110, time=True) == pytest.approx(0.5, abs=0.01)
    assert found(0.11, bound=110, time=True) == pytest.approx(1.0, abs=0.001)


def test_many_devices_are_represented_by_256():
    for count, rows in ((3, 3), (256, 256), (300, 256)):
        values = np.linspace(99, 101, count)
        over_bound, weights = power._lasting(values, np.full(count, 90.0), 0.001)
        assert over_bound.shape == (rows, 9)
        assert weights.sum() == pytest.approx(1)
        assert over_bound.mean() == pytest.approx(100 / 90, rel=1e-3)
    four = power._lasting(array(100, 100, 100, 100), array(90, 90, 90, 90), 0.01)[0]
    assert four == pytest.approx(np.full((4, 9), 100 / 90)), "nothing lasts"
    three = power._lasting(array(100, 100, 100), array(90, 90, 90), 0.01)[0]
    assert three.std() > 0.005
    apart = array(98, 99, 100, 101, 102)
    shrunk = power._lasting(apart, array(1, 1, 1, 1, 1), 0.01)[0].mean(axis=1)
    assert shrunk == pytest.approx(array(99, 99.5, 100, 100.5, 101), abs=0.01), "by one half"


def smallest(value: float, bound: float, **more: Any) -> float | None:
    return power.smallest_found(array(value), array(bound), **{"sigma": 0.01, "rounds": 1} | more)


def test_the_smallest_defect_that_is_found_with_95_per_cent():
    # Two draws of 1 % deviate by 2.33 % at most in 95 of 100: 95 / (100 x 1.0233).
    assert smallest(100, 95) == pytest.approx(0.0716, abs=0.001)
    assert smallest(100, 105, time=True) == pytest.approx(0.0754, abs=0.003)
    assert smallest(1, 50, time=True) == pytest.approx(50, abs=2)
    assert smallest(1, 100, time=True) is None, "64 times the value is not looked for"
    assert smallest(100, 1e-5) is None
    exact = smallest(100, 95, sigma=1e-4)
    assert exact == pytest.approx(0.0502, abs=2e-4)


def test_in_a_small_fleet_each_device_is_compared_with_a_fleet_that_it_slows():
    values = np.linspace(95, 105, 64)
    each = power.fleet_bounds(values, RULE)
    slowed = values.copy()
    slowed[5] = 0.5 * 95
    assert each[5] == pytest.approx(float(RULE.walls(slowed)))
    assert len(set(each)) > 1
    large = np.linspace(95, 105, 65)
    for rounds in (1, 3):
        wall = float(RULE.walls(large, rounds))
        assert power.fleet_bounds(large, RULE, rounds) == pytest.approx(np.full(65, wall))
        assert power.fleet_bounds(values, RULE, rounds)[5] == pytest.approx(
            float(RULE.walls(slowed, rounds))
        )


def test_a_fault_that_strikes_most_repetitions_is_seen_in_one():
    assert power.smallest_fault(1) == pytest.approx(0.95)
    assert power.smallest_fault(10) == pytest.approx(0.2589, abs=1e-4)


# --- from records

THRESHOLDS: Any = SimpleNamespace(
    cluster=None, compared_criteria=7,
    spread={"gemm": Spread(delta=0.08, device_sigma=0.018, run_sigma=0.003, source="x")},
)  # fmt: skip


def figure(of: Any, *ranks: Any) -> Figure | None:
    case = made.case(of, devices=len(ranks), record=record(*ranks), facts={"model": "H200 SXM"})
    return power.figure_of(Reading(case), THRESHOLDS)


def rates(*values: float, **more: Any) -> list[Any]:
    return [rank(k, measured("rate", v, **more), gpus=len(values)) for k, v in enumerate(values)]


def test_a_case_has_a_figure_where_its_rates_are_judged():
    got = figure(criterion(BELOW), *rates(100, 90))
    assert got is not None
    assert (list(got.values), list(got.bounds)) == ([100, 90], [80, 80])
    assert (got.rounds, got.rounds_of_slow, got.rule, got.time) == (1, 1, None, False)
    assert got.noise == 1e-4
    above = figure(criterion(row(fail_above=120)), *rates(100))
    assert above is not None
    assert above.time
    share = criterion(row(fail_below="0.6 of ceiling"), ceiling=1000.0)
    assert list(getattr(figure(share, *rates(700)), "bounds", [])) == [600]
    for of in (
        criterion(BELOW, statistic="alike"),
        criterion(BELOW, metric="other"),
        criterion(row(recorded="no figure")),
        criterion(row(recorded="no figure"), ceiling="hbm"),
        criterion(row(calibrate=True)),
        criterion(row(equals=100)),
        criterion(BELOW, statistic="value"),
    ):
        assert figure(of, *rates(100, 90)) is None, of


def test_a_count_of_faults_knows_how_often_it_was_taken():
    none, one = row(fail_above=0), row(fail_above=1)
    ranks = [
        rank(0, state(0, checks={"passes": 10})),
        rank(1, state(0, checks={"passes": 5, "compared": 3, "other": 1})),
        rank(2, state(0)),
    ]
    counted = figure(criterion(none, statistic="value"), *ranks)
    assert counted == Figure(repetitions=3)
    assert figure(criterion(one, statistic="value"), *ranks) is None, "one fault is allowed"
    assert figure(criterion(none, statistic="value"), ranks[2]) is None
    assert figure(criterion(none, statistic="value"), ranks[1]) == Figure(repetitions=3)


def test_a_class_of_spread_brings_its_noise_its_rule_and_more_rounds():
    given = {"spread": "gemm", "workload": "gemm"}
    few = figure(criterion(BELOW, **given), *rates(100, 90, 95))
    assert few is not None
    assert (few.rounds, few.rounds_of_slow, few.noise) == (3, 1, 0.003)
    assert few.rule == FleetRule(delta=0.08, device_sigma=0.018, run_sigma=0.003, criteria=7)
    many = figure(criterion(BELOW, **given), *rates(100, 90, 95, 94))
    assert many is not None
    assert (many.rounds, many.rounds_of_slow) == (3, 3)
    once = figure(criterion(BELOW, spread="gemm", workload="own"), *rates(100, 90, 95, 94))
    assert once is not None
    assert (once.rounds, once.rounds_of_slow) == (1, 1)
    assert once.rule is not None
    more = figure(criterion(BELOW, **given), *rates(100, 90, rounds=[[90]] * 4))
    assert more is not None
    assert (more.rounds, more.rounds_of_slow) == (5, 5)
    for other in (
        criterion(BELOW, per="cluster", **given),
        criterion(row(fail_above=120), **given),
        criterion(row(fail_above=50), statistic="spread", **given),
    ):
        assert getattr(figure(other, *rates(100, 90)), "rule", "none") is None, other
    case = made.case(
        criterion(BELOW, per="rail", **given), record=record(*rates(100, 90)), subject="rail1",
        facts={"model": "H200 SXM"},
    )  # fmt: skip
    rail = power.figure_of(Reading(case), THRESHOLDS)
    assert rail is not None
    assert (list(rail.values), rail.rule is not None) == ([90], True)


def test_the_spread_of_devices_has_bounds_below_the_best_of_the_others():
    spread = criterion(row(fail_above=10), statistic="spread")
    got = figure(spread, *rates(100, 90, 96))
    assert got is not None
    assert list(got.bounds) == pytest.approx([96 - 9.6, 100 - 9.6, 100 - 9.6])
    assert not got.time
    assert figure(spread, *rates(100)) is None
    assert figure(criterion(BELOW, statistic="spread"), *rates(100, 90)) is None


def test_over_ranks_the_rates_of_a_batch_are_one_figure():
    ranks = [
        rank(k, measured("rate", 100, v, 100, rounds=[[v, v]])) for k, v in enumerate((50, 100))
    ]
    got = figure(criterion(row(fail_below=40), over="ranks"), *ranks)
    assert got is not None
    assert list(got.values) == pytest.approx([(100 + 200 / 3) / 2])
    assert got.rounds == 2


def test_noise_is_that_of_samples_or_of_rounds_whichever_is_more():
    # 1.41 % of one sample, 1.25 times its root for the median of two.
    assert power._noise([[[99, 101]]], [[100]]) == pytest.approx(0.012533, abs=1e-5)
    assert power._noise([[[99, 101], [109, 111]]], [[100, 110]]) == pytest.approx(0.0673, abs=1e-4)
    assert power._noise([[[99]]], [[99]]) == 0
    assert power._root_mean_square([]) == 0
    assert power._root_mean_square([3, 4]) == pytest.approx(12.5**0.5)


# --- of a run


def rate_figure(values: int = 4, bound: float = 50, **more: Any) -> Figure:
    given: dict[str, Any] = {"noise": 0.01, "rule": RULE, "rounds_of_slow": 3} | more
    return Figure(values=[100.0] * values, bounds=[bound] * values, **given)


def test_the_power_of_each_criterion_is_listed_in_order():
    figures = {("b", "n1"): rate_figure(), ("a", "n1"): Figure(repetitions=9), ("c", "n1"): None,
               ("a", "n2"): Figure(repetitions=5), ("b", "n2"): rate_figure()}  # fmt: skip
    b, a = power.powers(figures, ["c", "b", "d", "a"])
    assert (a.criterion, a.kind, a.by, a.values, a.repetitions) == (
        "a", "repeated", "repetitions", 2, 5,
    )  # fmt: skip
    assert a.finds == 0.4507, "1 - 0.05 ** (1 / 5)"
    assert (b.criterion, b.kind, b.values, b.noise) == ("b", "rate", 8, 0.01)
    assert b.to_json()["finds"] == b.finds


def test_limit_or_like_devices_decide_for_most_devices():
    like = power._power("x", [rate_figure()])
    assert (like.by, like.rounds) == ("like devices", 3)
    assert like.finds is not None
    assert 0.08 < like.finds < 0.15
    limit = power._power("x", [rate_figure(bound=99, rounds=2)])
    assert (limit.by, limit.rounds) == ("limit", 2)
    assert limit.finds is not None
    assert 0.01 < limit.finds < 0.05
    half = power._power("x", [rate_figure(2), rate_figure(2, bound=99)])
    assert half.by == "limit"
    for figures in ([rate_figure(3)], [rate_figure(rule=None)]):
        alone = power._power("x", figures)
        assert alone.by == "limit"
        assert alone.finds is not None
        assert alone.finds > 0.5
    slow = power._power("x", [Figure(values=[1.0], bounds=[100.0], noise=0.01, time=True)])
    assert (slow.kind, slow.finds) == ("time", None)
