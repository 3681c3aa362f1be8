"""Rows on the wiring: planned, measured, judged; simulated fabrics, messages between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.cluster.population import Population
from fixtures.entry import describe
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.records.model import Record, Result
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads import wiring, wiring_rails
from fixtures.workloads.runtime import rail_ports, wiring_rounds
from fixtures.workloads.runtime.small_messages import BATCHES
from fixtures.workloads.runtime.wiring_groups import LEAST_PAIRS
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.support import SHIPPED, case, rank, record
from tests.selftests.test_wiring import BASE_US, GAP_US, OWN_US, recorded_batches

pytestmark = pytest.mark.cpu

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
            made_rank = rank(k, node, *found.measurements, gpus=self.rails)
            results.append(replace(made_rank, facts={**made_rank.facts, **found.facts}))
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


@pytest.mark.parametrize("nodes", [4, 16, 64, 128])
def test_nobody_is_accused_on_healthy_fleets(nodes):
    for seed in range(5):
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
    assert "speak too little for its leaf" in rows[fleet.nodes[2]].reason


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


# --- measured: ranks that exchange messages, on leaves that a slower send stands for


TWO_LEAVES = """\
import time
from fixtures.workloads import {name} as workload
from fixtures.workloads.runtime.small_messages import SmallMessages
WORKLOAD = workload.WORKLOAD
LEAVES = {leaves}
def run(ranks, metrics, **params):
    honest = SmallMessages._send
    def send(self, buffer, peer):
        place = lambda rank: divmod(rank, ranks.ranks_per_node)
        far = LEAVES[place(ranks.rank)] != LEAVES[place(peer)]
        time.sleep(0.004 * far)
        honest(self, buffer, peer)
    SmallMessages._send = send
    return workload.run(ranks, metrics, **params)
"""


def measured(
    tmp_path: Path, name: str, ends: Mapping[tuple[int, int], str], **order: Any
) -> tuple[Record, list[str]]:
    """Run a workload on nodes whose ranks (node, local rank) are on these leaves."""
    nodes = [f"worker{k}" for k in sorted({k for k, _ in ends})]
    job = Job(tmp_path, nodes=nodes, per_node=len(ends) // len(nodes))
    job.spec["wiring_order"] = order
    (tmp_path / "planted.py").write_text(TWO_LEAVES.format(name=name, leaves=dict(ends)))
    job.add("planted", ["leaf" if name == "wiring" else "rail"], budget_s=60.0)
    assert job.run(slurm=True, warm=TORCH) == [0] * len(ends), job.output()
    return job.record("planted"), nodes


def judged(key: str, found: Record, nodes: Sequence[str]) -> dict[str, Verdict]:
    return {
        n: judge(case(LIMITS, key, found, nodes=(n,), record_nodes=tuple(nodes)), LIMITS)
        for n in nodes
    }


PLAN = {f"worker{k}": f"leaf{k // 4}" for k in range(8)}


def test_messages_between_ranks_name_the_node_that_is_on_another_leaf(tmp_path):
    leaves = {(k, 0): f"leaf{k // 4}" for k in range(8)} | {(2, 0): "leaf1"}
    found, nodes = measured(tmp_path, "wiring", leaves, leaves=PLAN)
    rows = judged(LEAF, found, nodes)
    assert outcomes(rows, Outcome.FAIL) == {"worker2"}
    assert outcomes(rows, Outcome.NOT_MEASURED) == set()
    assert "worker2 gpu0 is on leaf1, planned on leaf0" in rows["worker2"].notes[0]
    assert found.ranks[0].facts["rounds"] == {"made": 7, "of": 7}
    assert len(found.ranks[0].facts["latency_us"]) == 7


def test_messages_between_ranks_accuse_nobody_where_all_is_as_planned(tmp_path):
    leaves = {(k, 0): f"leaf{k // 4}" for k in range(8)}
    found, nodes = measured(tmp_path, "wiring", leaves, leaves=PLAN)
    rows = judged(LEAF, found, nodes)
    assert outcomes(rows, Outcome.FAIL) == set()
    assert len(outcomes(rows, Outcome.PASS)) >= 6


def test_messages_between_ranks_name_the_ports_of_swapped_rails(tmp_path):
    leaves = {(k, r): f"rail{r}" for k in range(5) for r in range(2)}
    leaves |= {(3, 0): "rail1", (3, 1): "rail0"}
    found, nodes = measured(tmp_path, "wiring_rails", leaves)
    rows = judged(RAIL, found, nodes)
    assert outcomes(rows, Outcome.FAIL) == {"worker3"}
    assert rows["worker3"].value == 2


# --- who meets whom


def test_each_port_meets_enough_of_every_rail():
    for nodes, rails in ((4, 2), (8, 8), (33, 4)):
        names = [f"n{k}" for k in range(nodes)]
        met: dict[str, set[str]] = {}
        for pairs in wiring_rounds.of_rails(names, {}, rails):
            taken = [name for pair in pairs for name in pair]
            assert len(taken) == len({*taken}), "a port is in two pairs of a round"
            for a, b in pairs:
                met.setdefault(a, set()).add(b)
                met.setdefault(b, set()).add(a)
        assert len(met) == nodes * rails
        for others in met.values():
            by_rail = [sum(o.endswith(f" {r}") for o in others) for r in range(rails)]
            assert min(by_rail) >= LEAST_PAIRS


@pytest.mark.parametrize("sizes", [[32] * 16, [40, 8, 8, 9], [64, 64], [1] * 80])
def test_each_node_of_a_large_cluster_meets_some_of_every_leaf(sizes):
    leaves = [f"leaf{k}" for k, size in enumerate(sizes) for _ in range(size)]
    plan = {f"n{k}": leaf for k, leaf in enumerate(leaves)}
    rounds = wiring_rounds.of_nodes([*plan], plan)
    assert len(rounds) <= wiring_rounds.MOST_ROUNDS + wiring_rounds.OF_OWN_LEAF
    met: dict[str, Counter[str]] = {n: Counter() for n in plan}
    for pairs in rounds:
        taken = [name for pair in pairs for name in pair]
        assert len(taken) == len({*taken})
        for a, b in pairs:
            met[a][plan[b]] += 1
            met[b][plan[a]] += 1
    for node, counts in met.items():
        for leaf, size in Counter(plan.values()).items():
            least = min(LEAST_PAIRS, size - (plan[node] == leaf))
            assert counts[leaf] >= least, (node, leaf, counts)


# --- the plan


def order(**more: Any) -> Contract:
    return Contract(nodes=4, gpus_per_node=8, gpu_model="H200 SXM", **more)


def test_the_leaf_is_that_of_the_order_and_else_that_of_slurm():
    spec = order(leaves={"a": "gpu[1-2]", "b": "gpu3"}).wiring_order()
    assert spec == {"leaves": {"gpu1": "a", "gpu2": "a", "gpu3": "b"}}
    assert order().wiring_order() == {"leaves": {}}
    with pytest.raises(ValueError, match="gpu2 is on two leaves: a and b"):
        order(leaves={"a": "gpu[1-2]", "b": "gpu[2-3]"})


@pytest.mark.parametrize(
    ("address", "pattern", "leaf"),
    [
        ("core.leaf7.gpu12", "switch.switch.node", "leaf7"),
        ("leaf7.gpu12.example.org", "switch.node", "leaf7"),
        ("gpu12", "node", ""),
        ("block3.gpu12", "block.node", ""),
        ("leaf7", "switch.node", ""),
        ("", "", ""),
    ],
)
def test_slurm_names_the_leaf_of_a_node_in_the_environment_of_its_tasks(address, pattern, leaf):
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert wiring.leaf_by_slurm(environ) == leaf
    assert wiring.leaf_by_slurm({}) == ""


def test_rails_are_held_against_each_other_in_a_job_of_its_own_where_they_were_ordered():
    people = Population(
        origin="cluster", nodes=("n0", "n1", "n2", "n3"), gpus_per_node=8, gpu_model="H200 SXM",
        ordered=True, nics_per_node=8, nic_gbps=400.0, rail_optimized=True,
    )  # fmt: skip
    limits = replace(LIMITS, cluster=order(nics_per_node=8, nic_gbps=400.0, rail_optimized=True))
    jobs = {j.name: [w for w, _ in j.workloads] for j in
            jobs_for(planned_list(limits, people), limits, people)}  # fmt: skip
    assert jobs["cluster-wiring_rails"] == ["wiring_rails"]
    assert "wiring" in jobs["cluster"]
    assert describe("fixtures.workloads.wiring_rails").environment["NCCL_PXN_DISABLE"] == "1"
    plain = planned_list(limits, replace(people, rail_optimized=False))
    (why,) = {i.not_applicable for i in plain if i.criterion == RAIL}
    assert "rail_optimized" in str(why)
    assert not [i for i in plain if i.criterion == LEAF and i.not_applicable]


def test_a_port_of_a_node_is_named_with_its_nic(tmp_path):
    assert rail_ports.nearest(
        [frozenset({"a", "x"}), frozenset({"b"}), frozenset({"c"})],
        {"mlx5_0": frozenset({"a"}), "mlx5_1": frozenset({"a", "x"}), "mlx5_2": frozenset({"b"})},
    ) == [["mlx5_1"], ["mlx5_2"], []]
    line = "n0 gpu1 is on leaf2, planned on leaf1"
    assert wiring._with_nic(line, "n0 gpu1", {"gpu1": ["mlx5_2"]}) == f"{line} (NIC mlx5_2)"
    assert wiring._with_nic(line, "n0 gpu1", {}) == line


@pytest.mark.parametrize(
    ("layer", "said"), [("InfiniBand", "ibnetdiscover"), ("Ethernet", "lldpctl")]
)
def test_what_a_port_shows_of_its_place_is_recorded_and_what_not_is_said(tmp_path, layer, said):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in {"lid": "0x12", "sm_lid": "0x1", "link_layer": layer}.items():
        (port / name).write_text(f"{text}\n")
    (port.parents[1] / "node_guid").write_text("b83f:d203:0012:3456\n")
    facts = rail_ports.port_facts(port)
    assert facts["lid"] == "0x12"
    assert facts["node_guid"] == "b83f:d203:0012:3456"
    assert said in facts["not_readable"]
    assert "gids/0" not in facts
