"""Rows on the wiring: measured on simulated fabrics, and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.records.model import Record, Result
from fixtures.thresholds import loader
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.wiring import wiring, wiring_rails, wiring_rounds
from fixtures.workloads.wiring.small_messages import BATCHES
from tests.selftests.support import SHIPPED, case, rank, record
from tests.selftests.workloads.wiring.test_wiring_groups import (
    BASE_US,
    GAP_US,
    OWN_US,
    recorded_batches,
)

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


LIMITS = loader.load(SHIPPED)
LEAF = "wiring.leaf"
RAIL = "wiring.rail"
CONFIRMED = 0.9
"""Share of the healthy nodes that are told to be where they should be, at least; the others have
no verdict. It depends on the noise, which is that of recorded latencies."""


class Fleet:
    """Nodes with a port per rail, where each was planned and where it is."""

    def __init__(
        self, nodes: int, *, per_leaf: int = 8, rails: int = 2, seed: int = 0, gap: float = GAP_US
    ) -> None:
        self.nodes = [f"n{k:03}" for k in range(nodes)]
        self.rails, self.gap = rails, gap
        self.plan = {n: f"leaf{k // per_leaf}" for k, n in enumerate(self.nodes)}
        self.rng = np.random.default_rng(seed)
        self.own = {(n, r): self.rng.gamma(2, OWN_US / 2) for n in self.nodes for r in range(rails)}
        self.leaf = dict(self.plan)
        """Where the node's cables end."""
        self.rail = {(n, r): r for n in self.nodes for r in range(rails)}
        """Of a rail-optimized fabric: in the switch of which rail they end."""

    def us(self, one: tuple[str, int], other: tuple[str, int], *, by_rail: bool) -> float:
        batch = recorded_batches()[self.rng.integers(len(recorded_batches()))]
        noise = float(np.median(self.rng.choice(batch, BATCHES)))
        far = self.leaf[one[0]] != self.leaf[other[0]]
        far |= by_rail and self.rail[one] != self.rail[other]
        return noise * (BASE_US + self.own[one] + self.own[other] + self.gap * far)

    def said(self, rounds: Sequence[Sequence[tuple[Any, Any]]], *, by_rail: bool) -> list[Any]:
        """Return what every rank has measured in these rounds of pairs of ports."""
        found: dict[tuple[str, int], dict[str, float]] = {
            (n, r): {} for n in self.nodes for r in range(self.rails)
        }
        for pairs in rounds:
            for one, other in pairs:
                us = self.us(one, other, by_rail=by_rail)
                found[one][wiring.port(*other)] = found[other][wiring.port(*one)] = us
        return [[n, r, latencies] for (n, r), latencies in found.items()]

    def leaf_record(self, plan: Mapping[str, str] | None = None) -> Record:
        """Return the record of the workload `wiring`."""
        plan = self.plan if plan is None else plan
        rounds = [
            [((a, r), (b, r)) for a, b in pairs for r in range(self.rails)]
            for pairs in wiring_rounds.of_nodes(self.nodes, plan)
        ]
        said = self.said(rounds, by_rail=False)
        return self._record("leaf", said, wiring._leaves(said, plan), len(rounds), plan)

    def rail_record(self) -> Record:
        """Return the record of the workload `wiring_rails`."""
        rounds = [
            [(_place(a), _place(b)) for a, b in pairs]
            for pairs in wiring_rounds.of_rails(self.nodes, self.plan, self.rails)
        ]
        said = self.said(rounds, by_rail=True)
        answer = wiring_rails.rails(said, self.plan)
        return self._record("rail", said, answer, len(rounds), self.plan)

    def _record(
        self, metric: str, said: Sequence[Any], answer: Any, made: int, plan: Mapping[str, str]
    ) -> Record:
        counts: dict[str, list[Any]] = {}
        for node, rail, latencies in said:
            counts.setdefault(node, []).append([wiring.port(node, rail), len(latencies)])
        results = []
        for k, (node, own, latencies) in enumerate(said):
            ranks: Any = SimpleNamespace(
                rank=k, node=node, local_rank=own, leads_node=own == 0, spec={},
                gather_node=lambda item, node=node: counts[node],
            )  # fmt: skip
            found: Result = wiring.report(
                ranks, metric, latencies, answer, made, made, plan, Path("/nowhere")
            )
            made_rank = rank(k, node, *found.measurements, *found.absent, gpus=self.rails)
            made_rank.facts.update(found.facts)
            results.append(made_rank)
        return record(*results, workload="wiring" if metric == "leaf" else "wiring_rails")

    def rows(self, key: str, found: Record) -> dict[str, Verdict]:
        return {
            n: judge(case(LIMITS, key, found, nodes=(n,), record_nodes=tuple(self.nodes)), LIMITS)
            for n in self.nodes
        }


def _place(name: str) -> tuple[str, int]:
    node, _, rail = name.partition(" ")
    return node, int(rail)


def outcomes(rows: Mapping[str, Verdict], outcome: Outcome) -> set[str]:
    return {node for node, verdict in rows.items() if verdict.outcome is outcome}


# --- healthy


SLOW = tuple(pytest.param(nodes, marks=pytest.mark.slow) for nodes in (64, 128))


@pytest.mark.parametrize("nodes", [4, 16, *SLOW])
def test_nobody_is_accused_on_healthy_fleets(nodes):
    for seed in range(2 if nodes == 16 else 5):
        fleet = Fleet(nodes, seed=seed)
        for key, found in ((LEAF, fleet.leaf_record()), (RAIL, fleet.rail_record())):
            rows = fleet.rows(key, found)
            assert outcomes(rows, Outcome.FAIL) == set()
            assert outcomes(rows, Outcome.NOT_MEASURED) == set()
            told = len(outcomes(rows, Outcome.PASS))
            if nodes > 4:
                assert told >= CONFIRMED * nodes
            elif key == LEAF:
                assert told == 0, "there is one leaf"


# --- a node on another leaf, a swapped rail


@pytest.mark.parametrize("nodes", [16, 64, 128])
def test_exactly_the_node_on_another_leaf_is_named_with_both_leaves(nodes):
    for seed in range(6):
        fleet = Fleet(nodes, seed=100 + seed)
        node = fleet.nodes[int(fleet.rng.integers(nodes))]
        others = sorted({*fleet.plan.values()} - {fleet.plan[node]})
        fleet.leaf[node] = others[int(fleet.rng.integers(len(others)))]
        rows = fleet.rows(LEAF, fleet.leaf_record())
        assert outcomes(rows, Outcome.FAIL) == {node}
        assert len(outcomes(rows, Outcome.PASS)) >= CONFIRMED * (nodes - 1)
        assert rows[node].value == fleet.rails
        assert (
            f"{node} gpu0 is on {fleet.leaf[node]}, planned on {fleet.plan[node]}: check its cable"
            in rows[node].notes[0]
        )


def test_both_of_two_swapped_nodes_are_named():
    for seed in range(6):
        fleet = Fleet(64, seed=200 + seed)
        one, other = fleet.nodes[3], fleet.nodes[40]
        fleet.leaf[one], fleet.leaf[other] = fleet.leaf[other], fleet.leaf[one]
        assert outcomes(fleet.rows(LEAF, fleet.leaf_record()), Outcome.FAIL) == {one, other}


@pytest.mark.parametrize(("nodes", "rails"), [(8, 4), (16, 8), (64, 4)])
def test_exactly_the_ports_of_swapped_rails_are_named(nodes, rails):
    for seed in range(4):
        fleet = Fleet(nodes, rails=rails, per_leaf=16, seed=300 + seed)
        node = fleet.nodes[int(fleet.rng.integers(nodes))]
        fleet.rail[node, 1], fleet.rail[node, 3] = 3, 1
        rows = fleet.rows(RAIL, fleet.rail_record())
        assert outcomes(rows, Outcome.FAIL) == {node}
        assert len(outcomes(rows, Outcome.PASS)) == nodes - 1
        assert rows[node].value == 2
        leaf = fleet.plan[node]
        said = [note.partition(":")[0] for note in rows[node].notes[:2]]
        assert said == [
            f"{node} gpu1 is on {leaf} rail3, planned on {leaf} rail1",
            f"{node} gpu3 is on {leaf} rail1, planned on {leaf} rail3",
        ]


# --- what cannot be told is never a pass, and nobody's fault


def test_without_a_plan_the_groups_are_recorded_and_nobody_is_accused():
    fleet = Fleet(32, rails=1)
    fleet.leaf[fleet.nodes[0]] = "leaf3"
    found = fleet.leaf_record(plan={})
    rows = fleet.rows(LEAF, found)
    assert outcomes(rows, Outcome.NOT_APPLICABLE) == {*fleet.nodes}
    assert "neither the order (cluster.leaves) nor Slurm's topology" in rows["n000"].reason
    (group,) = found.ranks[0].facts["groups"]
    recovered = group["recovered"]
    together = {n for n in fleet.nodes if recovered[f"{n} gpu0"] == recovered["n000 gpu0"]}
    assert together == {n for n in fleet.nodes if fleet.leaf[n] == "leaf3"}


@pytest.mark.parametrize("gap", [0.0, 0.02])
def test_where_near_and_far_cannot_be_told_apart_it_says_so(gap):
    fleet = Fleet(16, gap=gap)
    fleet.leaf[fleet.nodes[0]] = "leaf1"
    rows = fleet.rows(LEAF, fleet.leaf_record())
    assert outcomes(rows, Outcome.NOT_APPLICABLE) == {*fleet.nodes}
    assert "us apart, and a pair varies by" in rows["n000"].reason


def test_a_node_that_the_plan_does_not_name_has_no_verdict_and_the_others_have():
    fleet = Fleet(32)
    stranger = fleet.nodes[5]
    rows = fleet.rows(
        LEAF, fleet.leaf_record({n: v for n, v in fleet.plan.items() if n != stranger})
    )
    assert outcomes(rows, Outcome.NOT_APPLICABLE) == {stranger}
    assert len(outcomes(rows, Outcome.PASS)) >= CONFIRMED * 31


def test_a_port_that_is_far_from_all_has_no_verdict():
    """In one rail alone such a port may be on another rail's leaf, or be slow."""
    fleet = Fleet(16)
    fleet.leaf[fleet.nodes[2]] = "elsewhere"
    rows = fleet.rows(LEAF, fleet.leaf_record())
    assert outcomes(rows, Outcome.NOT_APPLICABLE) == {fleet.nodes[2]}
    assert "do not identify its leaf clearly enough" in rows[fleet.nodes[2]].reason


def test_a_third_tier_accuses_nobody():
    for seed in range(5):
        fleet = Fleet(64, seed=seed)
        flat = fleet.us

        def us(
            one: Any, other: Any, *, by_rail: bool, fleet: Fleet = fleet, flat: Any = flat
        ) -> float:
            halves = {fleet.nodes.index(place[0]) < 32 for place in (one, other)}
            return float(flat(one, other, by_rail=by_rail)) + GAP_US * (len(halves) == 2)

        fleet.us = us  # type: ignore[method-assign]
        assert outcomes(fleet.rows(LEAF, fleet.leaf_record()), Outcome.FAIL) == set()
