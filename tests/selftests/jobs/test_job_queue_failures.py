"""The job scheduler on a fake cluster: jobs that fail, retries, and reasons of what is missing."""

from __future__ import annotations

import errno
import itertools
import json
from pathlib import Path

import pytest

from fixtures.errors import RunError
from fixtures.jobs.collector import ResultCollector
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.records.absence import JobKind
from fixtures.verdict.absence import of_missing
from fixtures.verdict.causes import Cause
from tests.selftests.fake_cluster import (
    COMPLETED,
    FAILED,
    PATIENCE_S,
    RUNNING,
    Conducted,
    FakeCluster,
    FakeJob,
    conduct,
    dies_at_once,
    dies_in,
    healthy,
    stays,
)
from tests.selftests.support import result_line

__all__ = ["conduct"]

pytestmark = pytest.mark.cpu


# --- trying again


def test_a_job_that_ended_early_is_submitted_again_without_what_it_died_in(conduct):
    done = conduct({"node-worker0": dies_in("gemm")})
    first = done.cluster.named("node-worker0").workloads
    again = done.cluster.named("node-worker0.2").workloads
    assert again == first[first.index("gemm") + 1 :]
    assert list(done.missing) == [("gemm", "worker0")]
    missed = done.missing["gemm", "worker0"]
    ended = done.cluster.named("node-worker0").id
    assert (missed["kind"], missed["job"], missed["attempt"]) == ("rank died", ended, 1)
    assert "was in gemm when it ended" in missed["reason"]


def test_it_is_not_submitted_again_for_ever(conduct):
    done = conduct(
        {"node-worker0": dies_at_once, "node-worker0.2": dies_at_once}, only=["node-worker0"]
    )
    assert done.submitted == ["node-worker0", "node-worker0.2"]
    assert done.records == []


def test_it_is_submitted_again_as_long_as_each_submission_leaves_a_record(conduct):
    def one_more(job: FakeJob) -> JobState:
        job.deliver(job.workloads[0])
        if len(job.workloads) > 1:
            job.start(job.workloads[1])
        return FAILED

    names = ["node-worker0", *(f"node-worker0.{k}" for k in range(2, 20))]
    done = conduct(dict.fromkeys(names, one_more), only=["node-worker0"])
    planned = len(done.planned)
    assert len(done.submitted) == (planned + 1) // 2
    assert len(done.records) == (planned + 1) // 2


def test_a_resumed_run_starts_in_a_fresh_folder_and_still_tries_again(conduct, tmp_path):
    (tmp_path / "run" / "jobs" / "node-worker0").mkdir(parents=True)
    done = conduct({"node-worker0.2": dies_at_once}, only=["node-worker0"])
    assert done.submitted == ["node-worker0.2", "node-worker0.3"]
    assert len(done.missing) == 1


def test_a_second_attempt_leaves_the_first_record_alone(conduct):
    conduct(only=["node-worker0"])
    done = conduct(only=["node-worker0"], attempts={("gemm", "worker0"): 2}, finish=False)
    done.scheduler.join(PATIENCE_S)
    assert done.record("gemm", "worker0", 1).attempt == 1
    assert done.record("gemm", "worker0", 2).attempt == 2
    attempts = {
        w["name"]: w["attempt"] for w in done.cluster.named("node-worker0.2").spec["workloads"]
    }
    assert attempts["gemm"] == 2
    assert attempts["environment"] == 1


# --- reasons


def only_kind(done: Conducted) -> str:
    """The kind of all that is missing, and nothing of it was submitted twice."""
    (kind,) = {m["kind"] for m in done.missing.values()}
    assert sorted(done.missing) == sorted(done.planned)
    assert done.submitted == ["node-worker0"]
    return str(kind)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:worker0", "never started"),
        ("(PartitionConfig)", "refused by Slurm"),
        ("BadConstraints", "refused by Slurm"),
        ("QOSMaxWallDurationPerJobLimit", "refused by Slurm"),
    ],
)
def test_a_job_that_will_never_start_is_cancelled(conduct, reason, kind):
    done = conduct({"node-worker0": stays(JobState("PENDING", reason))}, only=["node-worker0"])
    assert only_kind(done) == kind
    assert done.cluster.cancelled == ["node-worker0"]
    assert reason.strip("()") in done.missing["gemm", "worker0"]["reason"]


@pytest.mark.parametrize("reason", ["AssocGrpGRES", "(QOSGrpCpuLimit)"])
def test_a_limit_of_a_group_is_for_good_where_no_job_runs(conduct, reason):
    """Others' jobs of the association may be hidden; that no node is in use is not."""
    script = {"node-worker0": stays(JobState("PENDING", reason))}
    done = conduct(script, only=["node-worker0"], idle=True, group_s=0)
    assert only_kind(done) == "refused by Slurm"
    assert reason.strip("()") in done.missing["gemm", "worker0"]["reason"]


def test_a_limit_of_a_group_is_waited_for_where_jobs_run(conduct):
    script = {"node-worker0": stays(JobState("PENDING", "AssocGrpGRES"))}
    done = conduct(script, only=["node-worker0"], group_s=0, queue_s=0.2)
    assert only_kind(done) == "timed out in queue"


def test_a_job_that_waits_too_long_times_out_in_the_queue(conduct):
    waiting = stays(JobState("PENDING", "Priority"))
    done = conduct({"node-worker0": waiting}, only=["node-worker0"], queue_s=0)
    assert only_kind(done) == "timed out in queue"
    assert done.cluster.cancelled == ["node-worker0"]


def test_a_job_that_runs_and_says_nothing_never_started(conduct):
    done = conduct({"node-worker0": stays(RUNNING)}, only=["node-worker0"], start_s=0)
    assert only_kind(done) == "never started"
    assert "no rank wrote a line" in done.missing["gemm", "worker0"]["reason"]


def test_a_job_that_is_pending_again_has_lost_its_node(conduct):
    def requeued(job: FakeJob) -> JobState:
        job.start(job.workloads[0])
        return JobState("PENDING", "BeginTime")

    done = conduct({"node-worker0": requeued}, only=["node-worker0"])
    assert only_kind(done) == "node lost"
    assert done.cluster.cancelled == ["node-worker0"]


def test_a_job_whose_node_failed_is_not_tried_again(conduct):
    script = dies_in("inventory", JobState("NODE_FAIL"))
    assert only_kind(conduct({"node-worker0": script}, only=["node-worker0"])) == "node lost"


def test_memory_that_a_setting_of_the_site_keeps_back_is_no_fault_of_the_node(conduct, monkeypatch):
    """Another node ran the same job; it had as little memory."""
    monkeypatch.setattr(FakeCluster, "memory_limit", "MaxMemPerCPU=100")
    script = dies_in("inventory", JobState("OUT_OF_MEMORY"))
    done = conduct({"node-worker0": script})
    line = done.missing["inventory", "worker0"]
    assert (line["kind"], line["cause"]) == ("out of host memory", "set-up")
    assert line.get("cause_nodes", []) == []
    assert "MaxMemPerCPU=100" in line["reason"]


def test_a_refused_submission_settles_its_job_and_leaves_the_others_alone(conduct):
    refused = RunError("sbatch refused node-worker0: invalid account")
    done = conduct({"node-worker0": refused})
    assert {m["kind"] for m in done.missing.values()} == {"never started"}
    assert {where for _, where in done.missing} == {"worker0"}
    assert "invalid account" in done.missing["gemm", "worker0"]["reason"]
    assert done.record("allreduce", "all").nodes == ["worker1"]


def test_a_rank_that_falls_silent_has_hung_and_the_rest_is_measured(conduct):
    done = conduct({"node-worker0": dies_in("gemm", RUNNING)}, only=["node-worker0"], silence_s=0)
    assert {key: m["kind"] for key, m in done.missing.items()} == {("gemm", "worker0"): "rank hung"}
    assert [event for event in done.cluster.events if event[0] != "run"] == [
        ("submit", "node-worker0"), ("cancel", "node-worker0"), ("submit", "node-worker0.2"),
    ]  # fmt: skip


def test_an_error_of_a_rank_gives_the_kind(conduct):
    def raises(job: FakeJob) -> JobState:
        job.start("environment")
        job.say("error", 1, "environment", kind="raised", error="CUDA out of memory", stack="")
        return FAILED

    done = conduct({"node-worker0": raises}, only=["node-worker0"])
    missed = done.missing["environment", "worker0"]
    assert (missed["kind"], missed["node"], missed["rank"]) == ("out of GPU memory", "worker0", 1)
    assert len(done.missing) == 1


def test_the_last_words_of_a_job_that_never_wrote_are_kept(conduct):
    def crashes(job: FakeJob) -> JobState:
        log = Path(job.spec["directory"]) / "submitit" / "1_0_log.out"
        log.parent.mkdir()
        log.write_bytes(b"\xff\nModuleNotFoundError: No module named 'torch'\n")
        return FAILED

    done = conduct({"node-worker0": crashes}, only=["node-worker0"])
    assert only_kind(done) == "import failure"
    assert "No module named 'torch'" in done.missing["gemm", "worker0"]["reason"]


def test_lines_of_another_run_are_nobody_s(conduct):
    def foreign(job: FakeJob) -> JobState:
        for k in job.ranks:
            job.say("result", k, "gemm", nonce="f" * 32)
        return FAILED

    assert conduct({"node-worker0": foreign}, only=["node-worker0"]).records == []


@pytest.mark.parametrize("wrong", [{"start": float("inf")}, {"device": None}, {"rank": "x"}])
def test_a_result_that_cannot_be_trusted_is_missing_with_the_reason(conduct, wrong):
    def lies(job: FakeJob) -> JobState:
        job.deliver(*(w for w in job.workloads if w != "gemm"))
        for k in job.ranks:
            path = Path(job.spec["directory"]) / f"rank{k}.jsonl"
            line = {**result_line(k), "placement": "worker0", **wrong}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return COMPLETED

    done = conduct({"node-worker0": lies}, only=["node-worker0"])
    assert list(done.missing) == [("gemm", "worker0")]
    assert done.missing["gemm", "worker0"]["reason"].startswith("unusable ")


# --- what nodes do not see


BOTH = ("node-worker0", "node-worker1")


def unseen(job: FakeJob) -> JobState:
    """Its interpreter is not there: no rank writes a line."""
    folder = Path(job.spec["directory"]) / "submitit"
    folder.mkdir()
    (folder / f"{job.id}_0_log.out").write_text(
        "slurmstepd: error: execve(): /home/u/.venv/bin/python: No such file or directory\n"
    )
    return FAILED


def test_what_one_node_alone_does_not_see_is_that_node_s_fault(conduct):
    """Its job fails at once, while the other has not begun yet."""
    asked = itertools.count()

    def begins_later(job: FakeJob) -> JobState:
        if next(asked) < 10:
            job.asked = False
            return RUNNING
        return healthy(job)

    done = conduct({"node-worker0": unseen, "node-worker1": begins_later}, only=BOTH)
    lines = [m for (_, placement), m in done.missing.items() if placement == "worker0"]
    assert lines
    for line in lines:
        assert line["kind"] == "not visible on the nodes"
        assert of_missing(line, ["worker0"]) == (Cause.NODE, ["worker0"])
        assert "worker1 ran its job without this" in line["reason"]
    assert {p for _, p in done.records} == {"worker1"}


def test_a_job_that_came_before_its_directory_was_shown_blames_no_node(conduct):
    """It left no log: Slurm could not open it, for now."""
    done = conduct({"node-worker0": stays(FAILED)}, only=BOTH)
    assert {p for _, p in done.records} == {"worker1"}
    for line in done.missing.values():
        assert of_missing(line, ["worker0"]) == (Cause.SETUP, [])


def test_what_no_node_sees_is_the_set_up(conduct):
    done = conduct({"node-worker0": unseen, "node-worker1": unseen}, only=BOTH)
    assert sorted(done.missing) == sorted(done.planned)
    for line in done.missing.values():
        assert of_missing(line, [line["placement"]]) == (Cause.SETUP, [])


# --- what costs one submission alone


def test_an_error_about_one_job_settles_that_job_and_no_other(conduct, monkeypatch):
    real = ResultCollector.collect

    def broken(self: ResultCollector, s: Submission) -> bool:
        if s.name == "node-worker1":
            raise RecursionError("maximum recursion depth exceeded")
        return real(self, s)

    monkeypatch.setattr(ResultCollector, "collect", broken)
    done = conduct(only=["node-worker0", "node-worker1"])
    assert done.scheduler.error is None
    assert {placement for _, placement in done.missing} == {"worker1"}
    assert {placement for _, placement in done.records} == {"worker0"}
    why = done.missing["gemm", "worker1"]
    assert why["kind"] == JobKind.UNUSABLE
    assert "on worker1: its results cannot be used: suite error" in why["reason"]
    assert "RecursionError" in why["reason"]
    assert "RecursionError" in (done.directory.jobs / "suite-error.txt").read_text()
    assert "node-worker1" in done.cluster.cancelled or done.cluster.named("node-worker1").state


def test_an_error_of_the_storage_is_that_of_the_whole_run(conduct, monkeypatch):
    def full(self: ResultCollector, s: Submission) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResultCollector, "collect", full)
    done = conduct(only=["node-worker0", "node-worker1"])
    assert isinstance(done.scheduler.error, OSError)
    assert sorted(done.missing) == sorted(done.planned)
