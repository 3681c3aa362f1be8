"""What is slow only between leaf switches: uplinks, the spine, and single paths."""

from __future__ import annotations

import pytest

from fixtures.localization import crossing
from fixtures.localization.culprits import Culprit
from fixtures.localization.measuring import Measuring
from tests.selftests.localization.scripted import FAILS, PASSES, drive, each, in_turn, measuring
from tests.tools.simulated_fabric import Fabric, in_leaves, names

pytestmark = pytest.mark.cpu

NODES = names(16)
LEAVES = in_leaves(NODES, 4)


def found_on(fabric: Fabric, leaves: dict[str, str] | None = None):
    """What the search for crossings says of a fabric, and its rounds."""
    leaves = dict(fabric.leaves) if leaves is None else leaves
    m = measuring(fabric.nodes, leaves, good=True)
    return drive(crossing.find(m, fabric.nodes, leaves), fabric.answer)


def path(a: int, b: int) -> set[frozenset[str]]:
    return {frozenset((NODES[a], NODES[b]))}


# --- find


def test_where_all_paths_pass_nothing_is_found_after_two_measurements():
    found, rounds = found_on(Fabric(NODES, leaves=LEAVES))
    assert found == []
    assert len(rounds) == 2


@pytest.mark.parametrize(("count", "size"), [(16, 4), (6, 2), (12, 4)])
def test_a_slow_uplink_is_named_by_its_leaf_with_three_leaves_and_more(count, size):
    nodes = names(count)
    leaves = in_leaves(nodes, size)
    found, _ = found_on(Fabric(nodes, leaves=leaves, uplinks={"leaf1": size // 2}))
    (culprit,) = found
    assert (culprit.kind, culprit.place) == ("uplink", "leaf1")
    assert culprit.nodes == nodes[size : 2 * size]
    assert culprit.rails == {0}


def test_of_two_leaves_nobody_can_tell_whose_uplink_it_is():
    nodes = names(32)
    fabric = Fabric(nodes, leaves=in_leaves(nodes, 16), uplinks={"leaf1": 8})
    found, rounds = found_on(fabric)
    assert [(c.kind, c.nodes) for c in found] == [("spine", ())]
    sizes = {len(m.nodes) for asked in rounds for m in asked}
    assert sizes == {32, 16}  # halved, not played by leaves


def test_a_slow_path_inside_a_leaf_is_searched_there_also_in_one_of_two_nodes():
    found, rounds = found_on(Fabric(NODES, leaves=LEAVES, bad_paths=path(5, 7)))
    assert [(c.kind, set(c.nodes)) for c in found] == [("link", {NODES[5], NODES[7]})]
    assert [m.nodes for m in rounds[4]] == [NODES[k : k + 4] for k in (0, 4, 8, 12)]
    leaves = {**in_leaves(NODES[:9], 2)}
    small = Fabric(NODES[:9], leaves=leaves, bad_paths=path(2, 3))
    found, rounds = found_on(small)
    assert [(c.kind, set(c.nodes)) for c in found] == [("link", {NODES[2], NODES[3]})]
    # The leaf of a single node has no path inside.
    assert [m.nodes for m in rounds[4]] == [NODES[k : k + 2] for k in (0, 2, 4, 6)]


def test_a_slow_path_between_leaves_is_named_where_no_leaf_is_slow():
    found, _ = found_on(Fabric(NODES, leaves=LEAVES, bad_paths=path(2, 13)))
    assert [(c.kind, set(c.nodes)) for c in found] == [("link", {NODES[2], NODES[13]})]


def test_where_most_pairs_of_leaves_fail_it_is_the_spine():
    fabric = Fabric(NODES, leaves=LEAVES)
    fabric.oversubscribe(4)
    found, rounds = found_on(fabric)
    assert found == [Culprit(kind="spine", rails=FAILS)]
    assert len(rounds) == 9  # four for all paths, two inside the leaves, three of leaves in pairs


def blamed(count: int, size: int, answer, every_path: bool = True):
    nodes = names(count)
    leaves = in_leaves(nodes, size)
    m = measuring(nodes, leaves, good=True)
    units = {leaf: tuple(n for n in nodes if leaves[n] == leaf) for leaf in leaves.values()}
    return drive(crossing.blame_leaves(m, units, every_path=every_path), answer)


def test_a_leaf_that_failed_once_is_cleared_by_others():
    """One answer may be wrong."""
    found, rounds = blamed(16, 4, in_turn(True))
    assert found == []
    assert [len(asked) for asked in rounds[:3]] == [2, 2, 2]
    assert all(x.every_path for asked in rounds for x in asked)


def test_each_leaf_is_measured_with_four_others_at_most():
    found, rounds = blamed(8, 1, in_turn())
    assert found == []
    assert [len(asked) for asked in rounds] == [4, 4, 4, 4]


@pytest.mark.parametrize(("every_path", "kind"), [(True, "uplink"), (False, "switch")])
def test_a_leaf_that_fails_with_all_others_is_the_culprit(every_path, kind):
    bad = set(NODES[4:8])
    found, rounds = blamed(16, 4, each(lambda nodes: bool(bad & set(nodes))), every_path)
    assert [(c.kind, c.place, set(c.nodes)) for c in found] == [(kind, "leaf1", bad)]
    assert {x.every_path for asked in rounds for x in asked} == {every_path}
    sizes = {len(x.nodes) for asked in rounds for x in asked}
    assert sizes == ({8, 12} if every_path else {2})  # one good node of each


def test_a_large_leaf_is_measured_with_several_small_ones():
    """A partner with fewer nodes than the uplink carries flows does not load it."""
    nodes = names(22)
    leaves = dict.fromkeys(nodes[:8], "large") | {
        n: f"small{k // 2}" for k, n in enumerate(nodes[8:])
    }
    fabric = Fabric(nodes, leaves=leaves, uplinks={"large": 4})
    units = {leaf: tuple(n for n in nodes if leaves[n] == leaf) for leaf in leaves.values()}
    m = measuring(nodes, leaves, good=True)
    found, rounds = drive(m.decide_units(units, ["large"], every_path=True), fabric.answer)
    assert found == {"large": FAILS}
    assert all(len(x.nodes) > 16 for asked in rounds for x in asked)


def test_no_pair_of_a_tournament_comes_twice():
    for count in (3, 4, 7, 8):
        turns = crossing.tournament([str(k) for k in range(count)], 4)
        games = [frozenset(game) for turn in turns for game in turn]
        assert len(games) == len(set(games))
        for turn in turns:
            players = [player for game in turn for player in game]
            assert len(players) == len(set(players)) == count - count % 2
    assert len(crossing.tournament(["a", "b", "c"], 9)) == 3


# --- narrowing down


def test_a_path_that_passes_when_it_is_measured_again_was_a_wrong_answer():
    m = measuring(NODES, good=True)
    assert drive(crossing._narrow_down(m, NODES[:2], FAILS, {}), in_turn())[0] == []


def test_of_few_nodes_a_half_of_two_is_measured_by_itself():
    fabric = Fabric(NODES[:4], bad_paths=path(0, 1))
    m = measuring(NODES[:4], good=True)
    found, _ = drive(crossing._narrow_down(m, NODES[:4], FAILS, {}), fabric.answer)
    assert [(c.kind, set(c.nodes)) for c in found] == [("link", {NODES[0], NODES[1]})]


def test_two_halves_are_narrowed_to_the_nodes_at_both_ends():
    fabric = Fabric(NODES, bad_paths=path(1, 3))
    for a, b in ((NODES[:2], NODES[2:4]), (NODES[1:2], NODES[2:4]), (NODES[:2], NODES[3:4])):
        ends, _ = drive(crossing._between(measuring(NODES), a, b), fabric.answer)
        assert set(ends) == {NODES[1], NODES[3]}
    ends, rounds = drive(crossing._between(measuring(NODES), NODES[1:2], NODES[3:4]), in_turn())
    assert (ends, rounds) == ((NODES[1], NODES[3]), [])


def test_halves_of_which_no_part_fails_are_the_ends_themselves():
    steps = crossing._between(measuring(NODES), NODES[:2], NODES[2:4])
    assert drive(steps, in_turn())[0] == NODES[:4]


def test_a_part_that_passed_by_a_wrong_answer_is_measured_again():
    fabric = Fabric(NODES, bad_paths=path(1, 14))
    wrong = iter([False, True])

    def answer(asked):  # the second quarter of the path passes once
        found = fabric.answer(asked)
        if len(asked[0].nodes) == 8 and any(found) and next(wrong, False):
            return [PASSES for _ in found]
        return found

    ends, _ = drive(crossing._between(measuring(NODES), NODES[:8], NODES[8:]), answer)
    assert set(ends) == {NODES[1], NODES[14]}


@pytest.mark.parametrize(
    ("alone", "together", "expected"),
    [(False, True, True), (False, False, False), (True, True, False), (True, False, False)],
)
def test_it_is_the_spine_if_all_fail_together_and_every_half_passes(alone, together, expected):
    nodes = NODES[:4]
    answer = each(lambda group: together if group == nodes else alone)
    found, _ = drive(crossing._fails_only_whole(measuring(NODES), nodes, {}), answer)
    assert found is expected


# --- one path of many

A, B, C = (NODES[k : k + 5] for k in (0, 5, 10))
THREE = {n: leaf for leaf, of in zip("abc", (A, B, C), strict=True) for n in of}
ENDS = A[0], B[0]


def classified(slow, leaves: dict[str, str] = THREE, m: Measuring | None = None):
    """What the path between the first nodes of two leaves is, where these pairs are slow."""
    m = m or measuring(NODES[:15], leaves, good=True)
    steps = crossing.classify(m, ENDS, FAILS, NODES[:15], leaves)
    found, rounds = drive(steps, each(lambda pair: slow(set(pair))))
    assert len(found) == 1
    return found[0], rounds


def across(pair: set[str], of_end: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return of_end[0] in pair and bool(pair & set(others))


def test_both_ends_are_measured_with_three_good_mates_of_the_other():
    culprit, rounds = classified(lambda _: False)
    assert culprit == Culprit(kind="link", nodes=ENDS, rails=FAILS)
    pairs = [m.nodes for asked in rounds for m in asked]
    expected = [(A[0], n) for n in B[1:4]] + [(n, B[0]) for n in A[1:4]]
    assert sorted(pairs) == sorted(expected)
    m = measuring(NODES[:15], THREE, good=True)
    m.partners.passes[B[1]] = 0
    m.partners.accused.add(A[2])
    _, rounds = classified(lambda _: False, m=m)
    pairs = [m.nodes for asked in rounds for m in asked]
    expected = [(A[0], n) for n in B[2:5]] + [(A[k], B[0]) for k in (1, 3, 4)]
    assert sorted(pairs) == sorted(expected)


def test_an_end_that_is_slow_with_most_others_is_the_culprit_itself():
    culprit, _ = classified(lambda pair: A[0] in pair)
    assert culprit == Culprit(kind="node", nodes=(A[0],), rails=FAILS)
    culprit, _ = classified(lambda pair: B[0] in pair)
    assert culprit == Culprit(kind="node", nodes=(B[0],), rails=FAILS)
    # With one of three, or only with the mates of the other end: it is the path.
    for slow in ({B[1]}, {B[1], B[2], B[3]}):
        slow |= {B[0]}
        culprit, _ = classified(lambda pair, slow=slow: A[0] in pair and bool(pair & slow))
        assert (culprit.kind, culprit.nodes) == ("link", ENDS)


def both_slow(pair: set[str]) -> bool:
    return across(pair, A, B) or across(pair, B, A)


def test_where_both_ends_are_slow_with_the_other_s_leaf_it_is_what_joins_them():
    culprit, rounds = classified(both_slow)
    assert culprit == Culprit(kind="spine", nodes=ENDS, rails=FAILS)
    outside = [m.nodes for asked in rounds for m in asked if set(m.nodes) & set(C)]
    assert outside  # a leaf that is slow with a third one would be that leaf
    m = measuring(NODES[:15], THREE, good=True)
    m.partners.accused.add(C[0])
    _, rounds = classified(both_slow, m=m)
    outside = [m.nodes for asked in rounds for m in asked if set(m.nodes) & set(C)]
    assert not any(C[0] in nodes for nodes in outside)


def test_an_end_that_is_slow_with_a_third_leaf_too_has_a_slow_switch():
    culprit, _ = classified(lambda pair: bool(pair & set(B)) and not pair <= set(B))
    assert culprit == Culprit(kind="switch", nodes=B, rails=FAILS, place="b")


@pytest.mark.parametrize("leaves", [{}, dict.fromkeys(NODES, "one")])
def test_without_different_leaves_two_slow_ends_are_the_spine(leaves):
    culprit, rounds = classified(lambda pair: True, leaves)
    assert culprit == Culprit(kind="spine", nodes=ENDS, rails=FAILS)
    assert sum(map(len, rounds)) == 6


def test_neighbours_come_by_their_distance():
    assert crossing.near("c", tuple("abcde")) == ["c", "b", "d", "a", "e"]
