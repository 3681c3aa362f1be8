"""The search for culprits, on simulated fabrics: who is named, who is accused, at what cost."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.localization import group_testing, measuring
from fixtures.localization.culprits import Culprit, Finding
from fixtures.localization.measuring import Stopped
from tests.selftests.localization.scripted import drive, each
from tests.selftests.localization.scripted import measuring as measuring_of
from tests.tools.simulated_fabric import Fabric, in_leaves, names

pytestmark = pytest.mark.cpu


def node(name: str, rails: int = 1) -> Culprit:
    return Culprit(kind="node", nodes=(name,), rails=frozenset(range(rails)))


def test_what_does_not_fail_again_is_repeated_nine_times_and_accuses_nobody() -> None:
    fabric = Fabric(names(4096), rails=8)
    assert fabric.search() == Finding(reproduced=False)
    assert fabric.jobs == group_testing.REPEATS + 2  # the ring, and all paths twice
    assert group_testing.REPEATS == 9
    assert 1 - 0.7**9 > 0.95


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33, 128, 1024, 4096])
@pytest.mark.parametrize("at", [0.0, 0.37, 0.999])
def test_one_bad_node_is_named(count: int, at: float) -> None:
    fabric = Fabric(names(count), rails=2)
    culprit = fabric.nodes[int(at * count)]
    fabric.break_node(culprit)
    assert fabric.search() == Finding(culprits=(node(culprit, 2),))
    assert fabric.jobs <= 3 * math.log2(count) + 20


@pytest.mark.parametrize("count", [16, 1024, 4096])
@pytest.mark.parametrize("bad", [2, 3, 10])
def test_several_bad_nodes_take_as_many_times_the_logarithm(count: int, bad: int) -> None:
    for seed in range(5):
        fabric = Fabric(names(count), random=random.Random(seed))
        culprits = fabric.random.sample(fabric.nodes, min(bad, count // 4))
        for name in culprits:
            fabric.break_node(name)
        found = fabric.search()
        assert {c.nodes for c in found.culprits} == {(n,) for n in culprits}
        assert {c.kind for c in found.culprits} == {"node"}
        assert found.explained
        d = len(culprits)
        assert fabric.jobs <= 2 * d * math.log2(count) + 10 * d + 25
        assert fabric.rounds <= 2 * math.log2(count) + 3 * d + 20


@pytest.mark.parametrize("leaf", [None, 32])
def test_a_hundred_bad_of_a_thousand_nodes_take_25_rounds_or_10_with_the_pairs(
    leaf: int | None,
) -> None:
    for seed in range(3):
        fabric = Fabric(names(1024), random=random.Random(seed))
        leaves = in_leaves(fabric.nodes, leaf) if leaf else None
        culprits = fabric.random.sample(fabric.nodes, 100)
        for name in culprits:
            fabric.break_node(name)
        expected = {node(name) for name in culprits}
        found = fabric.search(leaves)
        assert (set(found.culprits), found.explained) == (expected, True)
        assert fabric.rounds <= 25
        fabric.rounds = 0
        found = fabric.search(leaves, measured_pairs=fabric.pairs())
        assert (set(found.culprits), found.explained) == (expected, True)
        assert fabric.rounds <= 10


def test_a_search_that_has_to_stop_returns_what_is_certain() -> None:
    fabric = Fabric(names(256))
    for name in ("n0003", "n0100", "n0200"):
        fabric.break_node(name)
    asking = group_testing.search(fabric.nodes, measured_pairs=fabric.pairs())
    groups = next(asking)
    for _ in range(5):  # until the suspects are confirmed, and the rest is measured together
        groups = asking.send([fabric.measure(g.nodes) for g in groups])
        if len(groups) == 1:
            break
    with pytest.raises(StopIteration) as end:
        asking.throw(Stopped())
    found = end.value.value
    assert not found.explained
    assert {c.nodes[0] for c in found.culprits} == {"n0003", "n0100", "n0200"}


def test_a_search_that_stops_at_once_accuses_nobody() -> None:
    asking = group_testing.search(names(64))
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.throw(Stopped())
    assert end.value.value == Finding(explained=False)


def test_one_bad_nic_is_named_with_its_rail() -> None:
    fabric = Fabric(names(1024), rails=8, bad_nics={("n0700", 5)})
    (culprit,) = fabric.search().culprits
    assert culprit == Culprit(kind="nic", nodes=("n0700",), rails=frozenset([5]))
    assert culprit.line == "n0700, rail 5"


def test_a_bad_rail_is_no_bad_node() -> None:
    fabric = Fabric(names(256), rails=8, bad_rails={3})
    (culprit,) = fabric.search().culprits
    assert (culprit.kind, culprit.rails) == ("rail", frozenset([3]))
    assert fabric.jobs <= 8 + 2 * 32 + 20


def test_a_bad_rail_hides_no_bad_node() -> None:
    fabric = Fabric(names(256), rails=8, bad_rails={3}, bad_nics={("n0099", 6)})
    assert {(c.kind, c.nodes, c.rails) for c in fabric.search().culprits} == {
        ("rail", (), frozenset([3])), ("nic", ("n0099",), frozenset([6])),
    }  # fmt: skip


def test_where_no_pair_is_fast_it_is_the_fabric() -> None:
    fabric = Fabric(names(64), rails=2, bad_rails={0, 1})
    (culprit,) = fabric.search().culprits
    assert culprit.kind == "fabric"


@pytest.mark.parametrize("count", [4, 64, 4096])
@pytest.mark.parametrize("ends", [(0.0, 0.3), (0.4, 0.6), (0.1, 0.999)])
def test_a_bad_link_names_the_path_and_neither_node(count: int, ends: tuple[float, float]) -> None:
    fabric = Fabric(names(count))
    one, two = (fabric.nodes[int(e * count)] for e in ends)
    fabric.bad_paths = {frozenset([one, two])}
    (culprit,) = fabric.search().culprits
    assert (culprit.kind, set(culprit.nodes)) == ("link", {one, two})
    assert fabric.jobs <= 6 * math.log2(count) + 25


def test_a_bad_switch_is_one_culprit_and_not_its_nodes() -> None:
    nodes = names(256)
    leaves = in_leaves(nodes, 16)
    fabric = Fabric(nodes, bad_leaves={"leaf5"}, leaves=leaves)
    (culprit,) = fabric.search(leaves).culprits
    assert culprit.kind == "switch"
    assert culprit.nodes == nodes[80:96]


def test_a_bad_switch_that_nobody_told_of_is_seen_from_its_nodes() -> None:
    nodes = names(64)
    shuffled = tuple(random.Random(3).sample(nodes, 64))
    fabric = Fabric(shuffled, bad_leaves={"leaf2"}, leaves=in_leaves(nodes, 8))
    found = fabric.search()
    assert {n for c in found.culprits for n in c.nodes} == set(nodes[16:24])
    assert {c.kind for c in found.culprits} == {"switch"}


def test_three_nodes_that_fail_with_all_but_each_other_share_a_switch() -> None:
    nodes = names(24)
    fabric = Fabric(nodes, bad_leaves={"leaf2"}, leaves=in_leaves(nodes, 3))
    (culprit,) = fabric.search().culprits
    assert (culprit.kind, set(culprit.nodes)) == ("switch", set(nodes[6:9]))


def test_two_kinds_at_once() -> None:
    nodes = names(512)
    leaves = in_leaves(nodes, 16)
    fabric = Fabric(nodes, rails=4, leaves=leaves, bad_leaves={"leaf9"},
                    bad_paths={frozenset(["n0003", "n0400"])})  # fmt: skip
    fabric.break_node("n0300")
    found = fabric.search(leaves)
    assert {(c.kind, frozenset(c.nodes)) for c in found.culprits} == {
        ("node", frozenset(["n0300"])),
        ("switch", frozenset(nodes[144:160])),
        ("link", frozenset(["n0003", "n0400"])),
    }


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_broken_is_named_and_nobody_else(data: st.DataObject) -> None:
    count = data.draw(st.integers(8, 200))
    fabric = Fabric(names(count), rails=2)
    several = st.lists(st.sampled_from(fabric.nodes), unique=True, max_size=max(1, count // 8))
    culprits = data.draw(several)
    for name in culprits:
        fabric.break_node(name)
    found = fabric.search()
    assert {n for c in found.culprits for n in c.nodes} == set(culprits)


def test_two_nodes_cannot_be_told_apart() -> None:
    fabric = Fabric(names(2))
    fabric.break_node("n0000")
    found = fabric.search()
    assert found.culprits == ()
    assert not found.explained


@pytest.mark.parametrize("count", [8, 32, 4096])
def test_the_second_pass_tells_the_two_nodes_of_a_pair_apart(count: int) -> None:
    fabric = Fabric(names(count), rails=4)
    fabric.break_node("n0005")
    assert fabric.search(measured_pairs=fabric.pairs()) == Finding(culprits=(node("n0005", 4),))
    # Four failures accuse, two passes clear; and twice what is left, which passes.
    assert fabric.jobs == measuring.ACCUSE - measuring.CLEAR + 2
    assert fabric.rounds == 6


def test_a_pair_of_two_bad_nodes_has_two_culprits() -> None:
    fabric = Fabric(names(32))
    fabric.break_node("n0004")
    fabric.break_node("n0005")
    found = fabric.search(measured_pairs=fabric.pairs())
    assert {c.nodes for c in found.culprits} == {("n0004",), ("n0005",)}


def test_a_pair_of_two_good_nodes_has_a_bad_path() -> None:
    fabric = Fabric(names(32), bad_paths={frozenset(["n0004", "n0005"])})
    (culprit,) = fabric.search(measured_pairs=fabric.pairs()).culprits
    assert culprit == Culprit(kind="link", nodes=("n0004", "n0005"), rails=frozenset([0]))


def test_what_no_pair_shows_is_found_after_the_second_pass() -> None:
    fabric = Fabric(names(64), bad_paths={frozenset(["n0004", "n0041"])})
    fabric.break_node("n0020")
    found = fabric.search(measured_pairs=fabric.pairs())
    assert {(c.kind, c.nodes) for c in found.culprits} == {
        ("node", ("n0020",)), ("link", ("n0004", "n0041")),
    }  # fmt: skip


def test_where_most_pairs_fail_the_rail_is_to_blame() -> None:
    fabric = Fabric(names(64), rails=8, bad_rails={2})
    (culprit,) = fabric.search(measured_pairs=fabric.pairs()).culprits
    assert (culprit.kind, culprit.rails) == ("rail", frozenset([2]))


def test_beside_a_bad_node_one_that_fails_every_second_time_is_found_where_it_shows() -> None:
    named, places = 0, 0
    for seed in range(16):
        fabric = Fabric(names(32), bad_at_times={"n0020": 0.5}, random=random.Random(seed))
        fabric.break_node("n0003")
        found = fabric.search()
        accused = [c.nodes for c in found.culprits if c.kind == "node"]
        assert accused in ([("n0003",)], [("n0003",), ("n0020",)])
        named += len(accused) - 1
        places += len(found.culprits) > len(accused)
    assert named >= 6  # in the other searches it passed each time
    assert places <= 1  # the path on which it failed eight times


# --- what is explained by a place

EIGHT = names(8)
TWO_LEAVES = in_leaves(EIGHT, 4)
LEAF0 = EIGHT[:4]
SPINE = Culprit(kind="spine")
SWITCH = Culprit(kind="switch", nodes=LEAF0, place="leaf0")
UPLINK = Culprit(kind="uplink", nodes=LEAF0, place="leaf0")
WITHIN, ACROSS = EIGHT[1:3], (EIGHT[1], EIGHT[5])


def searching(*confirmed: Culprit, leaves: dict[str, str]) -> group_testing._Search:
    measurer = measuring_of(EIGHT, leaves, good=True)
    return group_testing._Search(EIGHT, leaves, measurer, list(confirmed))


@pytest.mark.parametrize(
    ("culprit", "leaves", "path", "explained"),
    [
        (None, TWO_LEAVES, ACROSS, False),
        (SPINE, TWO_LEAVES, ACROSS, True),
        (SPINE, TWO_LEAVES, WITHIN, False),
        (SPINE, {}, ACROSS, True),
        (SWITCH, TWO_LEAVES, ACROSS, True),
        (SWITCH, TWO_LEAVES, WITHIN, False),
        (Culprit(kind="switch", nodes=EIGHT[4:], place="leaf2"), TWO_LEAVES, ACROSS, False),
        (UPLINK, TWO_LEAVES, ACROSS, False),
        (node(EIGHT[7]), TWO_LEAVES, ACROSS, False),
    ],
)
def test_a_slow_path_is_a_culprit_unless_the_spine_or_a_switch_explains_it(
    culprit: Culprit | None, leaves: dict[str, str], path: tuple[str, str], explained: bool
) -> None:
    """They explain what runs between leaves; where no leaves are known, the spine explains all."""
    before = [culprit] if culprit else []
    search = searching(*before, leaves=leaves)
    drive(search._blame([path]), each(lambda nodes: set(nodes) == set(path)))
    links = [] if explained else [("link", path)]
    assert [(c.kind, c.nodes) for c in search.confirmed[len(before) :]] == links


@pytest.mark.parametrize(
    ("place", "accused", "fails", "stays"),
    [
        (place, node(LEAF0[1]), fails, fails)
        for place in (UPLINK, SPINE, SWITCH, Culprit(kind="spine", nodes=ACROSS))
        for fails in (False, True)
    ]
    + [
        (UPLINK, Culprit(kind="nic", nodes=(LEAF0[1],), rails=frozenset({0})), False, False),
        (UPLINK, Culprit(kind="node", nodes=(LEAF0[1],), share=0.5), False, True),
        (UPLINK, node(EIGHT[5]), False, True),
        (Culprit(kind="link", nodes=WITHIN), node(LEAF0[1]), False, True),
    ],
)
def test_a_node_that_was_accused_beside_a_bad_place_has_to_fail_without_it(
    place: Culprit, accused: Culprit, fails: bool, stays: bool
) -> None:
    search = searching(place, accused, leaves=TWO_LEAVES)
    answer = each(lambda nodes: fails and accused.nodes[0] in nodes)
    drive(search._confirm_beside_places(), answer)
    assert search.confirmed == [place] + [accused] * stays
