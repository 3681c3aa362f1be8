"""A network that is slow ends as a slow rate with its transport, and in time: never as a hang."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fixtures import entry
from fixtures.records.absence import Absence, Kind
from fixtures.records.model import Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.causes import Cause
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome
from fixtures.workloads.collectives import collective_sweep
from fixtures.workloads.collectives.collective_sweep import SweepBudget, table_row
from fixtures.workloads.collectives.operation_buffers import (
    CHECK_BUDGET_S,
    JUDGED_MIN,
    Point,
    least_checks_s,
)
from fixtures.workloads.nccl import checked_calls
from fixtures.workloads.nccl.collective_ops import OPERATIONS
from fixtures.workloads.timing.timing import Batches
from tests.selftests.support import SHIPPED, case, rank, record

pytestmark = pytest.mark.cpu

NODES, GPUS = 32, 8
RANKS = NODES * GPUS
TEN_GBE = 1.25
"""GB/s of a node with one port of 10 Gbit/s."""
STEP_S = 30e-6
"""Seconds of latency per step over TCP."""
OPERATIONS_OF = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "send_recv",
}  # fmt: skip


def seconds_of(operation: str, size: int, node_gbps: float) -> float:
    """Return how long one operation takes when every byte that leaves a node has one port."""
    factor = OPERATIONS[operation].factor(RANKS)
    latency = 2 * RANKS * STEP_S
    if operation == "all_to_all":  # each of a node's ranks sends almost all of its share away
        return latency + GPUS * size * (RANKS - GPUS) / RANKS / node_gbps / 1e9
    return latency + size * factor / node_gbps / 1e9


@dataclass
class SlowJob:
    """One rank of a job over a slow network, in simulated time."""

    operation: str
    gbps: float
    now: float = 0.0
    points: list[Point] = field(default_factory=list)
    on_gpu: bool = True

    def agree(self, item: Any, choose: Any) -> Any:
        return choose([item])

    def run(self) -> SweepBudget:
        sizes = [8 << k for k in range(31)]
        budget = SweepBudget(self, sizes, graphs=False)  # type: ignore[arg-type]
        while (size := budget.next_size(self.points)) is not None:
            seconds = seconds_of(self.operation, size, self.gbps)
            batches = Batches(
                seconds=[seconds] * 20, started=0, ended=[], launches=1, wall_over_marks=1
            )
            point = Point(
                size=size,
                nominal=size,
                batches=batches,
                graph=None,
                calls=1,
                wrong_calls=0,
                wrong=0,
            )
            self.points.append(point)
            checked = 1
            while more := checked_calls.next_round(
                size, checked, call_s=seconds, all_s=CHECK_BUDGET_S, some_s=least_checks_s(size)
            ):
                checked += more
            self.now += (collective_sweep.LEAST_OPERATIONS + checked) * seconds
        return budget


@pytest.fixture(params=OPERATIONS_OF)
def workload(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def slow_job(workload: str, gbps: float, monkeypatch: pytest.MonkeyPatch) -> tuple[SlowJob, Any]:
    job = SlowJob(OPERATIONS_OF[workload], gbps)
    monkeypatch.setattr(collective_sweep.time, "monotonic", lambda: job.now)
    return job, job.run()


def test_256_ranks_over_10_gbe_end_in_time_and_reach_the_sizes_that_are_judged(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, budget = slow_job(workload, TEN_GBE, monkeypatch)
    deadline = entry.known(workload).deadline("cuda")
    assert job.now <= collective_sweep.SWEEP_BUDGET_S < deadline
    assert JUDGED_MIN in {point.nominal for point in job.points}
    op = OPERATIONS[job.operation]
    table = [table_row(op, point, RANKS) for point in job.points]
    absent = budget.absent(op, table, "NET/Socket")
    assert sorted([*(a.at["size"] for a in absent), *(p.nominal for p in job.points)]) == [
        8 << k for k in range(31)
    ]
    assert "over NET/Socket" in absent[0].why


@pytest.mark.parametrize("gbps", [1e-4, 1e-3, 0.01, 0.125, 0.5, 2.5, 12.5, 400.0])
def test_no_network_makes_a_sweep_take_longer_than_its_deadline(
    workload: str, gbps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, budget = slow_job(workload, gbps, monkeypatch)
    assert job.now < entry.known(workload).deadline("cuda") - 30
    assert bool(budget.left_out) == (len(job.points) < 31)
    if gbps == 400.0:
        assert not budget.left_out, "a good network is measured at every size"


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(SHIPPED)


def of_a_cluster(gbps: float, size: int, why: str) -> Record:
    conditions = {"domains": 2, "gpus_per_domain": 1, "nvls": False, "sharp": False}
    conditions["transport"] = "NET/Socket"

    def measured() -> list[Measurement]:
        return [
            Measurement(
                metric="busbw", unit="GB/s", samples=[gbps] * 20, at={"size": JUDGED_MIN},
                conditions=conditions, checks={"batches": 20.0},
            ),
            Measurement(metric="transport", unit="state", value="NET/Socket"),
        ]  # fmt: skip

    ranks = [rank(k, f"worker{k}", *measured(), gpus=1) for k in range(2)]
    gap = Absence(metric="", kind=Kind.NO_TIME, why=why, at={"size": size})
    ranks = [replace(one, absent=[gap]) for one in ranks]
    return record(*ranks, workload="allreduce", placement="all")


def test_a_slow_network_is_a_slow_rate_and_a_wrong_transport_and_says_what_was_left_out(
    limits: Thresholds,
) -> None:
    why = "one all_reduce of 1073741824 bytes takes 1.71 s over NET/Socket (1.25 GB/s): too long"
    found = of_a_cluster(1.25, 8 * JUDGED_MIN, why)
    where: Any = {
        "nodes": ("worker0", "worker1"), "gpus": 1,
        "facts": {"nics_per_node": 1, "nic_gbps": 400.0},
    }  # fmt: skip
    slow = judge(case(limits, "allreduce.cluster.1GiB", found, **where), limits)
    assert slow.outcome is Outcome.FAIL, slow.reason
    larger = judge(case(limits, "allreduce.cluster.8GiB", found, **where), limits)
    assert larger.outcome is Outcome.NOT_MEASURED
    assert larger.cause == Cause.SLOW
    assert why in larger.reason
    assert larger.cause_nodes == []
    assert "transport" in larger.next_step
