"""The jobs that planned items need: one a placement, small ones beside, in the order of stages."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from fixtures.entry import SmallJob, Workload, describe, module_of
from fixtures.plan import durations
from fixtures.plan.items import LOGIN, Item, planned_list, select
from fixtures.plan.jobs import (
    STAGES,
    Job,
    Victim,
    _job_name,
    jobs_for,
    plan_json,
    victim_ranks,
    workload_seconds,
)
from fixtures.records.model import SAFE_ID
from fixtures.thresholds import loader
from tests.selftests.support import SHIPPED, population

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


@functools.cache
def planned(nodes: int, gpus: int = 2, model: str = "cpu", **more: bool) -> list[Item]:
    return planned_list(LIMITS, population(nodes, gpus, model), **more)


@functools.cache
def jobs_of(nodes: int, gpus: int = 2, model: str = "cpu", **more: bool) -> list[Job]:
    items = planned(nodes, gpus, model, **more)
    return jobs_for(items, LIMITS, population(nodes, gpus, model))


def described(workload: str) -> Workload:
    return describe(module_of(workload))


# --- one job

JOB = Job(
    name="pair", stage="pair", placement="p", nodes=("n1", "n2"), ranks_per_node=2,
    gpus_per_node=4, workloads=(("environment", ("versions",)), ("gemm", ("bf16", "fp32"))),
)  # fmt: skip
HALVES, SMALL = SmallJob(halves=True), SmallJob()


def test_a_job_of_halves_has_two_parts():
    assert [replace(JOB, small=s).parts for s in (None, SMALL, HALVES)] == [1, 1, 2]


def test_those_that_wait_for_each_other_come_first_and_exclusive_ones_last():
    orders = [
        JOB, replace(JOB, small=SMALL), replace(JOB, small=SMALL, gpus_per_node=0),
        replace(JOB, small=HALVES), replace(JOB, small=SMALL, stage="destructive"),
    ]  # fmt: skip
    assert [j.submit_order for j in orders] == [3, 2, 1, 0, 0]


def test_devices_are_used_by_exclusive_jobs_with_torch_only():
    without = replace(JOB, workloads=JOB.workloads[:1])
    assert JOB.uses_devices is True
    assert without.uses_devices is False
    assert replace(JOB, small=SMALL).uses_devices is False


def test_ranks_and_gpus_are_counted_over_nodes_and_parts():
    assert (JOB.world_size, JOB.gpus) == (4, 8)
    halves = replace(JOB, small=HALVES)
    assert (halves.world_size, halves.gpus) == (8, 16)
    victims = [replace(JOB, victim=Victim(fault_timeout_s=1, requeue=r)) for r in (True, False)]
    assert [v.world_size for v in victims] == [2, 4]  # a requeued one runs on one of its nodes


def test_a_job_can_leave_out_workloads_and_nodes():
    assert JOB.without(["gemm", "nothing"]).workloads == JOB.workloads[:1]
    assert JOB.on(["n2", "n9"]).nodes == ("n2",)


def test_a_job_takes_its_start_and_its_workloads():
    for small in (None, SMALL):
        start = durations.start_s("cuda", small=small is not None)
        parts = [workload_seconds(w, "cuda") for w, _ in JOB.workloads]
        assert replace(JOB, small=small).seconds("cuda") == pytest.approx(start + sum(parts))
    assert durations.start_s("cuda", small=True) != durations.start_s("cuda", small=False)
    limits = [described(w).deadline_s for w, _ in JOB.workloads]
    assert JOB.deadline_s("cuda") == 60 + sum(limits)


def test_recorded_seconds_go_before_the_estimate(monkeypatch):
    known = {"gemm": 7.0}
    monkeypatch.setattr(durations, "seconds", lambda workload, device: known.get(workload))
    assert workload_seconds("gemm", "cuda") == 7.0
    assert workload_seconds("memory", "cuda") == described("memory").seconds


# --- jobs of a plan


def test_three_nodes_measure_their_pairs_apart():
    stages = [(j.stage, j.placement) for j in jobs_of(3) if not j.small]
    assert stages == [
        ("node", "worker0"), ("node", "worker1"), ("node", "worker2"),
        ("pair", "worker0--worker1"), ("pair", "worker2--worker0"),
        ("cluster", "all"),
        ("training", "worker0"), ("training", "worker1"), ("training", "worker2"),
        ("scaling", "all"),
    ]  # fmt: skip


@pytest.mark.parametrize(("nodes", "jobs"), [(1, 2), (2, 6), (3, 10), (32, 82)])
def test_one_job_a_node_a_pair_and_the_cluster_and_again_for_training(nodes, jobs):
    found = jobs_of(nodes)
    assert len([j for j in found if not j.small]) == jobs
    assert len({j.name for j in found}) == len(found)
    assert all(SAFE_ID.fullmatch(j.name) for j in found)


@pytest.mark.parametrize(("nodes", "jobs"), [(1, 4), (2, 6), (3, 10)])
def test_small_jobs_ask_for_a_part_of_their_nodes_and_come_first(nodes, jobs):
    found = jobs_of(nodes, gpus=8)
    small = [j for j in found if j.small]
    assert sum(j.parts for j in small) == jobs
    assert found[: len(small)] == small
    assert {j.stage for j in small} == {"node"}
    assert [j.gpus_per_node for j in small if j.parts == 2] == [4] * nodes
    assert not any(described(w).needs_torch for j in small for w, _ in j.workloads)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_every_applicable_item_has_exactly_one_job_that_measures_its_metric(nodes):
    jobs = jobs_of(nodes)
    for item in planned(nodes):
        if item.not_applicable or item.placement == LOGIN:
            continue
        metric = LIMITS.criteria[item.criterion].metric
        measuring = [
            (j.name, w) for j in jobs for w, metrics in j.workloads
            if j.placement == item.placement and w == item.workload and metric in metrics
        ]  # fmt: skip
        assert len(measuring) == 1, item


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_workload_runs_once_a_placement_and_each_metric_once(nodes):
    for job in jobs_of(nodes):
        names = [name for name, _ in job.workloads]
        assert len(set(names)) == len(names), job
        assert all(len(set(metrics)) == len(metrics) for _, metrics in job.workloads)


def test_what_needs_no_torch_runs_first():
    for job in jobs_of(2):
        # Those that span the job begin before all others and end after them.
        known = [described(w) for w, _ in job.workloads]
        alone = [d for d in known if not d.spans_job and not d.runs_last]
        assert alone == sorted(alone, key=lambda d: d.needs_torch), job


def test_what_trains_has_jobs_of_its_own():
    for job in jobs_of(2):
        trains = {described(w).training for w, _ in job.workloads if not described(w).after}
        assert trains == {job.stage in ("training", "scaling")}, job


def test_what_looks_for_marks_is_the_first_in_the_job_after_the_one_that_leaves_them():
    jobs = jobs_of(2)
    for node in ("worker0", "worker1"):
        leaves, finds = (
            next(j for j in jobs if j.placement == node and w in dict(j.workloads))
            for w in ("tenant_marks", "tenant")
        )
        assert (leaves.stage, finds.stage) == ("node", "training")
        assert leaves.workloads[-1][0] == "tenant_marks"
        assert finds.workloads[0][0] == "tenant"
        assert dict(leaves.workloads)["tenant_marks"] == dict(finds.workloads)["tenant"]


def test_a_selection_of_what_is_looked_for_leaves_only_that():
    chosen = select(planned(2), [("tenant.shared_memory", "worker1")])
    first, second = jobs_for(chosen, LIMITS, population(2))
    assert (first.name, first.workloads) == (
        "node-worker1", (("tenant_marks", ("shared_memory",)),),
    )  # fmt: skip
    assert (second.name, second.workloads) == (
        "training-worker1", (("tenant", ("shared_memory",)),),
    )  # fmt: skip


def test_a_job_has_one_rank_a_gpu():
    (job,) = [j for j in jobs_of(4, gpus=8, model="H200 SXM") if j.stage == "cluster"]
    assert (job.ranks_per_node, job.world_size, len(job.nodes)) == (8, 32, 4)


def test_what_is_not_applicable_needs_no_job():
    gemm = [w for j in jobs_of(2) for w in j.workloads if w[0] == "gemm"]
    assert {metric for _, metrics in gemm for metric in metrics} == {"bf16", "fp32"}


def test_a_selection_needs_only_its_own_jobs():
    chosen = select(planned(3), [("gemm.bf16", "worker1")])
    (job,) = jobs_for(chosen, LIMITS, population(3))
    assert (job.name, job.workloads) == ("node-worker1", (("gemm", ("bf16",)),))


def test_two_metrics_of_a_workload_are_measured_in_one_job_with_their_references():
    (job,) = [j for j in jobs_of(2, 8, "H200 SXM") if j.name == "node-worker1"]
    metrics = dict(job.workloads)["gemm"]
    assert {"bf16", "fp16", "fp8"} <= set(metrics)
    references = job.references["gemm"]
    assert references[0] == {
        "metric": "bf16", "at": {}, "limit": 605.0, "sigma": 0.003, "delta": 0.08,
    }  # fmt: skip
    assert len({r["metric"] for r in references}) == len(references)
    assert job.references["inventory"] == []  # a value, not a rate


def test_stages_come_in_their_order_and_small_jobs_before_the_others():
    for jobs in (jobs_of(3), jobs_of(1), jobs_of(4, 8, "H200 SXM", destructive=True)):
        order = [(STAGES.index(j.stage), j.submit_order) for j in jobs]
        assert order == sorted(order)
    assert {j.stage for j in jobs_of(4, destructive=True)} == set(STAGES)


def test_what_is_measured_before_it_is_known_is_not_planned_twice():
    items = planned(2)
    assert jobs_for([*items, *items], LIMITS, population(2)) == jobs_for(
        items, LIMITS, population(2)
    )


# --- jobs that are made to fail


def test_every_way_to_fail_has_a_small_job_on_each_pair_and_the_lost_node_one():
    jobs = {j.placement: j for j in jobs_of(4, 8, "H200 SXM", destructive=True) if j.way}
    job = jobs["kill--worker2--worker3"]
    assert (job.name, job.stage) == ("training_failures-kill--worker2--worker3", "destructive")
    assert (job.nodes, job.way, job.gpus_per_node) == (("worker2", "worker3"), "kill", 4)
    assert (job.ranks_per_node, job.small is not None) == (1, True)
    assert [p for p in jobs if p.startswith("node--")] == ["node--worker0--worker1"]
    assert sum(p.startswith("kill--") for p in jobs) == 2


def test_a_node_is_made_to_fail_with_its_pair_whichever_of_it_was_selected():
    people = population(4, 8, "H200 SXM")
    items = [
        i for i in planned(4, 8, "H200 SXM", destructive=True)
        if i.placement == "kill--worker2--worker3" and i.subject == "worker3"
    ]  # fmt: skip
    assert items
    (job,) = jobs_for(items, LIMITS, people)
    assert job.nodes == ("worker2", "worker3")
    lost = [i for i in planned(4, 8, "H200 SXM", destructive=True)
            if i.placement == "node--worker0--worker1" and not i.not_applicable]  # fmt: skip
    (job,) = jobs_for(lost, LIMITS, people)
    assert job.nodes == ("worker0", "worker1")


def test_on_one_node_the_victim_has_that_node():
    jobs = [j for j in jobs_of(1, 1, destructive=True) if j.way]
    assert {j.nodes for j in jobs} == {("worker0",)}
    assert {j.placement for j in jobs} >= {"kill--worker0", "cancel--worker0"}


@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [(1, {1: 1, 2: 2, 8: 2}), (2, {1: 1, 2: 1, 4: 2, 8: 4, 16: 4})],
)
def test_a_victim_leaves_gpus_to_others(nodes, ranks):
    names = [f"n{k}" for k in range(nodes)]
    assert {gpus: victim_ranks(names, gpus) for gpus in ranks} == ranks


def test_a_small_job_has_half_of_the_gpus_or_those_that_it_asks_for():
    jobs = {j.name: j for j in jobs_of(2, 8, "H200 SXM") if j.small}
    assert jobs["isolation-worker0"].gpus_per_node == 4
    assert jobs["memory_limit-worker0--worker1"].gpus_per_node == 0
    placement = jobs["placement-worker0--worker1"]
    assert (placement.gpus_per_node, placement.ranks_per_node) == (2, 2)
    one = {j.name: j for j in jobs_of(2, 1) if j.small}
    assert one["placement-worker0--worker1"].gpus_per_node == 1


# --- names and run.json


def test_a_job_is_named_by_its_stage_its_placement_and_what_it_runs_with():
    assert _job_name("node", "n1", "") == "node-n1"
    assert _job_name("cluster", "all", "") == "cluster"
    assert _job_name("cluster", "all", "with rails_nic") == "cluster-rails_nic"
    assert _job_name("training", "n1", "training") == "training-n1"


def test_a_workload_with_variables_of_its_own_has_a_job_of_its_own():
    (item,) = [i for i in planned(2) if i.criterion == "gemm.bf16" and i.subject == "worker0"]
    own = replace(item, workload="rails_nic")
    (job,) = jobs_for([own], LIMITS, population(2))
    assert job.name == "node-rails_nic-worker0"
    assert [w for w, _ in job.workloads] == ["rails_nic"]


def test_the_plan_in_run_json_says_what_runs_where_and_how_long():
    small = replace(JOB, small=HALVES, name="small")
    first, second = plan_json([JOB, small], "cuda")
    assert first == {
        "name": "pair", "stage": "pair", "placement": "p", "nodes": ["n1", "n2"],
        "ranks_per_node": 2, "parts": 1, "small": False,
        "workloads": [
            {"name": "environment", "metrics": ["versions"]},
            {"name": "gemm", "metrics": ["bf16", "fp32"]},
        ],
        "estimated_s": round(JOB.seconds("cuda"), 1),
    }  # fmt: skip
    assert (second["parts"], second["small"]) == (2, True)
