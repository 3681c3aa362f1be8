"""What a device is compared with: its like on all nodes, slot by slot where slots differ."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.statistics import fleet_slots
from fixtures.statistics.fleet_rule import FleetRule
from fixtures.statistics.fleet_slots import NO_FLEET, Like, like, slot_shares

pytestmark = pytest.mark.cpu

RULE = FleetRule(delta=0.08, device_sigma=0.018, run_sigma=0.001, criteria=1)
"""By a quarter of delta, 2 %, a slot must differ."""
RULE_OF_MEMORY = FleetRule(delta=0.02, device_sigma=0.002, run_sigma=0.0003, criteria=51)


def fleet(nodes: int, *slots: float) -> list[tuple[int | None, float]]:
    """The same figure on every node for each slot."""
    return [(slot, rate) for _ in range(nodes) for slot, rate in enumerate(slots)]


def test_a_slot_that_is_slower_on_all_nodes_is_compared_with_itself():
    values = fleet(8, 100, 100, 100, 95)
    assert slot_shares(values, RULE) == {3: pytest.approx(0.95)}
    found = like(values, RULE)
    assert found.slot_shares == ((3, pytest.approx(0.95)),)
    assert found.values == pytest.approx((100,) * 32)
    assert (found.share(3), found.share(0)) == (pytest.approx(0.95), 1.0)


def test_slots_are_compared_from_eight_nodes_and_two_slots_on():
    assert slot_shares(fleet(7, 100, 100, 100, 95), RULE) == {}
    assert slot_shares(fleet(8, 95), RULE) == {}
    assert slot_shares(fleet(12, 100, 95), RULE) == {1: pytest.approx(0.95)}
    assert slot_shares(fleet(11, 100, 95), RULE) == {}, "one in 1,024 by chance"
    lost = fleet(8, 100, 100, 100, 95)[:-1]
    assert slot_shares(lost, RULE) == {}, "one slot has seven values"
    unknown = [*fleet(8, 100, 100, 100, 95), (None, 100.0)]
    assert slot_shares(unknown, RULE) == {}
    assert like(unknown, RULE).values == tuple(value for _, value in unknown)


def test_only_a_difference_that_matters_and_is_no_chance_counts():
    assert slot_shares(fleet(8, 100, 100, 100, 98.1), RULE) == {}
    assert slot_shares(fleet(8, 100, 100, 100, 97.9), RULE) == {3: pytest.approx(0.979)}
    run = FleetRule(delta=0.08, device_sigma=0.018, run_sigma=0.001, criteria=51)
    assert slot_shares(fleet(8, 100, 100, 100, 95), run) == {}, "4^-7, 51 criteria"
    assert slot_shares(fleet(12, 100, 100, 100, 95), run) == {3: pytest.approx(0.95)}
    wide = [(slot, rate + 6 * (k % 2)) for k in range(8)
            for slot, rate in enumerate((100, 100, 100, 92))]  # fmt: skip
    assert slot_shares(wide, RULE) == {3: pytest.approx(0.9225, abs=0.001)}, "of its own node"
    assert slot_shares(fleet(8, 100, 100, 100, 105), RULE) == {}, "a faster slot accuses nobody"


def test_two_slots_of_eight_are_found_where_each_of_them_is_not_always_the_slowest():
    rng = np.random.default_rng(1)
    rates = rng.normal(100, 0.2, (8, 8))
    rates[:, [2, 5]] -= 3
    values = [pair for row in rates.tolist() for pair in enumerate(row)]
    run = FleetRule(delta=0.08, device_sigma=0.018, run_sigma=0.001, criteria=51)
    assert set(slot_shares(values, run)) == {2, 5}


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("nodes", [8, 16, 32, 128])
def test_two_kinds_of_gpus_by_chance_are_no_slot(nodes: int, share: float):
    rng = np.random.default_rng(nodes)
    for _ in range(50):
        rates = rng.normal(100, 0.05, (nodes, 8)) * (1 - 0.012 * (rng.random((nodes, 8)) < share))
        values = [pair for row in rates.tolist() for pair in enumerate(row)]
        assert slot_shares(values, RULE_OF_MEMORY) == {}


def test_a_device_without_a_fleet_has_its_whole_value():
    assert Like() == NO_FLEET
    assert NO_FLEET.share(3) == 1.0
    assert fleet_slots.robust_sigma(np.array([1.0, 2.0, 3.0, 100.0, 2.0])) == pytest.approx(1.4826)
