"""How small a group of like devices may be, and how little slower, to be told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.statistics.fleet_rule import FleetRule
from fixtures.verdict import fleet_groups
from fixtures.verdict.fleet_groups import Difference, Fleet, fleet_differences, modes, two_modes

pytestmark = pytest.mark.cpu


def rule(run_sigma: float = 0.003) -> FleetRule:
    return FleetRule(delta=0.08, device_sigma=0.003, run_sigma=run_sigma, criteria=1)


def found(values: Any, of: FleetRule | None = None) -> list[tuple[str, int, float]]:
    """Kind, nodes and difference of the groups among nodes with these medians."""
    by_node = {f"n{k:03}": [float(v)] for k, v in enumerate(values)}
    fleet = Fleet("c", by_node, of or rule(), gpus=False)
    return [(d.kind, d.nodes, round(d.slower, 4)) for d in fleet.differences()]


def scattered(count: int, slow: int, at: float) -> list[float]:
    """Rates of 100, and of every third node, as many as asked for, another one."""
    return [at if k % 3 == 0 and k // 3 < slow else 100.0 for k in range(count)]


def where(values: Any) -> str:
    by_node = {f"n{k:03}": [float(v)] for k, v in enumerate(values)}
    (found,) = Fleet("c", by_node, rule(), gpus=False).differences()
    return found.where


def test_two_modes_are_a_quarter_of_twelve_nodes_and_two_percent_apart():
    assert found(scattered(32, 8, 97.9)) == [("part", 8, 0.021)]
    assert found(scattered(12, 3, 97.9)) == [("part", 3, 0.021)]
    assert found(scattered(11, 3, 97.9)) == [], "fewer than 12 nodes"
    assert found(scattered(32, 7, 97.9)) == [], "less than a quarter"
    assert found(scattered(32, 8, 98.1)) == [], "a quarter of what is permitted is 2 %"
    assert found(scattered(32, 8, 96.1), rule(0.01)) == [], "within four deviations"
    assert found(scattered(32, 8, 95.7), rule(0.01)) == [("part", 8, 0.043)]
    assert found([100.0] * 32) == []
    even = np.linspace(90, 110, 32)[np.argsort([k * 11 % 32 for k in range(32)])]
    assert found(even) == [], "of an even distribution two groups explain three quarters"
    assert where(scattered(32, 8, 90)) == "8 of 32 nodes, n[000,003,006,009,012,015,018,021]"


def test_single_values_far_off_do_not_hide_two_modes():
    values = np.array(scattered(32, 12, 97.0))
    values[[1, 2]] = 50.0, 130.0
    slow = modes(values, 0.003, 0.02)
    assert slow is not None
    assert np.flatnonzero(slow).tolist() == [0, 1, *range(3, 36, 3)][: slow.sum()]


def test_few_values_must_be_further_from_one_wide_distribution():
    assert two_modes(16) == pytest.approx(0.924, abs=0.002)
    assert two_modes(32) == pytest.approx(0.881, abs=0.002)
    assert two_modes(64) == two_modes(4096) == 0.85
    rng = np.random.default_rng(1)
    wide = sum(modes(rng.uniform(90, 110, 16), 0.001, 0.01) is not None for _ in range(2000))
    assert wide <= 13, "mean 6"


def placed(slow: int, at: float, count: int = 64) -> list[float]:
    """Rates of 100, and of some nodes from the eleventh on another one."""
    return [at if 10 <= k < 10 + slow else 100.0 for k in range(count)]


def test_a_place_is_neighbours_that_are_slower_than_noise_explains():
    assert found(placed(3, 97)) == [("place", 3, 0.03)]
    assert found(placed(2, 97)) == []
    assert found(placed(10, 97)) == [("place", 10, 0.03)]
    assert found(placed(16, 97), rule(0.035)) == [("place", 16, 0.03)]
    assert found(placed(8, 98.1)) == []
    assert found(placed(8, 97), rule(0.05)) == []
    assert where(placed(8, 97)) == "8 nodes next to each other, n[010-017]"
    assert found(placed(32, 97, 256), rule(0.05)) == [("place", 32, 0.03)]
    assert found(placed(8, 97, 16)) == [("place", 6, 0.03)], "of 16 nodes the last six"
    assert found([]) == []


def test_two_places_are_two_sentences_with_their_own_difference():
    rates = placed(8, 96)
    rates[40:50] = [95.0] * 10
    assert found(rates) == [("place", 8, 0.04), ("place", 10, 0.05)]


def test_a_deviation_that_is_estimated_needs_more_of_them():
    known = fleet_groups.beyond(1e-7)
    assert known == pytest.approx(5.2, abs=0.01)
    assert fleet_groups.beyond(1e-7, 64) > fleet_groups.beyond(1e-7, 1000) > known
    values = np.array([0.0, 1, -1, 1, -1, 1, -1, 100])
    assert fleet_groups._deviation(values) == pytest.approx(1.8, abs=0.01)


def test_a_slower_slot_is_named_and_needs_all_gpus_of_a_node():
    nodes = {f"n{k}": [100.0, 95.0] for k in range(12)}
    (slot,) = Fleet("c", {**nodes, "x": [95.0]}, rule(), gpus=True).differences()
    assert (slot.kind, slot.where, slot.nodes) == ("slot", "GPU 1 of all nodes", 13)
    assert slot.slower == pytest.approx(0.05)
    assert slot.to_json()["slower"] == 0.05
    assert list(Fleet("c", nodes, rule(), gpus=False).differences()) == [], "no slots"


def test_only_criteria_that_compare_devices_have_groups():
    def figure(of: FleetRule | None) -> Any:
        return SimpleNamespace(rule=of, values=[100.0, 95.0])

    gpu: Any = SimpleNamespace(
        span=SimpleNamespace(of_one_node=True), kind=SimpleNamespace(over_ranks=False, of="GPU")
    )
    names = [f"n{k}" for k in range(13)]
    figures: Any = {("b", n): figure(rule()) for n in names[:12]} | {("b", "n12"): None}
    figures |= {("a", n): figure(None) for n in names} | {("a", "n0"): figure(rule())}
    expected = Difference("b", "slot", "GPU 1 of all nodes", 12, 1 - 95 / 100)
    criteria = dict.fromkeys(("a", "b", "absent"), gpu)
    assert fleet_differences(figures, criteria, names) == [expected]
