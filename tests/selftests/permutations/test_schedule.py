"""Rounds of permutations: nobody twice, every pair of leaves, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.permutations.schedule import RESTS, WITHIN, Ports, rounds_per_cycle, schedule
from tests.tools.clos import rail_optimised

pytestmark = pytest.mark.cpu


def ports_of(sizes: list[int], rails: int) -> Ports:
    return rail_optimised([k for k, size in enumerate(sizes) for _ in range(size)], rails)


def cells(ports: Ports, rounds: list[list[int]]) -> set[tuple[int, int]]:
    """Pairs of leaves that were driven, of one rail."""
    return {
        (ports.leaf[p], ports.leaf[q])
        for targets in rounds for p, q in enumerate(targets)
        if q != RESTS and ports.leaf[p] != ports.leaf[q] and ports.rail[p] == ports.rail[q]
    }  # fmt: skip


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_a_round_is_a_permutation_between_nodes_of_ports_that_are_alive(sizes, rails, data):
    ports = ports_of(sizes, rails)
    alive = data.draw(st.sets(st.integers(0, len(ports) - 1), min_size=1))
    for targets in schedule(ports, 1, 0, 12, alive):
        used = [q for q in targets if q != RESTS]
        assert len(used) == len(set(used))
        for p, q in enumerate(targets):
            assert q == RESTS or (p in alive and q in alive and ports.node[p] != ports.node[q])


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_cycle_drives_every_pair_of_leaves_of_a_rail_both_ways(sizes, rails):
    ports = ports_of(sizes, rails)
    wanted = {(a * rails + r, b * rails + r) for a in range(len(sizes))
              for b in range(len(sizes)) for r in range(rails) if a != b}  # fmt: skip
    assert cells(ports, schedule(ports, 9, 0, rounds_per_cycle(ports))) == wanted


def test_a_leaf_sends_whole_to_one_other_leaf():
    ports = ports_of([4, 4, 4], 2)
    for targets in schedule(ports, 2, 0, 40):
        for leaf in set(ports.leaf):
            to = {ports.leaf[q] for p, q in enumerate(targets) if ports.leaf[p] == leaf and q >= 0}
            assert len(to) <= 1


def test_every_fifth_round_stays_within_the_leaves():
    ports = ports_of([4, 4, 4], 2)
    rounds = schedule(ports, 2, 0, 4 * WITHIN)
    within = [all(q == RESTS or ports.leaf[p] == ports.leaf[q] for p, q in enumerate(targets))
              for targets in rounds]  # fmt: skip
    assert within == [k % WITHIN == 0 for k in range(len(rounds))]


@pytest.mark.parametrize("sizes", [[8, 8], [8, 8, 8, 8], [5, 5]])
def test_no_two_ports_send_to_each_other_so_that_directions_can_be_told_apart(sizes):
    ports = ports_of(sizes, 2)
    for targets in schedule(ports, 4, 0, 120):
        assert not [p for p, q in enumerate(targets) if q != RESTS and targets[q] == p]


def test_two_leaves_of_a_rail_meet_the_leaves_of_other_rails_too():
    ports = ports_of([4, 4], 3)
    partners = {ports.leaf[q] for targets in schedule(ports, 2, 0, 60)
                for p, q in enumerate(targets) if ports.leaf[p] == 0 and q >= 0}  # fmt: skip
    assert partners == set(ports.leaf)


def test_the_same_seed_is_the_same_load_wherever_it_begins():
    ports = ports_of([4, 4, 3], 2)
    assert schedule(ports, 7, 5, 30) == schedule(ports, 7, 0, 35)[5:]
    assert schedule(ports, 7, 0, 30) != schedule(ports, 8, 0, 30)


def test_pairs_of_ports_are_renewed_with_each_cycle():
    ports = ports_of([8, 8, 8], 1)
    rounds = schedule(ports, 2, 0, 20 * rounds_per_cycle(ports))
    to_leaf_1 = {q for targets in rounds if (q := targets[0]) >= 0 and ports.leaf[q] == 1}
    assert len(to_leaf_1) == 8


def test_without_leaves_each_meets_all_others_of_its_rail():
    ports = rail_optimised([-1] * 7, 2)
    rounds = schedule(ports, 1, 0, rounds_per_cycle(ports))
    met = {q for targets in rounds for p, q in enumerate(targets) if p == 0}
    assert met == {p for p in range(14) if ports.rail[p] == 0 and p != 0}


def test_one_node_has_nobody_to_send_to():
    assert schedule(rail_optimised([0], 4), 1, 0, 3) == [[RESTS] * 4] * 3


@pytest.mark.parametrize("leaves", [3, 6, 9])
def test_no_three_leaves_send_in_a_ring(leaves):
    """In such a ring all of them would seem slow if one of them is."""
    ports = rail_optimised([n // 2 for n in range(2 * leaves)], 1)
    seen = set()
    for targets in schedule(ports, 3, 0, rounds_per_cycle(ports)):
        pairs = {(ports.leaf[p], ports.leaf[t]) for p, t in enumerate(targets) if t >= 0}
        to = {a: b for a, b in pairs if a != b}
        assert not any(to.get(to.get(b, -1), -1) == a for a, b in to.items())
        seen |= set(to.items())
    assert len(seen) == leaves * (leaves - 1)
