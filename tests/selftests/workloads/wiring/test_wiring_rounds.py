"""The workloads on wiring: messages between ranks, who meets whom, plan and ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.entry import describe
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.devices import rail_ports
from fixtures.workloads.wiring import wiring_rounds
from fixtures.workloads.wiring.wiring_groups import LEAST_PAIRS
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.support import SHIPPED, case
from tests.selftests.workloads.wiring.test_wiring import LEAF, RAIL, outcomes

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


# --- measured: ranks that exchange messages, on leaves that a slower send stands for


TWO_LEAVES = """\
import time
from fixtures.workloads.{area} import {name} as workload
from fixtures.workloads.wiring.small_messages import SmallMessages
WORKLOAD = workload.WORKLOAD
LEAVES = {leaves}
def run(ranks, metrics, **params):
    honest = SmallMessages._send
    def send(self, buffer, peer):
        place = lambda rank: divmod(rank, ranks.ranks_per_node)
        far = LEAVES[place(ranks.rank)] != LEAVES[place(peer)]
        time.sleep(0.005 * far)
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
    (tmp_path / "planted.py").write_text(
        TWO_LEAVES.format(area="wiring", name=name, leaves=dict(ends))
    )
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
    assert describe("fixtures.workloads.wiring.wiring_rails").environment["NCCL_PXN_DISABLE"] == "1"
    plain = planned_list(limits, replace(people, rail_optimized=False))
    (why,) = {i.not_applicable for i in plain if i.criterion == RAIL}
    assert "rail_optimized" in str(why)
    assert not [i for i in plain if i.criterion == LEAF and i.not_applicable]


def test_a_port_of_a_node_is_named_with_its_nic(tmp_path):
    assert rail_ports.nearest(
        [frozenset({"a", "x"}), frozenset({"b"}), frozenset({"c"})],
        {"mlx5_0": frozenset({"a"}), "mlx5_1": frozenset({"a", "x"}), "mlx5_2": frozenset({"b"})},
    ) == [["mlx5_1"], ["mlx5_2"], []]


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
