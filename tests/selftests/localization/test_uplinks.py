"""Which groups of a round would load one another's uplinks."""

from __future__ import annotations

import pytest

from fixtures.localization.partners import Partners
from fixtures.localization.uplinks import Beside, Load, carries, crossing_flows, uncrowded
from tests.tools.simulated_fabric import in_leaves, names

pytestmark = pytest.mark.cpu

NODES = names(32)
KNOWN = Partners(NODES, in_leaves(NODES, 8))
UNKNOWN = Partners(NODES, {})


def pair(a: int, b: int) -> tuple[str, str]:
    return NODES[a], NODES[b]


def admitted(load: Load, *groups: tuple[str, ...]) -> list[bool]:
    return [load.admits(group) for group in groups]


def test_a_ring_leaves_a_leaf_with_as_many_flows_as_its_neighbours_are_elsewhere():
    assert crossing_flows(KNOWN, NODES[:8], every_path=False) == {}
    assert crossing_flows(KNOWN, NODES[6:10], every_path=False) == {"leaf0": 1, "leaf1": 1}
    alternating = (NODES[0], NODES[8], NODES[1], NODES[9])
    assert crossing_flows(KNOWN, alternating, every_path=False) == {"leaf0": 2, "leaf1": 2}
    assert crossing_flows(KNOWN, NODES[:8], every_path=True) == {}
    assert crossing_flows(KNOWN, NODES[:10], every_path=True) == {"leaf0": 8, "leaf1": 2}


def test_half_of_a_leaf_may_send_to_others_and_one_node_always():
    assert carries(KNOWN, "leaf0") == 4
    assert carries(Partners(NODES, in_leaves(NODES, 1)), "leaf0") == 1
    across = [pair(k, k + 8) for k in range(6)]
    assert admitted(Load(KNOWN, Beside.UNCROWDED), *across) == [True] * 4 + [False] * 2
    inside = [pair(k, k + 1) for k in range(0, 8, 2)]
    assert admitted(Load(KNOWN, Beside.UNCROWDED), *across[:4], *inside) == [True] * 8
    # A group that loads more by itself is measured without others of its leaves.
    everyone = NODES[:16]
    assert admitted(Load(KNOWN, Beside.UNCROWDED, every_path=True), everyone) == [True]
    assert admitted(Load(KNOWN, Beside.ANY), *across) == [True] * 6


def test_without_leaves_groups_share_no_gap_between_neighbours():
    load = Load(UNKNOWN, Beside.UNCROWDED)
    asked = (pair(0, 1), pair(2, 5), pair(3, 4), pair(5, 9), pair(9, 31))
    assert admitted(load, *asked) == [True, True, False, True, True]
    # Any two that send on all paths may hold halves of one leaf.
    load = Load(UNKNOWN, Beside.UNCROWDED, every_path=True)
    assert admitted(load, NODES[:4], NODES[28:]) == [True, False]


def test_alone_is_alone_on_its_leaves_or_far_from_others():
    load = Load(KNOWN, Beside.ALONE)
    assert admitted(load, pair(0, 9), pair(1, 2), pair(10, 24), pair(16, 25)) == [
        True, False, False, True,
    ]  # fmt: skip
    load = Load(UNKNOWN, Beside.ALONE)
    assert admitted(load, pair(0, 1), pair(9, 10), pair(20, 31)) == [True, False, True]


@pytest.mark.parametrize("partners", [KNOWN, UNKNOWN], ids=["leaves known", "unknown"])
def test_those_rings_are_crowded_that_load_a_place_together(partners: Partners):
    alone, inside = pair(0, 9), pair(24, 25)
    crowd = [pair(k, k + 8) for k in range(16, 22)]
    assert uncrowded(partners, [alone, inside]) == {alone, inside}
    found = uncrowded(partners, [*crowd, pair(0, 1)])
    assert found == {pair(0, 1)}
