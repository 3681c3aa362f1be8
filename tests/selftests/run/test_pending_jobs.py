"""Which records a session still has to measure, and the jobs that it needs for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plan.items import Item, planned_list
from fixtures.run import pending_jobs
from fixtures.run.pending_jobs import PendingJobs, SessionPlanner
from fixtures.run.run import Run
from fixtures.thresholds import loader
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome
from tests.selftests.run.small_run import PEOPLE, small_run
from tests.selftests.support import SHIPPED, node_record, population, record, save

pytestmark = pytest.mark.cpu

GEMM = ("gemm", "worker0")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path)


def planner(run: Run, *outcomes: Outcome, **more: Any) -> SessionPlanner:
    repeat = frozenset(outcomes or (Outcome.NOT_MEASURED,))
    return replace(run.planner(), outcomes_to_repeat=repeat, **more)


def chosen(run: Run, *criteria: str, node: str = "worker0") -> list[Item]:
    return [i for i in run.items if i.criterion in criteria and i.subject == node]


def planned(run: Run, items: list[Item], *outcomes: Outcome, **more: Any) -> PendingJobs:
    return planner(run, *outcomes, **more).plan(run.items, items)


def workloads(found: PendingJobs) -> list[tuple[str, list[str]]]:
    return [(j.name, [w for w, _ in j.workloads]) for j in found.jobs]


def test_a_new_run_measures_what_is_selected_and_applicable(run):
    found = planned(run, chosen(run, "gemm.bf16", "gemm.spread", "allreduce.latency"))
    assert found.expected == {GEMM: 1}
    assert workloads(found) == [("node-worker0", ["gemm"])]
    (away,) = chosen(run, "allreduce.latency")
    assert away.not_applicable


def test_a_record_that_stands_is_judged_and_one_that_does_not_is_measured_again(run):
    items = chosen(run, "gemm.bf16")
    save(node_record(650, 650), run.directory)
    assert planned(run, items) == PendingJobs({GEMM: 1}, [])
    save(node_record(500, 500), run.directory)
    assert planned(run, items) == PendingJobs({GEMM: 1}, [])
    again = planned(run, items, Outcome.FAIL)
    assert again.expected == {GEMM: 2}
    assert workloads(again) == [("node-worker0", ["gemm"])]
    # Half of the ranks: nothing can be said by it.
    save(node_record(650), run.directory)
    assert planned(run, items).expected == {GEMM: 2}


def test_without_a_record_nothing_is_to_be_repeated(run):
    assert planner(run)._records_to_repeat(run.items) == set()


class Void:
    """Evidence of records that a repair voids, for these reasons."""

    causes: dict[str, Cause]

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def get(self, workload: str, placement: str) -> Any:
        cause = self.causes.get(placement)
        if cause is None:
            return {"reason": "it was never measured"}
        return replace(node_record(650, 650), void={placement: SimpleNamespace(cause=cause)})


def test_a_recertification_begins_with_what_the_repair_voids(run, monkeypatch):
    monkeypatch.setattr(pending_jobs, "Evidence", Void)
    for placement in ("worker0", "worker1"):
        save(node_record(650, 650, node=placement), run.directory)
    items = [i for i in run.items if i.criterion == "gemm.bf16"]
    Void.causes = {"worker0": Cause.REPLACED, "worker1": Cause.NODE}
    found = planned(run, items, only_voided=True)
    assert found.expected == {GEMM: 2, ("gemm", "worker1"): 1}
    assert workloads(found) == [("node-worker0", ["gemm"])]
    Void.causes = {}
    assert planned(run, items, only_voided=True).jobs == []


def test_a_recertification_does_not_measure_what_has_no_record(run):
    assert planned(run, chosen(run, "gemm.bf16"), only_voided=True) == PendingJobs({}, [])


def test_what_is_looked_for_is_left_anew_by_the_job_before(tmp_path):
    limits, people = loader.load(SHIPPED), population(1)
    items = planned_list(limits, people)
    run = small_run(tmp_path, people, thresholds=limits, items=items)
    selected = [i for i in items if i.workload in ("tenant", "slurm")]
    assert {i.placement for i in selected} == {"worker0", "login"}
    found = planner(run).plan(items, selected)
    expected = {("tenant", "worker0"): 1, ("tenant_marks", "worker0"): 1, ("slurm", "login"): 1}
    wanted = {(i.workload, i.placement) for i in selected if not i.not_applicable}
    assert found.expected == {k: n for k, n in expected.items() if k in wanted or "marks" in k[0]}
    assert workloads(found) == [
        ("node-worker0", ["tenant_marks"]), ("training-worker0", ["tenant"]),
    ]  # fmt: skip


def test_the_inventory_is_taken_of_nodes_with_records(run):
    assert planner(run).inventory_jobs() == []
    save(node_record(650, 650), run.directory)
    ((job, attempt),) = planner(run).inventory_jobs()
    assert (job.name, attempt, job.nodes) == ("inventory-worker0", 1, ("worker0",))
    assert [w for w, _ in job.workloads] == ["inventory"]
    save(record(*node_record(1, 1).ranks, workload="inventory"), run.directory)
    ((_, attempt),) = planner(run).inventory_jobs()
    assert attempt == 2


def test_a_record_of_several_nodes_asks_for_the_inventory_of_each_that_may_be_repaired(run):
    save(node_record(650, 650), run.directory, name="allreduce@all.json")
    names = [job.name for job, _ in planner(run).inventory_jobs()]
    assert names == ["inventory-worker0", "inventory-worker1"]
    only = planner(run, repaired=frozenset(["worker1", "worker9"])).inventory_jobs()
    assert [job.name for job, _ in only] == ["inventory-worker1"]


def test_whoever_is_measured_beside_a_repaired_node_is_looked_at_once(run):
    save(node_record(650, 650), run.directory, name="allreduce@all.json")
    recertified = planner(run, repaired=frozenset(["worker1"]))
    pair = [SimpleNamespace(nodes=("worker0", "worker1"))]
    asked = recertified.inventory_jobs(pair, {"worker1"})
    assert [job.name for job, _ in asked] == ["inventory-worker0"]
    assert recertified.inventory_jobs(pair, {"worker0", "worker1"}) == []


def test_what_slurm_said_is_no_record_of_a_node(tmp_path):
    limits, people = loader.load(SHIPPED), population(2)
    run = small_run(tmp_path, people, thresholds=limits)
    save(node_record(650, 650), run.directory, name="slurm@login.json")
    assert planner(run).inventory_jobs() == []


def test_a_node_that_has_not_reached_its_hours_gets_a_further_slice(run, monkeypatch):
    asked = []

    def slices(directory: Any, found: Any, planned: set[tuple[str, str]], hours: float) -> Any:
        asked.append((found, planned, hours))
        return {GEMM}

    monkeypatch.setattr(pending_jobs.burn_in, "read", lambda devices, nodes: nodes)
    monkeypatch.setattr(pending_jobs.burn_in, "slices_to_add", slices)
    save(node_record(650, 650), run.directory)
    items = [i for i in run.items if i.criterion in ("gemm.bf16", "allreduce.pair")]
    assert planned(run, items).expected[GEMM] == 1
    assert asked == []
    assert planned(run, items, hours=24).expected[GEMM] == 2
    assert asked == [(PEOPLE.nodes, {GEMM, ("gemm", "worker1")}, 24)]
