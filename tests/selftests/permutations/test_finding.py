"""What is found, where, and that nobody else is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fixtures.permutations.estimates import LEAST_SPREAD, LeafLosses
from fixtures.permutations.evidence import gather
from fixtures.permutations.finding import Defect, find, find_in, leaf_walls
from fixtures.permutations.observations import Observations
from fixtures.permutations.schedule import RESTS, schedule
from tests.selftests.permutations import fabrics
from tests.selftests.permutations.fabrics import RISK
from tests.tools.clos import Defects, rail_optimised

pytestmark = pytest.mark.cpu


def found(defects: Defects, count: int = 1, **more: int) -> list[Defect]:
    return find_in(fabrics.evidence(defects, count, **more), RISK)


def test_nobody_healthy_is_accused():
    assert [found(Defects(), 2, seed=seed) for seed in range(4)] == [[]] * 4


@pytest.mark.parametrize(("way", "direction"), [(0, "out"), (1, "in"), (2, "both")])
def test_a_slow_port_is_found_with_its_direction(way, direction):
    (one,) = found(Defects(port=[(way, 9, 0.93, 0, 1e9)]))
    assert (one.kind, one.node, one.rail, one.leaf) == ("slow port", 4, 1, None)
    assert one.direction == direction
    assert one.loss == pytest.approx(0.07, abs=0.015)
    assert one.line.startswith("node 4, rail 1: ")


def test_a_port_that_is_slow_for_a_time_is_found_with_its_minutes():
    (one,) = found(Defects(port=[(2, 9, 0.9, 700, 1300)]), 3)
    assert (one.kind, one.node, one.rail) == ("slow for a time", 4, 1)
    assert one.began_s == pytest.approx(700, abs=180)
    assert one.ended_s == pytest.approx(1300, abs=180)


def test_a_port_that_was_slow_all_along_is_not_slow_for_a_time():
    assert [d.kind for d in found(Defects(port=[(2, 9, 0.9, 0, 1e9)]), 3)] == ["slow port"]


def test_a_leaf_that_lost_capacity_names_no_node():
    (one,) = found(Defects(leaf={3: 0.95}))
    assert (one.kind, one.leaf, one.other_leaf) == ("lost uplink capacity", 3, None)
    assert (one.node, one.rail, one.direction) == (None, None, "both")


def test_the_loss_of_a_leaf_does_not_raise_its_own_wall():
    leaves = LEAST_SPREAD + 1
    healthy = np.tile(np.linspace(-0.004, 0.004, leaves), (3, 1))
    losses = LeafLosses(
        loss=healthy, information=np.full((3, leaves), 1e8), without_worst=healthy,
        pair=np.empty((0, 2), dtype=int), pair_loss=np.empty(0), pair_information=np.empty(0),
        measured=np.empty(0),
    )  # fmt: skip
    slow = healthy.copy()
    slow[:, 5] = 0.03
    walls, before = (
        leaf_walls(dataclasses.replace(losses, loss=slow), RISK),
        leaf_walls(losses, RISK),
    )
    assert walls[:, 5] == pytest.approx(before[:, 5])
    assert (before[:, 5] > 0.015).all(), "leaves that differ by so much are not accused"
    assert (walls[:, 6] > before[:, 6]).all()


def test_a_dead_uplink_is_found_at_its_leaf():
    assert {d.leaf for d in found(Defects(uplink={(6, 2): 0.0}))} == {6}


def test_a_slow_pair_of_leaves_is_neither_of_them():
    (one,) = found(Defects(pair={(1, 5): 0.7}), 2)
    assert (one.kind, one.leaf, one.other_leaf) == ("slow pair of leaves", 1, 5)


def test_a_flapping_port_is_named_once():
    (one,) = found(Defects(flapping=[9]), 4)
    assert (one.kind, one.node, one.rail) == ("flapping port", 4, 1)


def test_a_slow_port_and_a_lost_uplink_are_two_findings():
    names = {(d.node, d.leaf) for d in found(Defects(port=[(2, 9, 0.8, 0, 1e9)], leaf={1: 0.95}))}
    assert names == {(4, None), (None, 1)}


def test_a_node_all_of_whose_rails_are_slow_is_named_as_a_node():
    shape = dataclasses.replace(fabrics.SMALL, rails=4, nodes=16)
    slow = [(2, 4 * 3 + rail, 0.9, 0.0, 1e9) for rail in range(4)]
    (one,) = find_in(fabrics.evidence(Defects(port=slow), 1, shape), RISK)
    assert (one.kind, one.node, one.rail) == ("slow node", 3, None)


def test_a_leaf_that_is_slow_within_itself_is_named_as_a_leaf():
    slow = [(2, port, 0.9, 0.0, 1e9) for port, leaf in enumerate(fabrics.SMALL.ports.leaf)
            if leaf == 2]  # fmt: skip
    kinds = {(d.kind, d.leaf) for d in found(Defects(port=slow))}
    assert ("slow leaf", 2) in kinds
    assert {leaf for _, leaf in kinds} == {2}


def test_a_node_that_dies_and_a_rail_that_is_down_accuse_nobody():
    assert found(Defects(dead_nodes={3: 320.0}), 2) == []
    down = frozenset(range(1, 64, 2))
    assert found(Defects(absent=down), 2) == []


def two_leaves(crossing: float, expected: float) -> Observations:
    ports = rail_optimised([0, 0, 1, 1], 1)
    target = np.array(schedule(ports, 1, 0, 200))
    leaf = np.array(ports.leaf)
    crosses = leaf[np.where(target == RESTS, 0, target)] != leaf
    rates = np.where(crosses, crossing, 10.0) * np.exp(
        np.random.default_rng(1).normal(0, 0.05, target.shape)
    )
    return Observations(ports, target, rates, np.arange(200.0) * 2, np.full(200, 2.0), expected)


def test_of_two_leaves_the_pair_is_slow_to_what_is_expected():
    (one,) = find(two_leaves(5.0, 10.0), RISK)
    assert (one.kind, one.leaf, one.other_leaf, one.direction) == (
        "slow pair of leaves", 0, 1, "both",
    )  # fmt: skip
    assert one.loss == pytest.approx(0.5, abs=0.05)
    assert find(two_leaves(5.0, 5.0), RISK) == []  # as the fabric was ordered


def test_without_leaves_ports_are_found_all_the_same():
    ports = rail_optimised([-1] * 16, 2)
    target = np.array(schedule(ports, 1, 0, 200))
    rates = 10 * np.exp(np.random.default_rng(1).normal(0, 0.01, target.shape))
    rates[:, 5] *= 0.9
    obs = Observations(ports, target, rates, np.arange(200.0) * 2, np.full(200, 2.0), 10.0)
    (one,) = find(obs, RISK)
    assert (one.node, one.rail, one.direction) == (2, 1, "out")


def test_nothing_was_measured_nothing_is_found():
    assert find_in([], RISK) == []
    (obs,) = fabrics.slices()
    blind = dataclasses.replace(obs, rates=np.full_like(obs.rates, np.nan))
    assert find_in([gather(blind)], RISK) == []
