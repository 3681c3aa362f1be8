"""The job scheduler on a fake cluster: order, gates, a shared cluster, and the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from fixtures.jobs import job_queue, submission_queue
from fixtures.jobs.failure import Failure
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from fixtures.records.files import read_json
from tests.selftests.fake_cluster import (
    LIMITS,
    PATIENCE_S,
    RUNNING,
    FakeJob,
    Refusal,
    conduct,
    dies_at_once,
    dies_in,
    healthy,
    stays,
)

__all__ = ["conduct"]

pytestmark = pytest.mark.cpu


# --- order


def test_a_job_is_told_near_which_values_one_round_is_not_enough(conduct):
    done = conduct()
    spec = read_json(done.directory.job("node-worker0") / "spec.json")
    (gemm,) = [w for w in spec["workloads"] if w["name"] == "gemm"]
    told = {r["metric"]: (r["at"], r["limit"]) for r in gemm["references"]}
    rows = {m: LIMITS.criteria[f"gemm.{m}"].limit_for({"model": "cpu"}) for m in told}
    assert set(told) == {"bf16", "fp32"}
    assert told == {m: ({}, row.fail_below.number) for m, row in rows.items()}


def test_everything_that_was_planned_becomes_a_record(conduct):
    done = conduct()
    assert sorted(done.records) == sorted(done.planned)
    assert done.missing == {}
    assert done.cluster.cancelled == []
    assert done.scheduler.error is None


def test_all_jobs_of_a_stage_are_submitted_before_the_first_is_awaited(conduct):
    events = conduct(nodes=3).cluster.events
    submits = [
        k for k, (event, name) in enumerate(events) if (event, name[:4]) == ("submit", "node")
    ]
    first = next(k for k, (event, _) in enumerate(events) if event == "run")
    assert len(submits) == 3
    assert max(submits) < first


def test_what_is_to_run_first_has_ended_before_the_plan_begins(conduct):
    asked = Job(
        name="asked-1", stage="asked", placement="asked-1", nodes=("worker0", "worker1"),
        ranks_per_node=2, workloads=(("allreduce", ("busbw",)),),
    )  # fmt: skip
    done = conduct(first=lambda measure, lost: measure([asked]), finish=False)
    done.planned.append(("allreduce", "asked-1"))
    done.finish()
    assert done.submitted[0] == "asked-1"
    assert done.record("allreduce", "asked-1").world_size == 4
    events = done.cluster.events
    assert events.index(("run", "asked-1")) < events.index(("submit", done.submitted[1]))


def test_small_jobs_go_first_and_two_that_wait_for_each_other_before_all(conduct):
    submitted = conduct(nodes=2).submitted
    kinds = [name.split("-")[0] for name in submitted]
    assert kinds[:4] == ["isolation"] * 4
    assert kinds[4:6] == ["memory_limit", "placement"]
    assert kinds[6:] == ["node", "node", "cluster"]


def test_two_jobs_that_share_a_node_make_one_record(conduct):
    done = conduct(nodes=1)
    record = done.record("isolation", "worker0")
    assert [(r.rank, r.node) for r in record.ranks] == [(0, "worker0"), (1, "worker0")]
    both = [job.id for job in done.cluster.jobs.values() if job.name == "isolation-worker0"]
    assert record.job["id"] == ",".join(both)


def test_of_two_jobs_that_belong_together_one_that_fails_ends_the_other(conduct):
    def script(job: FakeJob) -> JobState:
        return dies_at_once(job) if job.part else RUNNING

    done = conduct({"isolation-worker0": script}, nodes=1)
    assert done.missing["isolation", "worker0"]["kind"] == "rank died"
    assert set(done.cluster.cancelled) == {"isolation-worker0"}


def test_a_small_job_that_failed_leaves_no_node_out(conduct):
    done = conduct(
        {"memory_limit-worker0--worker1": dies_at_once, "isolation-worker0": dies_at_once}
    )
    assert "cluster" in done.submitted
    assert done.record("allreduce", "all").nodes == ["worker0", "worker1"]


BUSY = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def test_a_job_behind_others_on_its_node_waits_though_slurm_speaks_of_down_nodes(conduct):
    waited: list[FakeJob] = []

    def script(job: FakeJob) -> JobState:
        waited.append(job)
        threading.Timer(0.1, start, [job]).start()
        return JobState("PENDING", BUSY)

    def start(job: FakeJob) -> None:
        job.state = RUNNING
        job.state = healthy(job)

    done = conduct({"node-worker0": script}, nodes=1)
    assert len(waited) == 1
    assert done.missing == {}


def test_a_stage_opens_when_all_jobs_of_the_one_before_have_delivered(conduct):
    events = conduct(nodes=3).cluster.events
    names = [name for event, name in events if event == "submit"]
    assert sorted(names[-6:-3]) == ["node-worker0", "node-worker1", "node-worker2"]
    assert sorted(names[-3:-1]) == ["pair-worker0--worker1", "pair-worker2--worker0"]
    assert names[-1] == "cluster"
    for later, earlier in (("pair", "node"), ("cluster", "pair")):
        opened = min(k for k, (e, n) in enumerate(events) if e == "submit" and n.startswith(later))
        ran = [k for k, (e, n) in enumerate(events) if e == "run" and n.startswith(earlier)]
        assert max(ran) < opened


def test_where_nothing_queues_a_job_waits_until_the_ranks_before_it_have_ended(conduct):
    order: list[str] = []

    def ends(job: FakeJob) -> None:
        order.append(f"{job.name} has ended")
        job.state = healthy(job)

    def delivers(job: FakeJob) -> JobState:
        job.deliver(*job.workloads)
        threading.Timer(0.1, ends, [job]).start()
        return RUNNING

    def begins(job: FakeJob) -> JobState:
        order.append(job.name)
        return healthy(job)

    scripts = {"node-worker0": delivers, "cluster": begins}
    conduct(scripts, only=["node-worker0", "cluster"], queues=False)
    assert order == ["node-worker0 has ended", "cluster"]


def test_a_job_file_says_what_a_later_process_needs_to_find_the_job(conduct):
    done = conduct()
    job = json.loads((done.directory.job("cluster") / "job.json").read_text())
    assert (job["id"], job["backend"], job["nodes"]) == (
        done.cluster.named("cluster").id, "fake", ["worker0", "worker1"],
    )  # fmt: skip
    assert job["started"] <= job["ended"]


# --- gates and reduced sets


def failing(*nodes: str) -> Callable[[str], Failure | None]:
    """A gate that these nodes do not pass."""
    return lambda node: (
        Failure(JobKind.LEFT_OUT, "it is ill", follows_from=f"inventory@{node}")
        if node in nodes
        else None
    )


def test_a_node_that_failed_a_gate_is_left_out_of_later_stages(conduct):
    done = conduct(gate=failing("worker0"))
    assert done.cluster.named("cluster").spec["nodes"] == ["worker1"]
    assert done.record("allreduce", "all").nodes == ["worker1"]
    assert done.missing == {}


def test_a_node_whose_job_left_a_record_out_is_left_out_of_later_stages(conduct):
    done = conduct({"node-worker1": dies_in("gemm")})
    assert done.cluster.named("cluster").spec["nodes"] == ["worker0"]
    assert list(done.missing) == [("gemm", "worker1")]


def test_a_pair_with_a_node_that_was_left_out_is_not_run_and_says_so(conduct):
    done = conduct(nodes=3, gate=failing("worker2"))
    assert "pair-worker2--worker0" not in done.submitted
    reasons = {m["reason"] for (_, where), m in done.missing.items() if "worker2" in where}
    assert reasons == {"worker2 was left out: it is ill"}
    assert {m["kind"] for m in done.missing.values()} == {"left out"}
    assert {m["follows_from"] for m in done.missing.values()} == {"inventory@worker2"}
    assert done.record("allreduce", "all").nodes == ["worker0", "worker1"]


def test_without_any_node_left_the_later_stages_are_not_run(conduct):
    done = conduct(gate=failing("worker0", "worker1"))
    assert "cluster" not in done.submitted
    reason = done.missing["allreduce", "all"]["reason"]
    assert reason == "worker0 was left out: it is ill; worker1 was left out: it is ill"


# --- a shared cluster


@pytest.mark.parametrize("cap", [1, 3])
def test_there_are_never_more_jobs_in_the_queue_than_allowed(conduct, cap):
    jobs = [f"node-worker{k}" for k in range(5)]
    done = conduct(nodes=5, only=jobs, max_jobs=cap)
    assert sorted(done.records) == sorted(done.planned)
    assert done.cluster.most == cap


def test_two_jobs_that_wait_for_each_other_are_submitted_together_whatever_the_cap(conduct):
    done = conduct(only=["isolation-worker0", "isolation-worker1"], max_jobs=1)
    assert sorted(done.records) == sorted(done.planned)
    assert done.cluster.most == 2


def test_a_busy_slurmctld_is_asked_again_later(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0", "node-worker1"], refusals=[Refusal(False)] * 5)
    assert sorted(done.records) == sorted(done.planned)
    assert sorted(done.submitted) == ["node-worker0", "node-worker1"]


def test_a_job_that_was_taken_though_sbatch_failed_is_not_submitted_twice(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0", "node-worker1"], refusals=[Refusal(True)] * 2)
    assert sorted(done.records) == sorted(done.planned)
    assert sorted(done.submitted) == ["node-worker0", "node-worker1"]


LIMITED = Refusal(False, "AssocMaxSubmitJobLimit")


@pytest.mark.parametrize("others_queued", [False, True])
def test_a_limit_of_submitted_jobs_is_for_good_if_there_are_none(
    conduct, monkeypatch, others_queued
):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    refusals = [LIMITED] * (3 if others_queued else 1000)
    done = conduct(only=["node-worker0"], refusals=refusals, others_queued=others_queued)
    if others_queued:  # one day they have ended
        assert sorted(done.records) == sorted(done.planned)
    else:
        assert {m["kind"] for m in done.missing.values()} == {"refused by Slurm"}
        assert "AssocMaxSubmitJobLimit" in done.missing["gemm", "worker0"]["reason"]


def test_a_slurmctld_that_stays_busy_is_given_up_after_the_queue_s_deadline(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0"], refusals=[Refusal(False)] * 1000, queue_s=0.2)
    # Of the scheduler: the nodes, of which nobody knows anything, are not to blame.
    assert {m["kind"] for m in done.missing.values()} == {"timed out in queue"}
    assert "Socket timed out" in done.missing["gemm", "worker0"]["reason"]


def test_a_job_that_was_taken_in_doubt_is_cancelled_at_the_end(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (60.0, 60.0))
    done = conduct(only=["node-worker0"], refusals=[Refusal(True)], finish=False)
    while not done.cluster.jobs:
        time.sleep(0.01)
    done.scheduler.stop("interrupted")
    done.finish()
    assert done.cluster.cancelled == ["node-worker0"]


def test_what_was_measured_does_not_stay_in_memory(conduct):
    """A stage of a thousand nodes is as large in memory as the jobs that run at a time."""
    done = conduct(only=["node-worker0", "node-worker1"])
    assert len(done.records) > 10
    assert all(s.lines == [] and s.tails == [] for s in done.scheduler._active)


def test_few_files_are_looked_into_at_a_time_and_all_of_them_in_turn(conduct, monkeypatch):
    monkeypatch.setattr(job_queue, "FILES_PER_TICK", 2)
    done = conduct(nodes=3, only=[f"node-worker{k}" for k in range(3)])
    assert sorted(done.records) == sorted(done.planned)


# --- the end


def test_stop_cancels_what_runs_and_says_why(conduct):
    done = conduct({"node-worker0": stays(RUNNING)}, finish=False)
    assert done.cluster.asked.wait(PATIENCE_S)
    done.scheduler.stop("interrupted by Ctrl-C")
    done.finish()
    assert "node-worker0" in done.cluster.cancelled
    assert "cluster" not in done.submitted
    assert done.missing["gemm", "worker0"]["reason"] == "interrupted by Ctrl-C"
    assert all(job.state.ended for job in done.cluster.jobs.values())


def broken_gate(node: str) -> Failure | None:
    raise ZeroDivisionError("a bug of ours")


def test_a_suite_error_in_the_thread_settles_everything(conduct):
    done = conduct(gate=broken_gate)
    assert isinstance(done.scheduler.error, ZeroDivisionError)
    assert "a bug of ours" in (done.directory.jobs / "suite-error.txt").read_text()
    assert {where for _, where in done.missing} == {"all"}
    assert "suite error" in done.missing["allreduce", "all"]["reason"]


def test_a_suite_error_while_jobs_run_cancels_them(conduct):
    def broken(job: FakeJob) -> JobState:
        raise ZeroDivisionError("a bug of ours")

    done = conduct({"node-worker0": stays(RUNNING), "node-worker1": broken})
    assert isinstance(done.scheduler.error, ZeroDivisionError)
    assert "node-worker0" in done.cluster.cancelled
    assert sorted(done.missing) == sorted(done.planned)
