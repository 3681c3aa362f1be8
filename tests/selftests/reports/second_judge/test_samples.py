"""The second judge's arithmetic, on samples small enough to work out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from reports.second_judge import absences, samples
from reports.second_judge.physics import Cannot

pytestmark = pytest.mark.cpu

SPREAD = {"delta": 0.08, "device_sigma": 0.018, "run_sigma": 0.003}
TAIL = {"shared": False, "slow": 0.8, "share": 0.1, "together": 0.9}


def point(metric: str = "bf16", bound: str = "", **more: object):
    absent = [{"metric": bound, "kind": absences.BOUND}] if bound else []
    return {"absent": absent}, {"metric": metric, **more}


def test_each_round_has_its_median_and_all_samples_are_positive():
    assert samples.rounds_of({}) == [[]]
    assert samples.rounds_of({"samples": [1], "rounds": [[2], [3]]}) == [[1], [2], [3]]
    assert samples.medians({"samples": [0.25, 0.5, 3.0], "rounds": [[7.0]]}) == [0.5, 7.0]
    for bad in ({}, {"samples": [0, 1]}, {"samples": [1], "rounds": [[]]}):
        with pytest.raises(Cannot):
            samples.medians(bad)


def test_times_have_an_arithmetic_mean_and_rates_a_harmonic_one():
    assert samples.mean_over_ranks([1.0, 3.0], "us") == 2.0
    assert samples.mean_over_ranks([1.0, 3.0], "GB/s") == 1.5


@pytest.mark.parametrize(
    "m",
    [
        {"samples": [1, 2], "checks": {"batches": 2, "steps": 2}},
        {"samples": [1, 2], "checks": {"other": 7}},
        {"checks": {"batches": 3}},
        {"samples": [1, 2], "ended": [5, 6]},
        {"ended": [5, 6]},
    ],
)
def test_a_measurement_with_as_much_as_it_says_is_valid(m):
    samples.check(m, {})


@pytest.mark.parametrize(
    "m",
    [
        {"samples": [1, 2], "checks": {"batches": 3}},
        {"samples": [1, 2], "checks": {"steps": 1}},
        {"samples": [1, 2], "rounds": [[1]], "checks": {"batches": 2}},
        {"samples": [1, 2], "ended": [5]},
        {"samples": [1, 2], "ended": [6, 5]},
    ],
)
def test_a_measurement_with_more_or_less_than_it_says_is_not(m):
    with pytest.raises(Cannot):
        samples.check(m, {})


def test_a_check_of_validity_is_within_its_bounds():
    m = {"samples": [1], "checks": {"overlap": 0.8}}
    for bounds in ((0.8, None), (None, 0.8), (None, None), (0.7, 0.9)):
        samples.check(m, {"overlap": bounds})
    for name, bounds in (("overlap", (0.9, None)), ("overlap", (None, 0.7)), ("other", (0, 1))):
        with pytest.raises(Cannot):
            samples.check(m, {name: bounds})


def test_a_value_at_its_limit_is_within_it():
    satisfies = samples.satisfies
    for kind, limit, good, bad in (
        ("below", 5, 5, 4.9), ("above", 5, 5, 5.1), ("equals", 5, 5, 6), ("below", 5, 9, math.nan),
        ("above", 5, 1, math.nan), ("equals", "H200 SXM", "NVIDIA H200", "NVIDIA H100 PCIe"),
        ("equals", "up", "up", "NVIDIA H200"),
    ):  # fmt: skip
        assert satisfies(kind, limit, good) is True, (kind, limit)
        assert satisfies(kind, limit, bad) is False, (kind, limit)
    assert satisfies("recorded", 5, 1) is True
    assert satisfies("below", "H200 SXM", "H200 SXM") is True
    assert satisfies("above", "H200 SXM", "NVIDIA H200") is False
    for unset in ("calibrate", ""):
        with pytest.raises(Cannot):
            satisfies(unset, 5, 5)


def test_a_value_or_samples_are_a_value():
    assert samples.has_value({"value": 0}) is True
    assert samples.has_value({"samples": [1.0]}) is True
    assert samples.has_value({"value": None, "samples": []}) is False


def test_a_lower_bound_only_shows_that_a_value_is_above_a_limit():
    whole, part = point(value=7), point(value=7, bound="bf16")
    other = point(value=7, bound="fp8")
    assert samples.certain([whole, other], "below", 5) == ([whole, other], True)
    for kind, limit, kept in (
        ("above", 6, True), ("equals", 6, True), ("above", 7, False), ("below", 6, False),
        ("above", None, False), ("", None, False),
    ):  # fmt: skip
        expected = ([whole, part], True) if kept else ([whole], False)
        assert samples.certain([whole, part], kind, limit) == expected, (kind, limit)
    assert samples.certain([whole, point()], "above", 5) == ([whole], False)


def test_no_value_at_all_cannot_be_judged():
    with pytest.raises(Cannot):
        samples.certain([point(value=7, bound="bf16"), point()], "below", 5)


def test_values_are_alike_where_they_are_equal_or_no_further_apart():
    assert samples.most_alike(["a", "b", "a"], None) == 2
    assert samples.most_alike([1.0, 2.0, 3.0, 9.0], 1.0) == 3
    assert samples.most_alike([1.0, 2.0, 3.0, 9.0], 0.5) == 1


def test_a_device_is_bad_in_all_its_rounds_or_in_some():
    figures = [[1.0, 1.0], [1.0, 9.0], [9.0, 9.0]]
    assert samples.split(figures, lambda x: x > 5) == ([[1.0, 1.0]], [[1.0, 9.0]])


def test_fewer_than_four_of_a_kind_accuse_nobody():
    assert samples.lowest_of_kind([100.0] * 3, SPREAD, 1, 1) == -math.inf
    # 0.3 % of four is a deviate of 3.175: 0.92 x exp(-3.175 x 0.003)
    assert samples.lowest_of_kind([100.0] * 4, SPREAD, 1, 1) == pytest.approx(91.13, abs=0.01)


def test_the_scatter_of_64_of_a_kind_is_believed():
    def least(half: int) -> float:
        return samples.lowest_of_kind([90.0, 110.0] * half, SPREAD, 1, 1)

    assert least(31) == pytest.approx(90.84, abs=0.2)
    assert 45 < least(32) < 60


def test_only_what_is_of_one_gpu_has_a_slot():
    for per, over, slot in (
        ("node", "devices", 3), ("node", "ranks", None), ("node", "links", None),
        ("rail", "devices", None),
    ):  # fmt: skip
        assert samples.slot_of({"per": per, "over": over}, {"local_rank": 3}) == slot


def fleet(nodes: int, *rates: float) -> list[tuple[int | None, float]]:
    return [(k, rate) for _ in range(nodes) for k, rate in enumerate(rates)]


def test_a_slot_that_is_lower_on_all_of_eight_nodes_has_a_share_of_its_own():
    shares = samples.slot_shares
    assert shares(fleet(8, 100, 100, 100, 95), SPREAD, 1) == {3: 0.95}
    for like in (
        fleet(7, 100, 100, 100, 95),
        fleet(8, 100, 100, 100, 98.5),  # less than a quarter of delta
        fleet(8, 100, 100, 100, 105),  # none is lower
        fleet(8, 100),
        [*fleet(8, 100, 100, 100, 95), *[(None, 100.0)] * 8],
    ):
        assert shares(like, SPREAD, 1) == {}


def test_an_outlier_is_low_in_all_its_rounds_by_the_measure_of_their_number():
    like = fleet(8, 100.0)
    devices = [(0, [100.0]), (0, [91.3]), (0, [80.0]), (0, [91.3, 91.3]), (0, [80.0, 100.0])]
    # One round must be below 91.08; of two, both below 91.43.
    low, partly = samples.far_below(devices, like, (SPREAD, SPREAD), 1)
    assert sorted(low) == [[80.0], [91.3, 91.3]]
    assert partly == [[80.0, 100.0]]


def test_a_device_of_a_slot_that_is_lower_everywhere_is_compared_with_its_slot():
    like = fleet(8, 100, 100, 100, 95)
    devices = [(3, [90.0]), (0, [90.0])]
    assert samples.far_below(devices, like, (SPREAD, SPREAD), 1) == ([[90.0]], [])


def test_a_median_over_the_bound_by_2_percent_or_a_sample_by_20_is_a_measurement_error():
    for typical, single, expected in (
        (102, 120, False), (102.1, 100, True), (100, 120.1, True),
    ):  # fmt: skip
        assert samples.beyond([typical], [single], 100, least=False) is expected
    for typical, single, expected in ((99, 90, False), (98, 99, True), (99, 83, True)):
        assert samples.beyond([typical], [single], 100, least=True) is expected


def test_ten_samples_show_whether_a_rate_is_steady():
    def steady(slow: list[float], good: int, *, time: bool = False, **tail: object) -> bool:
        return samples.is_steady([*slow, *[10.0] * good], {**TAIL, **tail}, time)

    assert steady([1.0], 8) is True
    assert steady([1.0], 9) is False  # one is allowed to be slow, but it costs too much
    assert steady([100.0], 9, time=True) is False
    assert steady([], 10) is True
    assert steady([7.0], 9) is True
    assert steady([7.0] * 2, 18) is True
    assert steady([7.0] * 3, 17) is False
    assert steady([8.0] * 3, 17) is True
    assert steady([1.0] * 2, 18, together=0) is True


def test_a_shared_resource_is_compared_with_its_median():
    rates = [20.0] * 4 + [10.0] * 6
    assert samples.is_steady(rates, {**TAIL, "shared": True}, False) is True
    assert samples.is_steady(rates, TAIL, False) is False


def test_several_rounds_are_also_looked_at_together():
    assert samples.each_and_all([[1, 2]]) == [[1, 2]]
    assert samples.each_and_all([[1], [2]]) == [[1], [2], [1, 2]]


@pytest.mark.parametrize(
    ("per", "subject", "nodes", "found"),
    [
        ("node", "b", ("b",), [1, 3]), ("cluster", "cluster", ("a", "b"), [0, 1, 2, 3]),
        ("rail", "rail1", ("a", "b"), [2, 3]), ("rail", "rail2", ("a", "b"), []),
    ],
)  # fmt: skip
def test_a_row_has_the_ranks_of_its_node_or_of_its_rail(per, subject, nodes, found):
    ranks = [
        {"rank": k, "local_rank": local, "measurements": [
            {"metric": "rate", "at": {"bytes": size}} for size in (1, 8)
        ]}
        for k, local in ((0, 0), (1, 0), (2, 1), (3, 1))
    ]  # fmt: skip
    record = {"ranks": ranks, "of_node": {"a": [ranks[2], ranks[0]], "b": [ranks[3], ranks[1]]}}
    c = {"per": per, "metric": "rate", "at": {"bytes": 8}}
    row = SimpleNamespace(c=c, subject=subject, nodes=nodes)
    assert [rank["rank"] for rank in samples.reporters(row, record)] == found
    points = samples.points_of(row, record)
    assert [(rank["rank"], m["at"]["bytes"]) for rank, m in points] == [(k, 8) for k in found]
    assert samples.points_of(row, record, "other") == []
    assert len(samples.points_of(row, record, "rate")) == 2 * len(found)
