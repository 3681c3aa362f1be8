"""Minutes and GPU-hours of a plan, as --plan prints them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fixtures import entry
from fixtures.entry import SmallJob
from fixtures.plan import durations
from fixtures.plan.estimate import gpu_hours, run_seconds, stage_seconds, summary
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import Job, jobs_for, workload_seconds
from fixtures.records.files import read_json
from fixtures.thresholds import loader
from tests.selftests.support import DATA, SHIPPED, population

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


def whole(nodes: int = 2, gpus: int = 2, model: str = "cpu", tier: str = "standard"):
    people = population(nodes, gpus, model)
    return planned_list(LIMITS, people, tier=tier), people


@dataclass
class Timed:
    """What the estimate asks of a job."""

    takes_s: float
    stage: str = "node"
    submit_order: int = 3
    way: str = ""
    gpus: int = 0

    def seconds(self, device: str) -> float:
        return self.takes_s if device == "cuda" else 0


def test_jobs_of_one_turn_run_beside_each_other_and_turns_one_after_the_other():
    jobs = [Timed(10), Timed(30), Timed(20, submit_order=0), Timed(5, submit_order=0, way="kill")]
    assert stage_seconds(jobs, "cuda") == 30 + 20 + 5
    assert stage_seconds([], "cuda") == 0


def test_stages_run_one_after_the_other():
    jobs = [Timed(10), Timed(30), Timed(7, stage="cluster"), Timed(1000, stage="locate")]
    assert run_seconds(jobs, "cuda") == 30 + 7


def test_gpu_hours_are_those_that_are_allocated():
    assert gpu_hours([Timed(3600, gpus=4), Timed(1800, gpus=2)], "cuda") == 5


def test_the_summary_names_every_job_and_the_totals():
    items, people = whole()
    jobs = jobs_for(items, LIMITS, people)
    lines = summary(jobs, items, people)
    for job in jobs:
        assert any(job.name in line for line in lines)
    (total,) = [line for line in lines if line.startswith("total")]
    assert total.startswith("total    12 jobs, ")
    left_out = sum(1 for i in items if i.not_applicable)
    recorded = sum(1 for i in items if i.recorded)
    judged = len(items) - left_out - recorded
    assert 0 < recorded < judged
    assert f"{judged} verdicts, {recorded} recorded, {left_out} not applicable" in total


@pytest.mark.parametrize(("name", "model"), [("h200-2x2", "H200 SXM"), ("sandbox-2x2-cpu", "cpu")])
def test_the_plan_s_minutes_are_near_those_that_the_recorded_run_took(name, model):
    items, people = whole(2, 2, model)
    recorded = {path.name.partition("@")[0] for path in (DATA / name / "records").iterdir()}
    node = [
        replace(job, workloads=tuple(w for w in job.workloads if w[0] in recorded))
        for job in jobs_for(items, LIMITS, people)
        if job.name == "node-worker0"
    ]
    jobs = read_json(DATA / name / "run.json")["durations"]["jobs"]
    # A stage takes as long as its slowest node.
    longest = max(ended - began for job, (began, ended) in jobs.items() if job.startswith("node-"))
    took = longest + durations.start_s(people.device, small=False)
    assert 0.8 * took < stage_seconds(node, people.device) < 1.25 * took


def test_a_workload_that_was_never_recorded_goes_by_its_own_estimate_and_is_named():
    items, people = whole(2, 8, "H200 SXM")
    jobs = jobs_for(items, LIMITS, people)
    assert durations.seconds("rails", "cuda") is None
    estimate = entry.describe(entry.module_of("rails")).seconds
    assert workload_seconds("rails", "cuda") == estimate
    (said,) = [line for line in summary(jobs, items, people) if "never measured" in line]
    assert "rails" in said
    assert "gemm" not in said


def test_a_line_of_the_plan_says_nodes_ranks_parts_seconds_and_workloads():
    job = Job(
        name="node-a", stage="node", placement="a", nodes=("a",), ranks_per_node=2,
        gpus_per_node=4, workloads=(("gemm", ("bf16",)), ("environment", ("versions",))),
    )  # fmt: skip
    halves = replace(job, name="two-a", small=SmallJob(halves=True), gpus_per_node=1)
    lines = summary([halves, job], [], population(1, 4, "H200 SXM"))
    for line, parts, took in ((lines[0], "x 2 jobs, ", halves), (lines[1], ", ", job)):
        assert f" 1 node x 2 ranks {parts}".replace(" , ", ", ") in line
        assert line.endswith(f"{took.seconds('cuda'):.0f} s: gemm, environment")
    assert lines[2].startswith("node     3 jobs, ")
    assert lines[3].startswith("total    3 jobs, ")
    assert not [line for line in lines if line.startswith("pair")]
    assert "; ".join(durations.sources("cuda")) in lines[-1]
