"""The search on a fabric that fails where flows run: a small twin of bench_search."""

from __future__ import annotations

import random

import pytest

from fixtures.localization.measuring import Measurement
from tests.tools import bench_search
from tests.tools.bench_search import WRONG, Case, Result, cases, simulate
from tests.tools.fabric import Fabric, in_leaves, names

pytestmark = pytest.mark.cpu
SEEDS = 10
NODES = names(64)
LEAVES = in_leaves(NODES, 16)


def case(name: str, noise: float = 0.0, *, pairs: bool) -> Case:
    (found,) = (
        c for c in cases() if (c.name, c.noise, c.knows_pairs) == (name, noise, pairs)
    )  # fmt: skip
    return found


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


# --- what crosses the uplinks


@pytest.mark.parametrize("nodes", [32, 232])
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize(
    "name", ["leaf uplink at half", "spine 4:1", "path of two nodes", "half of a leaf"]
)
def test_a_place_is_said_as_it_is_and_nobody_is_accused(name: str, pairs: bool, nodes: int) -> None:
    result = simulate(case(name, pairs=pairs), nodes, range(SEEDS))
    assert (result.named, result.innocents, result.misplaced) == (SEEDS, 0, 0)
    assert max(result.rounds) <= 60


@pytest.mark.parametrize("name", ["spine 4:1", "leaf uplink at half", "path of two nodes"])
def test_where_slurm_names_no_leaves_nobody_is_accused_either(name: str) -> None:
    unknown = Case(name, dict(bench_search.DEFECTS)[name], knows_leaves=False)
    result = simulate(unknown, 64, range(SEEDS))
    assert result.innocents == 0
    assert result.misplaced == 0 or name == "leaf uplink at half"  # said as what joins the leaves
    assert result.named == (0 if name == "leaf uplink at half" else SEEDS)


# --- nodes that fail at times, and wrong answers


@pytest.mark.parametrize("nodes", [32, 232])
@pytest.mark.parametrize("pairs", [True, False])
def test_a_node_that_is_bad_30_percent_of_the_time_is_named(pairs: bool, nodes: int) -> None:
    result = simulate(case("node at times, 30 %", pairs=pairs), nodes, range(20))
    assert result.innocents == 0
    assert result.named >= 0.9 * result.searches - 1  # 20 seeds; the bench has 100


@pytest.mark.parametrize("nodes", [32, 232])
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("name", ["1 node", "10 nodes", "100 nodes"])
def test_with_wrong_answers_the_bad_are_named_and_nobody_else(
    name: str, pairs: bool, nodes: int
) -> None:
    result = simulate(case(name, WRONG, pairs=pairs), nodes, range(SEEDS))
    assert result.named >= 0.9 * result.planted
    assert result.innocents == 0


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("nodes", [8, 32, 232])
def test_wrong_answers_of_a_healthy_fleet_accuse_nobody(nodes: int, pairs: bool) -> None:
    result = simulate(case("nothing", WRONG, pairs=pairs), nodes, range(SEEDS))
    assert (result.innocents, result.misplaced) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c.name}-{c.noise}-{c.knows_pairs}")
def test_of_1024_nodes_as_of_fewer(case: Case) -> None:
    result = simulate(case, 1024, range(30))
    assert result.accusing == 0
    assert result.named >= 0.9 * result.planted


def test_few_nodes_are_searched_by_all_their_pairs_until_one_fails() -> None:
    found = Result()
    for seed in range(20):
        fabric = Fabric(names(4), random=random.Random(seed))
        expected = bench_search.at_times(fabric)
        found.add(fabric, expected, fabric.search())
    assert found.innocents == 0
    assert found.named >= 16
