"""When a job has failed: limits of its time in the queue, at its start, in silence and in all."""

# Length: each limit of a job's time, with its cases

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.jobs import deadlines
from fixtures.jobs.deadlines import DeadlineMonitor, Deadlines
from fixtures.jobs.failure import Failure
from fixtures.jobs.log_events import LogPart
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job, Victim
from fixtures.records.absence import JobKind

pytestmark = pytest.mark.cpu

NOW = 10_000.0
STARTED = {"event": "started", "rank": 0, "node": "n1", "workload": "gemm", "time": 1.0}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: NOW))


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    job = Job(
        name="node-n1", stage="node", placement="n1", nodes=("n1", "n2"), ranks_per_node=2,
        workloads=(("environment", ("versions",)),),
    )  # fmt: skip
    folder = tmp_path / "run" / "jobs" / "node-n1"
    (folder / "submitit").mkdir(parents=True)
    made = Submission(job=job, name="node-n1", directory=folder, number=1)
    made.submitted_since = NOW - 10
    return made


def monitor(*, usable: bool = True, idle: bool = False, **limits: float) -> DeadlineMonitor:
    return DeadlineMonitor(
        Deadlines(**limits), device="cuda", usable=lambda job: usable, all_idle=lambda: idle
    )


def is_in(s: Submission, state: str, reason: str = "", **more: Any) -> Submission:
    s.parts["7"] = JobState(state, reason, **more)
    return s


def kind(s: Submission, m: DeadlineMonitor | None = None) -> JobKind | None:
    failure = (m or monitor()).failure_of(s)
    return None if failure is None else failure.kind


def log(s: Submission, text: str = "") -> None:
    (s.directory / "submitit" / "7_0_log.out").write_text(text)


def rank_wrote(s: Submission, *ages: float, **line: Any) -> None:
    """Each rank's file last grew so many seconds ago; `line`: what stands in one of them."""
    s.tails = [SimpleNamespace(last_growth=NOW - age) for age in ages]  # type: ignore[misc]
    s.lines = [{"event": "started", **line}]


# --- queue and start


SUBMITIT = "submitit INFO (2026-11-29 08:36:24,246) - {}\n"


def test_ranks_that_wait_for_their_job_s_file_do_not_see_the_run_directory(submission):
    """An image of which nobody said that it mounts the run directory."""
    is_in(submission, "RUNNING").running_since = NOW - 200
    file = submission.directory / "submitit" / "7_submitted.pkl"
    begun = SUBMITIT.format("Starting with JobEnvironment(job_id=7, hostname=n1)")
    log(submission, begun + SUBMITIT.format(f"Loading pickle: {file}"))
    failure = monitor(start_s=180).failure_of(submission)
    assert failure is not None
    assert failure.kind is JobKind.NOT_VISIBLE
    assert str(file) in failure.reason
    run = submission.directory.parents[1]
    assert f"--container-mounts={run}:{run}" in failure.reason
    # One that has got its file has its run directory.
    log(submission, begun + SUBMITIT.format(f"Loading pickle: {file}") + SUBMITIT.format("x"))
    assert kind(submission, monitor(start_s=180)) is JobKind.NEVER_STARTED


def test_a_job_runs_since_it_was_first_seen_to_run(submission):
    assert kind(is_in(submission, "PENDING", "Priority")) is None
    assert submission.running_since is None
    assert kind(is_in(submission, "RUNNING")) is None
    assert submission.running_since == NOW
    submission.running_since = NOW - 5
    assert kind(submission) is None
    assert submission.running_since == NOW - 5


@pytest.mark.parametrize(("waited", "expected"), [(3600, None), (3601, JobKind.QUEUE_TIMEOUT)])
def test_a_job_may_wait_in_the_queue_as_long_as_it_is_given(submission, waited, expected):
    submission.submitted_since = NOW - waited
    assert kind(is_in(submission, "PENDING", "Priority")) is expected


@pytest.mark.parametrize(("ran", "expected"), [(180, None), (181, JobKind.NEVER_STARTED)])
def test_a_job_that_runs_has_three_minutes_for_its_first_line(submission, ran, expected):
    log(submission)
    submission.running_since = NOW - ran
    submission.submitted_since = NOW - 9999  # which no longer counts
    assert kind(is_in(submission, "RUNNING")) is expected


def test_a_job_that_wrote_nothing_names_its_nodes(submission):
    log(submission)
    submission.running_since = NOW - 181
    failure = monitor().failure_of(is_in(submission, "RUNNING"))
    assert failure is not None
    assert "n1, n2" in failure.reason


def test_a_job_that_runs_without_its_log_file_does_not_see_the_run_directory(submission):
    submission.parts["7"] = JobState("RUNNING")
    submission.running_since = NOW - 61
    failure = monitor().failure_of(submission)
    assert failure is not None
    assert failure.kind is JobKind.NOT_VISIBLE
    assert str(submission.directory) in failure.reason
    # With its log there, or a prolog that may take its time, it is given time.
    assert monitor(log_s=600).failure_of(submission) is None
    (submission.directory / "submitit" / "7_0_log.out").touch()
    assert monitor().failure_of(submission) is None


def test_a_job_that_ended_without_its_log_file_did_not_see_it_either(submission):
    submission.parts["7"] = JobState("FAILED", exit_code="1:0")
    assert deadlines.diagnose_ended(submission).kind is JobKind.NOT_VISIBLE
    (submission.directory / "submitit" / "7_0_log.out").write_text("srun: error\n")
    assert deadlines.diagnose_ended(submission).kind is not JobKind.NOT_VISIBLE


def test_a_log_file_is_waited_for_a_minute(submission):
    submission.running_since = NOW - 60
    assert kind(is_in(submission, "RUNNING")) is None
    assert deadlines.has_log(submission) is False
    log(submission)
    assert deadlines.has_log(submission) is True


@pytest.mark.parametrize(
    ("state", "lines", "unseen"),
    [("FAILED", [], True), ("COMPLETED", [], True), ("CANCELLED", [], False),
     ("FAILED", [STARTED], False)],
)  # fmt: skip
def test_only_a_job_that_ended_by_itself_and_wrote_nothing_has_not_seen_its_directory(
    submission, state, lines, unseen
):
    submission.lines = lines
    failure = deadlines.diagnose_ended(is_in(submission, state, exit_code="2:0"))
    assert (failure.kind is JobKind.NOT_VISIBLE) is unseen
    if unseen:
        assert "exit 2)" in failure.reason
        assert "exit ?" in deadlines.diagnose_ended(is_in(submission, state)).reason


@pytest.mark.parametrize(
    ("reason", "usable", "expected"),
    [
        ("(PartitionConfig)", True, JobKind.REFUSED),
        ("(ReqNodeNotAvail, UnavailableNodes:n1)", True, JobKind.NEVER_STARTED),
        ("(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
         "partitions)", True, None),
        ("(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
         "partitions)", False, JobKind.NEVER_STARTED),
        ("(Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_"
         "partitions)", True, None),
        ("(Priority)", False, None),
        ("(MaxMemPerLimit)", True, JobKind.REFUSED),
        ("(AssocGrpCPUMinutesLimit)", True, JobKind.REFUSED),
        ("(launch failed requeued held)", True, JobKind.NEVER_STARTED),
    ],
)  # fmt: skip
def test_a_job_that_cannot_start_is_told_from_one_that_waits(submission, reason, usable, expected):
    assert kind(is_in(submission, "PENDING", reason), monitor(usable=usable)) is expected


GROUP = "(AssocGrpGRES)"


def test_a_limit_of_a_group_is_waited_for_75_seconds_while_no_job_runs(submission):
    is_in(submission, "PENDING", GROUP)
    assert kind(submission, monitor(idle=True)) is None
    assert submission.alone_since == NOW
    submission.alone_since = NOW - 75
    assert kind(submission, monitor(idle=True)) is None
    assert submission.alone_since == NOW - 75
    submission.alone_since = NOW - 76
    assert kind(submission, monitor(idle=True)) is JobKind.REFUSED


@pytest.mark.parametrize(
    ("state", "reason", "idle"),
    [("PENDING", GROUP, False), ("PENDING", "Priority", True), ("CONFIGURING", GROUP, True)],
)
def test_any_other_reason_to_wait_begins_anew(submission, state, reason, idle):
    submission.alone_since = NOW - 1000
    assert kind(is_in(submission, state, reason), monitor(idle=idle)) is None
    assert submission.alone_since is None


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerUser", "MaxNodePerAccount", "QOSGrpCpuLimit"])
def test_one_job_alone_may_exceed_a_limit_of_many(submission, reason):
    is_in(submission, "PENDING", reason)
    submission.alone_since = NOW - 76
    assert kind(submission, monitor(idle=True)) is JobKind.REFUSED
    assert kind(submission, monitor(idle=False)) is None


@pytest.mark.parametrize("reason", ["JobHeldUser", "a reason of Slurm 30"])
def test_a_job_that_has_run_and_is_pending_again_was_not_refused(submission, reason):
    submission.first_line_since = NOW - 20
    submission.lines = [STARTED]
    found = kind(is_in(submission, "PENDING", reason, queried_at=NOW))
    assert found is JobKind.NODE_LOST


@pytest.mark.parametrize(("lag", "expected"), [(5.0, None), (5.5, JobKind.NODE_LOST)])
def test_a_job_that_had_started_and_is_pending_has_lost_its_node(submission, lag, expected):
    """Slurm's state may be older than the first line of a rank."""
    submission.first_line_since = NOW
    submission.lines = [{"event": "started"}]
    is_in(submission, "PENDING", "BeginTime", queried_at=NOW + lag)
    assert kind(submission) is expected


def test_a_job_that_never_wrote_has_not_lost_its_node(submission):
    assert kind(is_in(submission, "PENDING", "BeginTime", queried_at=NOW)) is None
    submission.first_line_since = NOW - 100
    submission.lines = [{"event": "started"}]
    assert kind(is_in(submission, "RUNNING", queried_at=NOW)) is None


# --- running


@pytest.mark.parametrize(("silent", "expected"), [(120, None), (121, JobKind.RANK_HUNG)])
def test_a_rank_may_be_silent_for_two_minutes(submission, silent, expected):
    rank_wrote(submission, 0, silent)
    assert kind(is_in(submission, "RUNNING")) is expected


def test_a_silent_rank_is_named_with_its_node_and_workload(submission):
    rank_wrote(submission, 0, 300)
    submission.lines = [
        {"event": "started", "rank": 1, "workload": "inventory", "node": "n7"},
        {"event": "started", "rank": 1, "workload": "gemm", "node": "n7"},
        {"event": "progress", "rank": 1},
        {"event": "started", "rank": 0, "workload": "copy", "node": "n0"},
    ]
    failure = monitor().failure_of(is_in(submission, "RUNNING"))
    assert failure is not None
    assert (failure.kind, failure.rank, failure.node) == (JobKind.RANK_HUNG, 1, "n7")
    assert failure.workload == "gemm"
    assert "300 s in gemm" in failure.reason


def test_a_rank_that_never_wrote_is_on_the_node_of_its_number(submission):
    rank_wrote(submission, 0, 0, 0)
    submission.tails.append(SimpleNamespace(last_growth=0.0))  # type: ignore[arg-type]
    is_in(submission, "RUNNING")
    submission.running_since = NOW - 120
    assert kind(submission) is None
    submission.running_since = NOW - 121
    failure = monitor().failure_of(submission)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.node) == (JobKind.RANK_HUNG, 3, "n2")
    assert failure.workload is None
    assert "in its start" in failure.reason


def test_a_rank_that_has_ended_may_be_silent(submission):
    rank_wrote(submission, 500, event="end", rank=0)
    assert kind(is_in(submission, "RUNNING")) is None
    rank_wrote(submission, 500, event="end", rank=1)
    assert kind(is_in(submission, "RUNNING")) is JobKind.RANK_HUNG


def test_a_rank_without_a_time_at_all_is_given_time(submission):
    rank_wrote(submission, NOW)
    assert submission.tails[0].last_growth == 0
    assert kind(is_in(submission, "SUSPENDED")) is None


def test_the_silence_of_a_job_that_completes_is_its_end(submission):
    rank_wrote(submission, 500, rank=0, workload="gemm", node="n1")
    failure = monitor().failure_of(is_in(submission, "COMPLETING"))
    assert failure is not None
    assert failure.kind is not JobKind.RANK_HUNG


def test_a_job_may_run_as_long_as_its_workloads_and_a_minute(submission):
    limit_s = submission.job.deadline_s("cuda")
    for ran, expected in ((limit_s, None), (limit_s + 1, JobKind.RUN_TIMEOUT)):
        rank_wrote(submission, 0)
        submission.running_since = NOW - ran
        assert kind(is_in(submission, "RUNNING")) is expected


# --- the end


def test_of_a_job_that_ended_last_lines_are_waited_for(submission):
    log(submission)
    submission.lines = [STARTED]
    assert kind(is_in(submission, "FAILED")) is None
    assert submission.ended_since == NOW
    submission.ended_since = NOW - 3.0
    assert kind(submission) is None
    submission.ended_since = NOW - 3.5
    assert kind(submission) is not None
    submission.ended_since = NOW
    submission.lines = [{**STARTED, "event": "error", "kind": "raised", "error": "x"}]
    assert kind(submission) is not None


def test_the_end_of_each_log_is_kept(submission):
    assert deadlines.log_parts(submission.directory) == []
    folder = submission.directory / "submitit"
    (folder / "7_0_log.out").write_bytes(b"begin\xff end")
    (folder / "7_1_log.out").write_bytes(b"second")
    (folder / "7_1_log.err").write_bytes(b"no")
    assert deadlines.log_parts(submission.directory) == [
        LogPart("begin\ufffd end", 0, shared=True), LogPart("second", 1),
    ]  # fmt: skip
    assert [part.text for part in deadlines.log_parts(submission.directory, 3)] == ["end", "ond"]


@pytest.mark.parametrize("where", ["file", "folder", "job"])
def test_no_link_leads_out_of_the_logs_of_a_job(submission, tmp_path, where):
    secret = tmp_path / "elsewhere" / "submitit"
    secret.mkdir(parents=True)
    (secret / "7_0_log.out").write_text("secret")
    folder = submission.directory / "submitit"
    if where == "file":
        (folder / "7_0_log.out").symlink_to(secret / "7_0_log.out")
        os.mkfifo(folder / "7_1_log.out")
    else:
        linked = folder if where == "folder" else submission.directory
        shutil.rmtree(linked)
        linked.symlink_to(secret if where == "folder" else secret.parent)
    assert deadlines.log_parts(submission.directory) == []
    assert deadlines.has_log(submission) is (where == "file")


def test_submitit_s_own_links_are_logs(submission):
    folder = submission.directory / "submitit"
    (folder / "7_0_log.out").write_text("text")
    (folder / "7_log.out").symlink_to("/where/the/run/was/7_0_log.out")
    assert [part.text for part in deadlines.log_parts(submission.directory)] == ["text", "text"]


# --- jobs that are made to fail


def victim(s: Submission, *, requeue: bool = False, fault: float | None = None) -> Submission:
    s.job = replace(s.job, victim=Victim(fault_timeout_s=60, requeue=requeue))
    if fault is not None:
        s.marks["fault"] = NOW - fault
    return is_in(s, "RUNNING")


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize(("since", "expected"), [(60, None), (61, JobKind.RUN_TIMEOUT)])
def test_a_victim_has_to_end_in_its_time_after_the_fault(submission, requeue, since, expected):
    rank_wrote(submission, 0)
    assert kind(victim(submission, requeue=requeue, fault=since)) is expected


def test_a_victim_that_is_requeued_may_fall_silent_once_its_fault_took_place(submission):
    rank_wrote(submission, 500)
    assert kind(victim(submission, requeue=True, fault=1)) is None
    assert kind(victim(submission, requeue=False, fault=1)) is JobKind.RANK_HUNG
    submission.marks.clear()
    assert kind(victim(submission, requeue=True)) is JobKind.RANK_HUNG


def test_a_victim_that_ended_is_diagnosed_as_any_other(submission):
    submission.lines = [{"event": "error", "rank": 0, "kind": "raised", "error": "x"}]
    is_in(victim(submission, fault=500), "FAILED")
    assert kind(submission) is JobKind.RANK_RAISED


def test_a_fault_of_a_job_that_is_no_victim_is_nothing(submission):
    rank_wrote(submission, 0)
    submission.marks["fault"] = NOW - 500
    assert kind(is_in(submission, "RUNNING")) is None


def test_a_fault_that_could_not_be_injected_is_said(submission):
    submission.injection_error = "no such command"
    failure = monitor().failure_of(is_in(submission, "RUNNING"))
    assert isinstance(failure, Failure)
    assert failure.kind is JobKind.NOT_RUN
    assert "no such command" in failure.reason
