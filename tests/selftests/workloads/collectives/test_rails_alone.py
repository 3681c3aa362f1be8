"""Each NIC with its GPU by itself: one rail at a time, named by both of its ends."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.records.model import Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.collectives.rails_alone import BATCHES, slowest_rail
from tests.selftests import planted
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.support import SHIPPED, case, rank, record

pytestmark = pytest.mark.cpu

KEY = "rails.alone"
LIMITS = loader.load(SHIPPED)
NODES = ("worker0", "worker1")
SLOW = """\
import time
from fixtures.workloads.collectives import rails_alone as workload
from fixtures.workloads.collectives.operation_buffers import OperationBuffers
WORKLOAD = workload.WORKLOAD
def run(ranks, metrics, **params):
    honest = OperationBuffers.launcher
    def launcher(self, count):
        launch = honest(self, count)
        def slow():
            busy.append(time.perf_counter())
            time.sleep(0.2 * (ranks.rank == 3))
            launch()
            busy.append(time.perf_counter())
        return slow
    busy = []
    OperationBuffers.launcher = launcher
    result = workload.run(ranks, metrics, **params)
    result.facts["busy"] = [busy[0], busy[-1]]
    return result
"""


def test_one_rail_at_a_time_is_measured_and_the_slow_one_named_by_node_and_gpu(tmp_path):
    job = Job(tmp_path, nodes=[*NODES], per_node=2)
    (tmp_path / "planted.py").write_text(SLOW)
    job.add("planted", ["busbw"], size=1 << 16)
    assert job.run(slurm=True, warm=TORCH) == [0] * 4, job.output()
    found = job.record("planted")
    assert {r.rank: len(r.measurements[0].samples) for r in found.ranks} == dict.fromkeys(
        range(4), BATCHES
    )
    busy = [r.facts["busy"] for r in found.ranks]
    assert max(busy[0][1], busy[2][1]) <= min(busy[1][0], busy[3][0]), "rails ran at the same time"
    ((by, note),) = [
        (r.rank, note) for r in found.ranks for m in r.measurements for note in m.notes
    ]
    assert by == 0
    assert note.startswith("slowest rail: worker0 gpu1 and worker1 gpu1, ")


def test_the_slowest_rail_is_told_by_its_lower_end():
    said: list[list[Any]] = [
        [45.0, 0, "a gpu0 (mlx5_0)"], [44.0, 1, "a gpu1 (mlx5_1)"],
        [45.0, 0, "b gpu0 (mlx5_0)"], [22.0, 1, "b gpu1 (mlx5_1)"],
        [45.0, 2, "a gpu2"], [45.0, 2, "b gpu2"],
    ]  # fmt: skip
    assert slowest_rail(said) == (
        "slowest rail: a gpu1 (mlx5_1) and b gpu1 (mlx5_1), 49 % of the median rail's rate"
    )


def of_rails(*rates: float) -> Record:
    """The record of a pair whose rails have these rates in GB/s."""
    ranks = []
    for k, node in enumerate(NODES):
        for rail, rate in enumerate(rates):
            m = Measurement(
                metric="busbw", unit="GB/s", samples=[rate] * BATCHES, at={"size": 256 << 20},
                conditions={"domains": 2, "gpus_per_domain": len(rates), "transport": "NET/IB"},
                checks={"batches": float(BATCHES)}, started=100.0,
            )  # fmt: skip
            ranks.append(rank(k * len(rates) + rail, node, m, gpus=len(rates)))
    return record(*ranks, workload="rails_alone", placement="worker0--worker1")


def judged(found: Record, **more: Any) -> Verdict:
    facts = {"nics_per_node": 2, "nic_gbps": 400.0, "nic_fabric": "InfiniBand", "domains": None}
    return judge(case(LIMITS, KEY, found, nodes=NODES, facts={**facts, **more}), LIMITS)


def test_one_slow_nic_fails_the_pair_and_accuses_no_single_node():
    assert judged(of_rails(47, 47)).outcome is Outcome.PASS
    verdict = judged(of_rails(47, 30))
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, 30)
    assert (verdict.worst or {})["node"] is None


def test_a_gpu_that_shares_its_nic_with_another_has_all_of_it_by_itself():
    assert judged(of_rails(47, 47), nics_per_node=1).outcome is Outcome.PASS


def test_it_is_planned_for_every_pair_with_ordered_nics_and_a_planted_fault_is_red():
    people = Population(
        origin="cluster", nodes=("n0", "n1", "n2"), gpus_per_node=8, gpu_model="H200 SXM",
        ordered=True, nics_per_node=8, nic_gbps=400.0,
    )  # fmt: skip
    order = Contract(
        nodes=3, gpus_per_node=8, gpu_model="H200 SXM", nics_per_node=8, nic_gbps=400.0
    )
    limits = loader.load_with_contract(SHIPPED, order.model_dump(exclude_none=True))
    jobs = jobs_for(planned_list(limits, people), limits, people)
    of_pairs = {j.nodes for j in jobs if "rails_alone" in dict(j.workloads)}
    assert of_pairs == {("n0", "n1"), ("n2", "n0")}
    assert planted.plant(KEY).right
