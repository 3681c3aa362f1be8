"""Wiring recovered from latencies: simulated fabrics, with the noise of recorded batches."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fixtures.records.files import read_json
from fixtures.workloads.wiring import wiring_groups
from fixtures.workloads.wiring.wiring_fit import LEAST_GAP
from fixtures.workloads.wiring.wiring_groups import (
    Pair,
    Wiring,
    groups,
    recover,
    rounds_of_pairs,
)
from tests.selftests.support import DATA

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


BASE_US = 12.0
"""NCCL's send and receive between two hosts; what is under it does not matter."""
GAP_US = 0.5
"""Two more switches and their cables: some 0.13 to 0.3 us each, there and back again in part."""
OWN_US = 0.2
BATCHES = 20


@functools.cache
def recorded_batches() -> list[NDArray[np.float64]]:
    """Batches of one latency each over their median: all-reduces of up to 64 KiB on four H200."""
    found = []
    for rank in read_json(DATA / "h200-1x4" / "records" / "allreduce@node0.json")["ranks"]:
        for m in rank["measurements"]:
            if m["metric"] == "latency":
                samples = np.array(m["samples"])
                found.append(samples / np.median(samples))
    return found


@dataclass
class Fabric:
    """Ports on leaves as they were planned, and as they are."""

    planned: dict[str, str]
    true: dict[str, str]
    moved: list[str]
    latencies: dict[Pair, float]


def fabric(
    seed: int, *, nodes: int = 64, leaves: int = 8, swaps: int = 0, gap: float = GAP_US,
    rounds: int | None = None, slow: Mapping[str, float] | None = None, rails: int = 1,
) -> Fabric:  # fmt: skip
    """A fabric of which `swaps` pairs of ports changed their places; `rails`: leaves per node."""
    rng = np.random.default_rng(seed)
    if rails > 1:  # a leaf for each rail, and a port of each node on each of them
        planned = {f"n{k}/rail{r}": f"leaf{r}" for k in range(nodes) for r in range(rails)}
    else:
        planned = {f"n{k:02}": f"leaf{k * leaves // nodes}" for k in range(nodes)}
    ports, true, moved = [*planned], dict(planned), []
    while len(moved) < 2 * swaps:
        one = ports[rng.integers(len(ports))]
        other = f"{one.partition('/')[0]}/rail{rng.integers(rails)}" if rails > 1 else (
            ports[rng.integers(len(ports))]
        )  # fmt: skip
        if planned[one] != planned[other] and not {one, other} & {*moved}:
            true[one], true[other] = true[other], true[one]
            moved += [one, other]
    own = dict(zip(ports, rng.gamma(2, OWN_US / 2, len(ports)), strict=True))
    for port, more in (slow or {}).items():
        own[port] += more
    all_rounds = [*rounds_of_pairs(ports)]
    if rounds is not None:
        all_rounds = [all_rounds[k] for k in rng.permutation(len(all_rounds))[:rounds]]
    latencies = {}
    for pairs in all_rounds:
        for a, b in pairs:
            batch = recorded_batches()[rng.integers(len(recorded_batches()))]
            noise = float(np.median(rng.choice(batch, BATCHES)))
            latencies[a, b] = noise * (BASE_US + own[a] + own[b] + gap * (true[a] != true[b]))
    return Fabric(planned, true, moved, latencies)


def right_pairs(found: Wiring, made: Fabric) -> float:
    """Return the share of measured pairs whose place, together or apart, is right."""
    right = [found.together(a, b) == (made.true[a] == made.true[b]) for a, b in made.latencies]
    return sum(right) / len(right)


def test_rounds_have_every_pair_once_and_every_port_once_per_round():
    for count in (2, 3, 8, 9):
        ports = [f"n{k}" for k in range(count)]
        rounds = [*rounds_of_pairs(ports)]
        pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
        assert len(pairs) == len({*pairs}) == count * (count - 1) // 2
        assert all(len({*sum(pairs, ())}) == 2 * len(pairs) for pairs in rounds)


def test_nobody_is_accused_on_healthy_fabrics():
    for seed in range(20):
        made = fabric(seed)
        found = recover(made.latencies, made.planned)
        assert found.unknown == ""
        assert found.misplaced == ()
        assert right_pairs(found, made) >= 0.99


def test_each_of_50_swaps_is_named_with_the_leaf_where_it_is():
    swaps = 0
    for seed in range(10):
        made = fabric(100 + seed, swaps=5)
        found = recover(made.latencies, made.planned)
        assert {m.port: m.found for m in found.misplaced} == {
            port: made.true[port] for port in made.moved
        }
        assert right_pairs(found, made) >= 0.99
        assert found.gap_us == pytest.approx(GAP_US, rel=0.1)
        swaps += len(made.moved) // 2
    assert swaps == 50


def test_three_quarters_of_the_rounds_are_enough_for_a_node_on_another_leaf():
    for seed in range(5):
        made = fabric(200 + seed, swaps=1, rounds=48)
        found = recover(made.latencies, made.planned)
        assert {m.port for m in found.misplaced} == {*made.moved}


def test_a_swapped_rail_of_one_node_is_named():
    made = fabric(7, nodes=16, rails=4, swaps=2)
    found = recover(made.latencies, made.planned)
    assert {m.port: m.found for m in found.misplaced} == {p: made.true[p] for p in made.moved}
    assert "check its cable, or the plan" in found.misplaced[0].line


def test_a_slow_port_is_not_one_that_is_elsewhere():
    made = fabric(8, slow={"n05": 4.0, "n40": 0.6})
    assert recover(made.latencies, made.planned).misplaced == ()


def test_disturbed_pairs_accuse_nobody():
    made = fabric(9)
    for pair in [*made.latencies][::25]:
        made.latencies[pair] *= 1.5
    assert recover(made.latencies, made.planned).misplaced == ()


def test_groups_are_found_where_the_plan_is_wrong_altogether():
    made = fabric(10)
    rng = np.random.default_rng(0)
    leaves = rng.permutation([*made.planned.values()])
    wrong = dict(zip(made.planned, map(str, leaves), strict=True))
    found = recover(made.latencies, wrong)
    assert right_pairs(found, made) >= 0.99
    assert len(found.misplaced) > 32


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (fabric(11, gap=0.0), "us apart, and a pair varies by"),
        (fabric(12, gap=0.05, swaps=1), "us apart, and a pair varies by"),
        (fabric(13, leaves=1), "one leaf"),
        (fabric(14, rounds=2), "too few"),
    ],
    ids=["no-gap", "gap-below-noise", "one-leaf", "too-few-pairs"],
)
def test_where_near_and_far_cannot_be_told_nobody_is_accused_and_it_says_why(made, says):
    found = recover(made.latencies, made.planned)
    assert says in found.unknown
    assert found.misplaced == ()
    assert not found.leaf_of


@pytest.mark.parametrize("noise", ["normal", "exponential", "lognormal"])
@pytest.mark.parametrize(("nodes", "leaves"), [(8, 2), (12, 3)])
def test_of_few_ports_behind_one_switch_none_is_accused_or_confirmed_by_chance(
    nodes: int, leaves: int, noise: str
):
    rng = np.random.default_rng(nodes)
    draw = {
        "normal": rng.normal,
        "exponential": lambda: rng.exponential(1),
        "lognormal": lambda: rng.lognormal(0, 1),
    }[noise]
    planned = {f"n{k:02}": f"leaf{k * leaves // nodes}" for k in range(nodes)}
    told = 0
    for _ in range(50):
        own = dict(zip(planned, rng.normal(0, 3, nodes), strict=True))
        latencies = {
            (a, b): 50 + own[a] + own[b] + draw() for a, b in itertools.combinations(planned, 2)
        }
        found = recover(latencies, planned)
        told += not found.unknown
        assert bool(found.unknown) == (not found.leaf_of)
    # CHANCE is 0.3 % per fabric: two of 50 are seen by chance in one of 100 such tests.
    assert told <= 1


def test_few_ports_on_two_switches_are_confirmed_though_hardly_any_latency_varies():
    rng = np.random.default_rng(1)
    planned = {f"n{k}": f"leaf{k // 4}" for k in range(8)}
    for swapped in (False, True):
        true = planned | ({"n2": "leaf1"} if swapped else {})
        latencies = {
            (a, b): 120 + rng.normal(0, 2) + 5000 * (true[a] != true[b])
            for a, b in itertools.combinations(planned, 2)
        }
        found = recover(latencies, planned)
        assert {m.port for m in found.misplaced} == ({"n2"} if swapped else set())
        assert {n for n, leaf in planned.items() if leaf == "leaf1"} <= found.confirmed


def test_what_is_not_a_latency_of_two_planned_ports_does_not_count():
    made = fabric(15, swaps=1)
    noise = {("n00", "n00"): 1.0, ("n00", "stranger"): 1.0}
    pairs = [*made.latencies]
    bad = {pairs[0]: float("nan"), pairs[1]: -3.0, pairs[2]: float("inf")}
    found = recover({**made.latencies, **noise, **bad}, made.planned)
    assert {m.port for m in found.misplaced} == {*made.moved}


# --- groups without a plan


def on_leaves(leaf_of: Mapping[str, str], *, noise: float = 0.01) -> dict[Pair, float]:
    """Latencies between all ports that are on these leaves, 5 us more between two of them."""
    rng = np.random.default_rng(3)
    return {
        (a, b): 10.0 + 5.0 * (leaf_of[a] != leaf_of[b]) + rng.normal(0, noise)
        for a, b in itertools.combinations(sorted(leaf_of), 2)
    }


def test_groups_without_a_plan_are_numbered_and_accuse_nobody():
    leaves = {f"n{k:02}": f"leaf{k % 3}" for k in range(15)}
    found = groups(on_leaves(leaves), [*leaves])
    assert found.unknown == ""
    assert found.leaf_of == {port: f"group {int(leaf[-1]) + 1}" for port, leaf in leaves.items()}
    assert found.gap_us == pytest.approx(5.0, rel=0.05)
    assert (found.misplaced, found.confirmed) == ((), frozenset())
    assert found.together("n00", "n03")
    assert not found.together("n00", "n01")


def test_groups_are_not_told_where_the_latencies_show_none():
    ports = [f"n{k:02}" for k in range(12)]
    found = groups(on_leaves(dict.fromkeys(ports, "leaf0"), noise=0.5), ports)
    assert "us apart" in found.unknown
    assert not found.leaf_of
    few = groups({("n00", "n01"): 1.0}, ports)
    assert few.unknown == "1 pair measured, too few for 12 ports"


@pytest.mark.parametrize(("ports", "most"), [(50, 16), (9, 4), (6, 3)])
def test_two_to_sixteen_groups_of_two_ports_or_more_are_tried(monkeypatch, ports, most):
    tried: list[int] = []
    apart = SimpleNamespace(
        tells_apart=lambda chance: False, gap=1.0, noise=1.0, groups=torch.tensor([])
    )
    monkeypatch.setattr(wiring_groups, "Fit", lambda a, b, us, start, count: tried.append(count))
    monkeypatch.setattr(wiring_groups, "spectral", lambda *given: None)
    monkeypatch.setattr(wiring_groups, "best_of", lambda fits: apart)
    names = [f"n{k:02}" for k in range(ports)]
    groups(on_leaves(dict.fromkeys(names, "leaf0")), names)
    assert tried == list(range(2, most + 1))


def test_more_than_two_pairs_of_a_port_are_needed():
    ports = [f"n{k}" for k in range(5)]
    pairs = [*itertools.combinations(ports, 2)]
    measured = dict.fromkeys(pairs, 1.0)
    assert isinstance(wiring_groups._measured(dict.fromkeys(pairs, 0.0), ports), Wiring)
    assert isinstance(wiring_groups._measured(measured, ports), Wiring), "10 of 5 ports"
    both_ways = {**measured, ("n1", "n0"): 2.0}
    a, b, us = wiring_groups._measured(both_ways, ports)
    assert (a.tolist()[-1], b.tolist()[-1], us.tolist()[-1]) == (1, 0, 2.0)
    assert len(us) == 11


def test_why_near_and_far_are_not_told_apart():
    for gap, by_chance in ((LEAST_GAP * 0.5, True), (LEAST_GAP * 0.5 - 0.01, False)):
        fit = SimpleNamespace(gap=gap, noise=0.5)
        found = wiring_groups._not_apart(fit)  # type: ignore[arg-type]
        assert ("groups that chance gives" in found.unknown) is by_chance
        assert (found.gap_us, found.noise_us) == (gap, 0.5)


def test_a_group_has_the_leaf_of_most_of_its_ports_and_each_leaf_is_given_once():
    names = wiring_groups._names
    assert names([0, 0, 1, 1], [1, 1, 0, 0], ["x", "y"]) == ["y", "x"]
    # Both groups have more ports of x than of y: the larger share takes it.
    assert names([0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, 1], ["x", "y"]) == ["y", "x"]
    assert names([0, 0, 0], [1, 1, 1], ["x", "y", "z"]) == ["y", "x", "z"], "empty groups"
    assert names([0, 0, 0, 1], [0, 0, 1, 2], ["x", "y", "z"]) == ["x", "z", "y"], "named once"


CHANCE_OF_ONE = -math.log(0.003)


@pytest.mark.parametrize(
    ("found", "cost", "pairs", "accused", "confirmed"),
    [
        ("y", [9.0, 0.0], [3, 3], 9.0, False),
        ("y", [8.9, 0.0], [3, 3], None, False),
        ("y", [9.0, 0.0], [3, 2], None, False),
        ("y", [9.0, 0.0], [2, 3], None, False),
        ("x", [0.0, CHANCE_OF_ONE], [3, 1], None, True),
        ("x", [0.0, CHANCE_OF_ONE - 0.01], [3, 1], None, False),
        ("x", [0.0, 99.0], [2, 9], None, False),
        ("x", [0.0, 99.0], [3, 0], None, False),
    ],
    ids=["elsewhere", "odds too small", "few pairs there", "few pairs as planned", "confirmed",
         "not clear", "too few pairs", "no other leaf to compare with"],
)  # fmt: skip
def test_a_port_is_accused_or_confirmed_by_enough_odds_and_pairs(
    found, cost, pairs, accused, confirmed
):
    fit = SimpleNamespace(costs=lambda: torch.tensor([cost], dtype=torch.float64),
                          partners=lambda: torch.tensor([pairs]))  # fmt: skip
    misplaced, sure = wiring_groups._held_against(
        fit, 9.0, {"n": "x"}, {"n": found}, ["x", "y"]  # type: ignore[arg-type]
    )  # fmt: skip
    assert [(m.port, m.planned, m.found, m.odds) for m in misplaced] == (
        [("n", "x", "y", accused)] if accused else []
    )
    assert sure == ({"n"} if confirmed else set())
