"""How small a group of like devices may be, and how little slower, to be told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.statistics.fleet_rule import FleetRule
from fixtures.verdict import fleet_groups
from fixtures.verdict.fleet_groups import Difference, differences, fleet_differences

pytestmark = pytest.mark.cpu


def rule(run_sigma: float = 0.003) -> FleetRule:
    return FleetRule(delta=0.08, device_sigma=0.003, run_sigma=run_sigma, criteria=1)


def found(values: Any, of: FleetRule | None = None) -> list[tuple[str, int, float]]:
    """Kind, nodes and difference of the groups among nodes with these medians."""
    by_node = {f"n{k:03}": [float(v)] for k, v in enumerate(values)}
    return [(d.kind, d.nodes, round(d.slower, 4)) for d in differences("c", by_node, of or rule())]


def scattered(count: int, slow: int, at: float) -> list[float]:
    """Rates of 100, and of every third node, as many as asked for, another one."""
    return [at if k % 3 == 0 and k // 3 < slow else 100.0 for k in range(count)]


def test_two_modes_are_a_quarter_of_32_nodes_and_two_percent_apart():
    assert found(scattered(32, 8, 97.9)) == [("part", 8, 0.021)]
    assert found(scattered(31, 8, 97.9)) == [], "fewer than 32 nodes"
    assert found(scattered(32, 7, 97.9)) == [], "less than a quarter"
    assert found(scattered(32, 8, 98.1)) == [], "a quarter of what is permitted is 2 %"
    assert found(scattered(32, 8, 96.1), rule(0.02)) == [], "within two deviations of noise"
    assert found(scattered(32, 8, 95.9), rule(0.02)) == [("part", 8, 0.041)]
    assert found([100.0] * 32) == []
    even = np.linspace(90, 110, 32)[np.argsort([k * 11 % 32 for k in range(32)])]
    assert found(even) == [], "of an even distribution two groups explain three quarters"
    (part,) = differences("c", {f"n{k}": [v] for k, v in enumerate(scattered(32, 8, 90))}, rule())
    assert part.where == "8 of 32 nodes, n[0,3,6,9,12,15,18,21]"


def placed(slow: int, at: float, count: int = 64) -> list[float]:
    """Rates of 100, and of some nodes from the eleventh on another one."""
    return [at if 10 <= k < 10 + slow else 100.0 for k in range(count)]


def test_a_place_is_eight_nodes_or_more_that_are_slower_than_noise_explains():
    assert found(placed(8, 97)) == [("place", 8, 0.03)]
    assert found(placed(10, 97)) == [("place", 10, 0.03)]
    assert found(placed(16, 97), rule(0.035)) == [("place", 16, 0.03)]
    assert found(placed(8, 98.1)) == []
    assert found(placed(8, 97), rule(0.05)) == []
    (place,) = differences("c", {f"n{k}": [v] for k, v in enumerate(placed(8, 97))}, rule())
    assert place.where == "8 nodes next to each other, n[10-17]"
    assert found(placed(32, 97, 256), rule(0.05)) == [("place", 32, 0.03)]
    assert found([]) == []


def test_the_edges_of_a_place_are_where_nodes_are_slow():
    medians = np.array([9.0, 1, 1, 9, 1, 1, 9, 9])
    for start, end, edges in (
        (0, 3, (1, 3)), (4, 8, (4, 6)), (5, 6, (4, 6)), (2, 3, (1, 3)), (6, 8, (7, 8)),
        (0, 1, (0, 3)),
    ):  # fmt: skip
        assert fleet_groups._edges(medians, start, end, 5.0) == edges, (start, end)
    assert fleet_groups._edges(np.array([1.0, 1, 1]), 1, 2, 5.0) == (0, 3)


def test_a_slower_slot_is_named_and_needs_all_gpus_of_a_node():
    nodes = {f"n{k}": [100.0, 95.0] for k in range(8)}
    (slot,) = differences("c", {**nodes, "n8": [95.0]}, rule())
    assert (slot.kind, slot.where, slot.nodes) == ("slot", "GPU 1 of all nodes", 9)
    assert slot.slower == pytest.approx(1 - 95 / 97.5)
    assert slot.to_json()["slower"] == 0.0256
    assert fleet_groups._by_slot({"a": [1, 2], "b": [3]}) == [(0, 1), (1, 2)]
    assert fleet_groups._by_slot({"a": [1], "b": [2]}) == fleet_groups._by_slot({}) == []


def test_only_criteria_that_compare_devices_have_groups():
    def figure(of: FleetRule | None) -> Any:
        return SimpleNamespace(rule=of, values=[100.0, 95.0])

    names = [f"n{k}" for k in range(9)]
    figures: Any = {("b", n): figure(rule()) for n in names[:8]} | {("b", "n8"): None}
    figures |= {("a", n): figure(None) for n in names} | {("a", "n0"): figure(rule())}
    expected = Difference("b", "slot", "GPU 1 of all nodes", 8, 1 - 95 / 97.5)
    assert fleet_differences(figures, ["a", "b", "absent"], names) == [expected]
