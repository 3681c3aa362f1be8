"""The plan for the MTBF of a node: exact risks, decisions and confidence bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fixtures.statistics import mtbf
from fixtures.statistics.mtbf import Decision, Plan, plan_for

pytestmark = pytest.mark.cpu
CLUSTERS = 1000


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(30.0, 90.0, 0.1, 0.1)


def test_the_sentence_of_64_nodes_for_72_hours_with_one_failure():
    """2 x 192 / chi-square(0.90; 4), of which tables say 7.779."""
    bound = mtbf.lower_bound(192, 1, 0.9)
    assert bound == pytest.approx(2 * 192 / 7.779, rel=1e-4)
    assert mtbf.sentence(bound, 0.9, 64, 72, 1) == (
        "MTBF of a node >= 49 days at 90 % after 64 nodes x 72 h with 1 failure"
    )


@pytest.mark.parametrize(
    ("days", "said"),
    [(49.98, "49 days"), (9.99, "9.9 days"), (0.5, "12 hours"), (0.001, "86 s"), (0.0, "0 s")],
)
def test_a_bound_is_rounded_down(days, said):
    assert f">= {said} at 90 %" in mtbf.sentence(days, 0.9, 2, 1, 0)


@pytest.mark.parametrize(
    ("failures", "confidence", "chi_square"),
    [(0, 0.90, 4.6052), (0, 0.95, 5.9915), (2, 0.90, 10.6446), (5, 0.80, 15.8120),
     (9, 0.95, 31.4104)],
)  # fmt: skip
def test_the_bound_of_a_fixed_time_is_that_of_the_tables(failures, confidence, chi_square):
    bound = mtbf.lower_bound(100.0, failures, confidence)
    assert bound == pytest.approx(200 / chi_square, rel=1e-4)


@pytest.mark.parametrize(
    ("design", "customer", "supplier"),
    [(2.0, 0.1, 0.1), (3.0, 0.1, 0.1), (3.0, 0.2, 0.2), (1.5, 0.2, 0.1), (5.0, 0.05, 0.1)],
)
def test_neither_risk_is_above_the_ordered_one(design, customer, supplier):
    plan = plan_for(1.0, design, customer, supplier)
    assert 0.5 * customer < plan.accepts(1.0) <= customer
    assert 0.5 * supplier < 1 - plan.accepts(design) <= supplier


@pytest.mark.parametrize("mtbf_days", [15.0, 30.0, 60.0, 90.0])
def test_all_outcomes_together_are_certain(plan, mtbf_days):
    for until in (10.0, 60.0, plan.end):
        paths = plan.paths(mtbf_days, until)
        total = sum(paths.accepted.values()) + paths.rejected + sum(paths.going_on.values())
        assert total == pytest.approx(1.0)
    assert not plan.paths(mtbf_days, plan.end).going_on


def clusters(seed: int, mean: float, plan: Plan) -> list[list[float]]:
    """Times of the failures of many clusters, until the plan's end."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(mean, (CLUSTERS, plan.most_failures + 1))
    return [list(times) for times in np.cumsum(gaps, axis=1)]


@pytest.mark.parametrize("mean", [20.0, 30.0, 50.0, 90.0, 150.0])
def test_clusters_are_accepted_as_often_as_computed(plan, mean):
    decisions = [plan.decide(times, plan.end)[0] for times in clusters(1, mean, plan)]
    assert Decision.GO_ON not in decisions
    share = decisions.count(Decision.ACCEPT) / CLUSTERS
    assert share == pytest.approx(plan.accepts(mean), abs=0.04)


@pytest.mark.parametrize("mean", [20.0, 30.0, 50.0, 90.0, 150.0])
def test_the_bounds_cover_as_often_as_computed_and_at_least_with_90_percent(plan, mean):
    exact = plan.coverage(mean, 0.9)
    assert exact >= 0.9 - 1e-9
    covered = 0
    bounds: dict[tuple[Decision, float], float] = {}
    for times in clusters(2, mean, plan):
        decision, time, _ = plan.decide(times, plan.end)
        key = decision, time
        if key not in bounds:
            bounds[key] = plan.lower_bound(times, plan.end, 0.9)
        covered += bounds[key] <= mean
    share = covered / CLUSTERS
    assert share == pytest.approx(exact, abs=0.03)


def test_without_a_boundary_before_the_end_the_bound_is_that_of_the_fixed_time(plan):
    days = 0.5 * plan.accept_at[0]
    assert plan.lower_bound([], days, 0.9) == pytest.approx(mtbf.lower_bound(days, 0, 0.9))


def test_an_early_acceptance_proves_no_more_than_its_time(plan):
    decision, time, count = plan.decide([], 1e6)
    assert (decision, time, count) == (Decision.ACCEPT, plan.accept_at[0], 0)
    assert plan.lower_bound([], 1e6, 0.9) == pytest.approx(mtbf.lower_bound(time, 0, 0.9))


def test_failures_from_the_start_reject_and_between_the_lines_it_goes_on(plan):
    many = [0.1 * k for k in range(1, plan.most_failures + 1)]
    assert plan.decide(many, 10.0)[0] is Decision.REJECT
    assert plan.decide([5.0], 10.0)[0] is Decision.GO_ON
    assert plan.decide([], 10.0)[0] is Decision.GO_ON


def test_a_failure_after_the_acceptance_changes_nothing(plan):
    late = plan.accept_at[0] + 1
    assert plan.decide([late], late + 1)[:2] == (Decision.ACCEPT, plan.accept_at[0])


def test_a_design_too_near_to_the_order_is_refused():
    with pytest.raises(ValueError, match="too close"):
        plan_for(1.0, 1.17, 0.1, 0.1)


def test_planned_hours_say_what_they_can_prove(plan):
    lines = mtbf.provable(64, 72, 0.9, plan)
    assert lines[1].startswith("MTBF of a node >= 49 days at 90 % after 64 nodes x 72 h")
    first = plan.accept_at[0] * 24 / 64
    assert any(f"after {first:.1f} h without a failure" in line for line in lines)
    assert any("cannot accept" in line for line in mtbf.provable(2, 1, 0.9, plan))
    assert math.isfinite(first)


def test_the_probability_of_a_count_is_poissons():
    assert mtbf.poisson(2, 1.0) == pytest.approx(math.exp(-1) / 2)
    assert (mtbf.poisson(0, 0.0), mtbf.poisson(2, 0.0)) == (1.0, 0.0)
    assert mtbf.poisson(0, 0.5) == pytest.approx(math.exp(-0.5))
    assert mtbf.at_most(1, 1.0) == pytest.approx(2 * math.exp(-1))
    assert mtbf.lower_bound(0.0, 0, 0.9) == 0.0
    assert mtbf.lower_bound(0.5, 0, 0.9) == pytest.approx(0.5 / math.log(10), rel=1e-6)


def test_what_no_mtbf_explains_is_nothing_or_unbounded():
    assert mtbf._solve(lambda m: 1.0, 0.5, 1.0) == 0.0
    assert mtbf._solve(lambda m: 0.0, 0.5, 1.0) == math.inf
    for start in (1.0, 5.0, 80.0):
        assert mtbf._solve(lambda m: min(1.0, m / 10), 0.5, start) == pytest.approx(5, rel=1e-8)


LINES = Plan(
    ordered=1.0, design=3.0, customer_risk=0.1, supplier_risk=0.2, accept_at=(10.0, 20.0, 30.0),
    reject_until=(0.0, 2.0, 5.0),
)  # fmt: skip
"""Accepts after 10, 20 or 30 days; the third failure rejects at any time."""
DECISIONS = [
    # failures, days, decision, when, failures up to then
    ([], 9.9, Decision.GO_ON, 9.9, 0),
    ([], 10.0, Decision.ACCEPT, 10.0, 0),
    ([10.0], 10.0, Decision.ACCEPT, 10.0, 0),
    ([25.0], 15.0, Decision.ACCEPT, 10.0, 0),
    ([9.0], 10.0, Decision.GO_ON, 10.0, 1),
    ([9.0], 20.0, Decision.ACCEPT, 20.0, 1),
    ([2.0], 5.0, Decision.REJECT, 2.0, 1),
    ([0.3], 5.0, Decision.REJECT, 0.3, 1),
    ([2.1], 5.0, Decision.GO_ON, 5.0, 1),
    ([5.0], 5.0, Decision.GO_ON, 5.0, 1),
    ([7.0, 1.0], 0.5, Decision.GO_ON, 0.5, 0),
    ([4.0, 3.0], 6.0, Decision.REJECT, 4.0, 2),
    ([3.0, 5.1], 6.0, Decision.GO_ON, 6.0, 2),
    ([6.0, 7.0, 8.0], 9.0, Decision.REJECT, 8.0, 3),
]


def test_a_decision_falls_on_the_lines_of_the_plan():
    assert (LINES.most_failures, LINES.end) == (3, 30.0)
    for failures, days, *decision in DECISIONS:
        assert list(LINES.decide(failures, days)) == decision, (failures, days)


def test_a_boundary_of_less_than_a_day_rejects_too():
    early = Plan(1.0, 3.0, 0.1, 0.1, accept_at=(10.0, 20.0), reject_until=(0.0, 0.5))
    assert early.decide([0.3], 5.0)[0] is Decision.REJECT
    assert early.decide([0.6], 5.0)[0] is Decision.GO_ON


def test_the_bound_depends_on_how_good_the_outcome_is():
    one, none = (LINES.lower_bound(failures, 8.0, 0.9) for failures in ([7.0], []))
    rejected = LINES.lower_bound([1.0], 8.0, 0.9)
    late = LINES.lower_bound([9.0], 20.0, 0.9)
    assert rejected < one < none
    assert one < late
    assert none == pytest.approx(mtbf.lower_bound(8.0, 0, 0.9))


def test_a_bound_has_the_unit_that_it_can_be_read_in():
    for days, text in (
        (10.0, "10 days"), (9.99, "9.9 days"), (1.0, "1 day"), (0.99, "23.7 hours"),
        (1 / 24, "1 hour"), (0.04, "3456 s"),
    ):  # fmt: skip
        assert mtbf._days(days) == text


def test_a_plan_tells_what_its_hours_can_do():
    *proved, head, said = mtbf.provable(24, 10, 0.9, LINES)
    assert len(proved) == 3
    assert proved[2].endswith("with 2 failures")
    assert "MTBF per node of 1 day, built for 3; customer's risk 0.1, supplier's risk 0.2" in head
    assert said == (
        "accepted after 10.0 h without a failure; with 0 or fewer by the end; "
        "rejected by 3 at any time"
    )
    short = mtbf.provable(24, 9.9, 0.9, LINES)[-1]
    assert short.startswith("cannot accept: the first acceptance comes after 10.0 h without")
    assert short.endswith("the last decision after 30.0 h")
    assert "nothing is accepted" in mtbf.provable(2, 1, 0.9, None)[-1]
