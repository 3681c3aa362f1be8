"""The search on a fabric that fails where flows run: a small twin of bench_search."""

from __future__ import annotations

import random

import pytest

from fixtures.localization.measuring import Measurement
from tests.tools import bench_search
from tests.tools.bench_search import Case, Result, every_case, pairwise_cases, simulate
from tests.tools.simulated_fabric import Fabric, in_leaves, names

pytestmark = pytest.mark.cpu
SEEDS = 10
NODES = names(64)
LEAVES = in_leaves(NODES, 16)


# --- the fabric


def ring(*numbers: int) -> Measurement:
    return Measurement(tuple(NODES[k] for k in numbers))


def paths(*numbers: int) -> Measurement:
    return Measurement(tuple(NODES[k] for k in numbers), every_path=True)


def test_a_ring_fails_only_where_its_flows_run() -> None:
    fabric = Fabric(NODES, leaves=LEAVES, bad_paths={frozenset((NODES[0], NODES[20]))})
    assert fabric.answer([ring(0, 20)]) == [{0}]
    assert fabric.answer([ring(0, 1, 20)]) == [{0}]  # the ring closes over it
    assert fabric.answer([ring(0, 1, 20, 21)]) == [set()]
    assert fabric.answer([paths(0, 1, 20, 21)]) == [{0}]


def test_an_uplink_is_slow_only_when_more_flows_run_than_it_carries() -> None:
    fabric = Fabric(NODES, leaves=LEAVES, uplinks={"leaf1": 8})
    assert fabric.answer([ring(*range(64))]) == [set()]
    assert fabric.answer([paths(*range(64))]) == [{0}]
    assert fabric.answer([paths(*range(12, 20), *range(20, 24))]) == [set()]
    # Pairs of one round share it.
    across = [ring(k, k + 16) for k in range(16)]
    assert set(map(bool, fabric.answer(across))) == {True}
    assert set(map(bool, fabric.answer(across[:8]))) == {False}


def test_a_group_without_an_answer_is_none() -> None:
    fabric = Fabric(NODES, leaves=LEAVES, silent={NODES[3]})
    assert fabric.answer([ring(0, 1), ring(2, 3)]) == [set(), None]


# --- what crosses the uplinks

PLACES = ("leaf uplink at half", "spine 4:1", "spine 2:1", "path of two nodes", "half of a leaf")


@pytest.mark.parametrize("nodes", [32, 232])
@pytest.mark.parametrize("defect", PLACES)
def test_a_place_is_named_as_what_it_is(defect: str, nodes: int) -> None:
    result = simulate(Case(defect=defect), nodes, range(SEEDS))
    assert (result.named, result.innocents, result.misplaced) == (result.planted, 0, 0)
    assert max(result.rounds) <= 60


@pytest.mark.parametrize("unanswered", [0.0, 0.05])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("knows_leaves", [True, False])
def test_slow_flows_between_leaves_are_the_spine_and_no_node(
    knows_leaves: bool, even: bool, unanswered: float
) -> None:
    case = Case(
        defect="each crossing flow slow", knows_leaves=knows_leaves, even=even,
        unanswered=unanswered,
    )  # fmt: skip
    result = simulate(case, 64, range(SEEDS))
    assert (result.named, result.innocents, result.misplaced) == (SEEDS, 0, 0)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("defect", PLACES[:4])
def test_where_slurm_names_no_leaves_no_node_is_accused_either(defect: str, even: bool) -> None:
    result = simulate(Case(defect=defect, knows_leaves=False, even=even), 64, range(SEEDS))
    assert (result.named, result.innocents) == (SEEDS, 0)


@pytest.mark.parametrize("defect", ["leaf uplink at half", "path of two nodes"])
def test_wrong_answers_do_not_make_a_place_another(defect: str) -> None:
    found = [
        simulate(Case(defect=defect, even=even, wrong=0.01), 128, range(SEEDS))
        for even in (True, False)
    ]
    result = found[0] + found[1]
    assert result.innocents == 0
    assert result.named >= 0.9 * result.planted


# --- nodes that fail at times, wrong answers, missing ones


@pytest.mark.parametrize("nodes", [32, 232])
def test_a_node_that_is_bad_30_percent_of_the_time_is_named(nodes: int) -> None:
    result = simulate(Case(defect="node at times, 30 %"), nodes, range(30))
    assert result.innocents == 0
    assert result.named >= 0.9 * result.searches - 1  # of 30 seeds


@pytest.mark.parametrize("nodes", [32, 232])
@pytest.mark.parametrize("defect", ["1 node", "10 nodes", "100 nodes"])
def test_with_wrong_answers_the_bad_are_named_and_no_other(defect: str, nodes: int) -> None:
    result = simulate(Case(defect=defect, wrong=0.05), nodes, range(SEEDS))
    assert result.named >= 0.9 * result.planted
    assert result.innocents == 0


@pytest.mark.parametrize("nodes", [8, 32, 232])
def test_wrong_answers_of_a_healthy_fleet_accuse_no_node(nodes: int) -> None:
    result = simulate(Case(defect="nothing", wrong=0.05), nodes, range(SEEDS))
    assert (result.innocents, result.misplaced) == (0, 0)


@pytest.mark.parametrize("defect", ["1 node", "10 nodes", "path of two nodes"])
def test_groups_without_an_answer_do_not_end_the_search(defect: str) -> None:
    result = simulate(Case(defect=defect, unanswered=0.05), 64, range(SEEDS))
    assert (result.named, result.innocents, result.partial) == (result.planted, 0, 0)


def test_a_node_that_is_never_measured_is_not_accused_and_the_bad_one_is_found() -> None:
    fabric = Fabric(NODES, leaves=LEAVES, silent={NODES[9]})
    fabric.break_node(NODES[40])
    found = fabric.search(LEAVES)
    assert [c.nodes for c in found.culprits] == [(NODES[40],)]
    assert not found.explained
    assert fabric.rounds < 60


def test_with_most_nodes_bad_the_others_are_not_the_fabric() -> None:
    for seed in range(5):
        fabric = Fabric(NODES, leaves=LEAVES, random=random.Random(seed))
        bad = fabric.random.sample(NODES, 38)
        for name in bad:
            fabric.break_node(name)
        found = fabric.search(LEAVES, measured_pairs=fabric.pairs())
        assert {c.kind for c in found.culprits} <= {"node", "leaf"}
        assert {n for c in found.culprits for n in c.nodes} == set(bad)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [64, 1024])
def test_a_sample_of_all_cells(nodes: int) -> None:
    results = [simulate(case, nodes, range(3)) for case in pairwise_cases()]
    assert (
        sum(result.accusing for result in results)
        <= 0.003 * sum(result.searches for result in results) + 1
    )


def test_the_sample_has_each_pair_of_values() -> None:
    sample = pairwise_cases()
    assert len(sample) < len(every_case()) / 10
    pairs = {(c.defect, c.wrong) for c in sample}
    assert pairs == {(c.defect, c.wrong) for c in every_case()}


def test_few_nodes_are_searched_by_all_their_pairs_until_one_fails() -> None:
    found = Result()
    for seed in range(20):
        fabric = Fabric(names(4), random=random.Random(seed))
        expected = bench_search.at_times(fabric)
        found.add(fabric, expected, fabric.search())
    assert found.innocents == 0
    assert found.named >= 16
