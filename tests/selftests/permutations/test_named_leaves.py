"""Ports by the names of their leaves."""

from __future__ import annotations

import pytest

from fixtures.permutations.named_leaves import leaf_names, ports_of
from fixtures.permutations.schedule import UNKNOWN

pytestmark = pytest.mark.cpu

NODES = ["b0", "b0", "a0", "a0"]
RAILS = [0, 1, 0, 1]
LEAVES = {"b0": "west", "a0": "east"}


def test_a_leaf_is_that_of_its_node_or_of_its_rail_too():
    ports = ports_of(NODES, RAILS, LEAVES, by_rail=False)
    assert (ports.node, ports.rail, ports.leaf) == ((0, 0, 1, 1), (0, 1, 0, 1), (1, 1, 0, 0))
    assert leaf_names(NODES, RAILS, LEAVES, by_rail=False) == ["east", "west"]
    ports = ports_of(NODES, RAILS, LEAVES, by_rail=True)
    assert ports.leaf == (2, 3, 0, 1)
    assert leaf_names(NODES, RAILS, LEAVES, by_rail=True) == [
        "east rail0", "east rail1", "west rail0", "west rail1",
    ]  # fmt: skip


def test_unless_each_node_has_one_no_leaf_is_known():
    ports = ports_of(NODES, RAILS, {"b0": "west"}, by_rail=False)
    assert set(ports.leaf) == {UNKNOWN}
    assert leaf_names(NODES, RAILS, {"b0": "west"}, by_rail=False) == []
