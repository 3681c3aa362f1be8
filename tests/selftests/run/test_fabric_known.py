"""Nothing found is a pass only of what was measured well enough: of each port, leaf and pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.permutations.evidence import gather
from fixtures.permutations.observations import Observations
from fixtures.permutations.schedule import Ports, schedule
from fixtures.run.fabric_known import Known
from tests.selftests.loaded_fabrics import LoadedFabric, in_leaves, value

pytestmark = pytest.mark.cpu

LEAVES = in_leaves(5, 4)


def test_a_port_without_rates_is_no_pass_of_its_node_and_others_are_judged():
    fabric = LoadedFabric(LEAVES, down=frozenset({("n11", 1)}))
    newest = fabric.decided(fabric.record())
    assert "of gpu1 no flow within its leaf" in value(newest, "n11", "ports")
    assert value(newest, "n11", "flaps") == "0 rounds of gpu1, of at least 30"
    assert (value(newest, "n12", "ports"), value(newest, "n12", "flaps")) == (0, 0)
    assert (value(newest, "n12", "uplinks"), value(newest, "n12", "pairs")) == (0, 0)


def test_a_node_that_came_late_is_judged_by_its_own_rounds():
    """Of 1 slice of 30 rounds there is less to say than of 5."""
    fabric = LoadedFabric(LEAVES, rounds=30, noise=0.03)
    slices = [fabric.record(k, without=["n11"]) for k in range(1, 5)]
    newest = fabric.decided(*slices, fabric.record(5))
    assert value(newest, "n12", "ports") == 0
    assert "would be found with 95 %" in value(newest, "n11", "ports")


def test_a_node_that_is_alone_on_its_leaf_has_no_rounds_within_it():
    fabric = LoadedFabric({**LEAVES, "alone": "leaf9"})
    newest = fabric.decided(fabric.record())
    assert "no flow within its leaf" in value(newest, "alone", "ports")
    assert value(newest, "n12", "ports") == 0


def uplinks_at_half(rates, targets, nodes):
    """Leaf 1 carries half of what the others do."""
    for row, targets_of_round in enumerate(targets):
        for k, to in enumerate(targets_of_round):
            if to >= 0 and (nodes[k][1] == "1") != (nodes[to][1] == "1"):
                rates[row, k] *= 0.5


def test_a_leaf_that_lacks_many_of_its_nodes_is_no_pass():
    """It sends three quarters of the flows of others: it may carry a quarter less than they do."""
    fabric = LoadedFabric(LEAVES, slow=uplinks_at_half)
    whole = fabric.decided(fabric.record())
    assert value(whole, "n00", "uplinks") == 1
    slow = fabric.decided(fabric.record(without=["n11"]))
    assert value(slow, "n00", "uplinks") == 1
    healthy = LoadedFabric(LEAVES)
    unknown = healthy.decided(healthy.record(without=["n11"]))
    assert value(unknown, "n00", "uplinks") == "no slice has n11"
    healthy = LoadedFabric(LEAVES, stated="order")
    without = healthy.decided(healthy.record(without=["n11"]))
    assert "leaf leaf1 sends 75 % of the flows" in value(without, "n00", "uplinks")
    assert value(without, "n00", "pairs") != 0


def test_a_leaf_that_lacks_one_node_of_many_is_judged_by_what_it_can_show():
    leaves = in_leaves(5, 16)
    whole, without = LoadedFabric(leaves), LoadedFabric({n: x for n, x in leaves.items()
                                                         if n != "n11"})  # fmt: skip
    stated = {}
    for name, fabric in (("whole", whole), ("without", without)):
        load = fabric.load()
        newest = fabric.decided(fabric.record(), load=load)
        assert (value(newest, "n00", "uplinks"), value(newest, "n00", "pairs")) == (0, 0)
        stated[name] = (load.summary() or {})["smallest"]["uplinks"]
    # One of 16 is 6.25 %: of a loss of the leaf as much does not show.
    assert stated["without"] == pytest.approx(100 - 93.75 * (1 - stated["whole"] / 100), abs=0.5)
    slow = LoadedFabric(without.leaf_of, slow=uplinks_at_half)
    assert value(slow.decided(slow.record()), "n00", "uplinks") == 1


def test_a_pair_of_leaves_that_no_round_had_is_no_pass():
    fabric = LoadedFabric(in_leaves(9, 4), rounds=8)
    load = replace(fabric.load())
    newest = fabric.decided(*(fabric.record(k) for k in (1,)), load=load)
    summary = load.summary()
    assert summary is not None
    assert 0 < summary["covered"] < summary["cells"]
    assert value(newest, "n00", "pairs") != 0
    assert "rounds were too few" in value(newest, "n00", "coverage")
    all_of_it = fabric.decided(*(fabric.record(k) for k in range(1, 5)))
    assert value(all_of_it, "n00", "coverage") == 100


@pytest.mark.parametrize("leaves", [2, 3, 5])
def test_of_two_leaves_a_pair_is_known_by_its_rate_of_more_by_what_it_is_compared_with(leaves):
    of_port = [k for k in range(leaves) for _ in range(4)]
    ports = Ports(tuple(range(len(of_port))), (0,) * len(of_port), tuple(of_port))
    target = np.array(schedule(ports, 7, 0, 40))
    start = np.arange(40) * 5.0
    one = gather(Observations(ports, target, np.full(target.shape, 40.0), start, start + 5, 40.0))
    pairs = [(a, b) for a in range(leaves) for b in range(leaves) if a != b]
    assert Known([one]).not_compared(pairs) == []
    of_pair = (one.source == 0) & (one.to == 1)
    alone = replace(one, mean=np.where(of_pair, np.nan, one.mean))
    assert Known([alone]).not_compared(pairs) == ([(0, 1)] if leaves > 2 else [])
    assert Known([alone, one]).not_compared(pairs) == []
    without = replace(one, level=np.where(of_pair, np.nan, one.level))
    assert Known([without]).not_compared(pairs) == ([(0, 1)] if leaves == 2 else [])
