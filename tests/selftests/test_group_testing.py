"""The search for culprits, on simulated fabrics: who is named, who is accused, at what cost."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.localization import group_testing
from fixtures.localization.culprits import Culprit, Finding, Group, Rails

pytestmark = pytest.mark.cpu


@dataclass
class Fabric:
    """Nodes with rails behind leaf switches; counts what is measured on it."""

    nodes: Group
    rails: int = 1
    bad_nics: set[tuple[str, int]] = field(default_factory=set)
    bad_links: set[frozenset[str]] = field(default_factory=set)
    bad_rails: set[int] = field(default_factory=set)
    bad_leaves: set[str] = field(default_factory=set)
    leaves: Mapping[str, str] = field(default_factory=dict)
    noise: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(7))
    jobs: int = 0
    rounds: int = 0

    def break_node(self, node: str) -> None:
        self.bad_nics |= {(node, r) for r in range(self.rails)}

    def measure(self, group: Group) -> Rails:
        assert len(group) == len(set(group)) > 1, group
        members = set(group)
        bad = {r for n, r in self.bad_nics if n in members} | self.bad_rails
        if any(link <= members for link in self.bad_links):
            bad |= set(range(self.rails))
        behind = {self.leaves[n] for n in group} if self.leaves else set()
        if len(behind) > 1 and behind & self.bad_leaves:
            bad |= set(range(self.rails))
        return frozenset(r for r in range(self.rails) if (r in bad) != self._slip())

    def _slip(self) -> bool:
        return self.random.random() < self.noise

    def search(
        self,
        leaves: Mapping[str, str] | None = None,
        measured_pairs: Mapping[Group, bool] | None = None,
    ) -> Finding:
        asking = group_testing.search(
            self.nodes, rails=self.rails, leaves=leaves, measured_pairs=measured_pairs
        )
        answer: list[Rails] | None = None
        while True:
            try:
                groups = next(asking) if answer is None else asking.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            assert groups
            taken = [n for g in groups for n in g]
            assert len(taken) == len(set(taken)), "jobs of one round share a node"
            self.rounds += 1
            self.jobs += len(groups)
            answer = [self.measure(g) for g in groups]


def names(count: int) -> Group:
    return tuple(f"n{k:04}" for k in range(count))


def in_leaves(nodes: Sequence[str], size: int) -> dict[str, str]:
    return {n: f"leaf{k // size}" for k, n in enumerate(nodes)}


def node(name: str, rails: int = 1) -> Culprit:
    return Culprit(kind="node", nodes=(name,), rails=frozenset(range(rails)))


def test_a_healthy_fabric_takes_two_jobs_and_accuses_nobody() -> None:
    fabric = Fabric(names(4096), rails=8)
    assert fabric.search() == Finding(reproduced=False)
    assert fabric.jobs == 2


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33, 128, 1024, 4096])
@pytest.mark.parametrize("at", [0.0, 0.37, 0.999])
def test_one_bad_node_is_named(count: int, at: float) -> None:
    fabric = Fabric(names(count), rails=2)
    culprit = fabric.nodes[int(at * count)]
    fabric.break_node(culprit)
    assert fabric.search() == Finding(culprits=(node(culprit, 2),))
    assert fabric.jobs <= 2 * math.log2(count) + 20


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
        assert fabric.jobs <= 2 * d * math.log2(count) + 4 * d + 20
        assert fabric.rounds <= 2 * math.log2(count) + 3 * d + 20


@pytest.mark.parametrize("leaf", [None, 32])
def test_a_hundred_bad_of_a_thousand_nodes_take_25_rounds_or_8_with_the_pairs(
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
        found = fabric.search(leaves, measured_pairs=pairs_of(fabric))
        assert (set(found.culprits), found.explained) == (expected, True)
        assert fabric.rounds <= 8


def test_a_search_that_has_to_stop_returns_what_is_certain() -> None:
    fabric = Fabric(names(256))
    for name in ("n0003", "n0100", "n0200"):
        fabric.break_node(name)
    asking = group_testing.search(fabric.nodes, measured_pairs=pairs_of(fabric))
    groups = next(asking)
    for _ in range(5):  # until the suspects are confirmed, and the rest is measured together
        groups = asking.send([fabric.measure(g) for g in groups])
        if len(groups) == 1:
            break
    with pytest.raises(StopIteration) as end:
        asking.throw(group_testing.Stopped())
    found = end.value.value
    assert not found.explained
    assert {c.nodes[0] for c in found.culprits} == {"n0003", "n0100", "n0200"}


def test_a_search_that_stops_at_once_accuses_nobody() -> None:
    asking = group_testing.search(names(64))
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.throw(group_testing.Stopped())
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
    assert fabric.jobs < 20


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
    fabric.bad_links = {frozenset([one, two])}
    (culprit,) = fabric.search().culprits
    assert (culprit.kind, set(culprit.nodes)) == ("link", {one, two})
    assert fabric.jobs <= 4 * math.log2(count) + 25


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


def test_two_kinds_at_once() -> None:
    nodes = names(512)
    leaves = in_leaves(nodes, 16)
    fabric = Fabric(nodes, rails=4, leaves=leaves, bad_leaves={"leaf9"},
                    bad_links={frozenset(["n0003", "n0400"])})  # fmt: skip
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


def test_noise_accuses_nobody_and_hides_few() -> None:
    """One measurement in a hundred is wrong, either way."""
    missed = accused = 0
    for seed in range(200):
        fabric = Fabric(names(256), noise=0.01, random=random.Random(seed))
        culprits = set(fabric.random.sample(fabric.nodes, 2))
        for name in culprits:
            fabric.break_node(name)
        named = {n for c in fabric.search().culprits for n in c.nodes}
        missed += len(culprits - named)
        accused += len(named - culprits)
    assert accused <= 4  # of 200 x 254 innocent nodes
    assert missed <= 12  # of 400


def test_two_nodes_cannot_be_told_apart() -> None:
    fabric = Fabric(names(2))
    fabric.break_node("n0000")
    found = fabric.search()
    assert found.culprits == ()
    assert not found.explained


def pairs_of(fabric: Fabric) -> dict[Group, bool]:
    """The first pass: neighbours as disjoint pairs."""
    pairs = zip(fabric.nodes[::2], fabric.nodes[1::2], strict=True)
    return {pair: not fabric.measure(pair) for pair in pairs}


@pytest.mark.parametrize("count", [8, 32, 4096])
def test_the_second_pass_tells_the_two_nodes_of_a_pair_apart(count: int) -> None:
    fabric = Fabric(names(count), rails=4)
    fabric.break_node("n0005")
    assert fabric.search(measured_pairs=pairs_of(fabric)) == Finding(culprits=(node("n0005", 4),))
    # And twice what is left, which passes.
    assert fabric.jobs == 2 * group_testing.PARTNERS_PER_SUSPECT + 2


def test_a_pair_of_two_bad_nodes_has_two_culprits() -> None:
    fabric = Fabric(names(32))
    fabric.break_node("n0004")
    fabric.break_node("n0005")
    found = fabric.search(measured_pairs=pairs_of(fabric))
    assert {c.nodes for c in found.culprits} == {("n0004",), ("n0005",)}


def test_a_pair_of_two_good_nodes_has_a_bad_path() -> None:
    fabric = Fabric(names(32), bad_links={frozenset(["n0004", "n0005"])})
    (culprit,) = fabric.search(measured_pairs=pairs_of(fabric)).culprits
    assert culprit == Culprit(kind="link", nodes=("n0004", "n0005"), rails=frozenset([0]))


def test_what_no_pair_shows_is_found_after_the_second_pass() -> None:
    fabric = Fabric(names(64), bad_links={frozenset(["n0004", "n0041"])})
    fabric.break_node("n0020")
    found = fabric.search(measured_pairs=pairs_of(fabric))
    assert {(c.kind, c.nodes) for c in found.culprits} == {
        ("node", ("n0020",)), ("link", ("n0004", "n0041")),
    }  # fmt: skip


def test_where_most_pairs_fail_the_rail_is_to_blame() -> None:
    fabric = Fabric(names(64), rails=8, bad_rails={2})
    (culprit,) = fabric.search(measured_pairs=pairs_of(fabric)).culprits
    assert (culprit.kind, culprit.rails) == ("rail", frozenset([2]))
