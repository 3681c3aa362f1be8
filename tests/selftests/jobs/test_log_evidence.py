"""What srun, slurmstepd and the ranks printed of the end of a job."""

from __future__ import annotations

import pytest

from fixtures.jobs.diagnosis import diagnose
from fixtures.jobs.job_evidence import Strength
from fixtures.jobs.log_events import LogPart, read
from fixtures.jobs.log_evidence import of_log
from fixtures.records.absence import JobKind
from tests.selftests.job_failures import (
    NODES,
    PEER_LOST,
    SRUN,
    culprit,
    diagnosed,
    error,
    evidence_of,
    started,
)

pytestmark = pytest.mark.cpu


def test_what_slurm_says_of_every_job_are_no_last_words():
    log = """srun: error: worker1: task 1: Killed
slurmstepd-worker0: error: error unlocking cgroup '/sys/fs/cgroup/system.slice': No such file
submitit INFO (2026-11-22 06:18:03,250) - Job completed successfully"""
    failure = diagnosed(state="FAILED", log_tail=log)
    assert culprit(failure) == (JobKind.RANK_DIED, None, "worker1", 1)
    assert "worker1: task 1: Killed" in failure.reason
    assert "unlocking" not in failure.reason


def test_the_rank_that_srun_first_said_to_be_dead_is_the_culprit():
    """Both were last heard of at the same time."""
    lines = [started(0, time=100.0), started(1, time=101.0)]
    failure = diagnosed(*lines, log_tail=SRUN)
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker1", 1)
    assert "worker1: task 1: Killed: rank 1 of 2" in failure.reason


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("Communication connection failure", JobKind.NEVER_STARTED),
        ("Invalid job credential", JobKind.CREDENTIAL),
    ],
)
def test_a_node_on_which_srun_starts_no_task_is_meant_not_those_that_srun_ends_for_it(why, kind):
    log = f"""srun: error: Task launch for StepId=3.0 failed on node worker1: {why}
srun: error: Application launch failed: {why}
slurmstepd-worker0: error: *** STEP 3.0 ON worker0 CANCELLED AT 2026-11-25T10:39:27 ***
srun: error: worker0: task 0: Killed"""
    failure = diagnosed(started(0), error(0, **PEER_LOST), log_tail=log)
    assert (failure.kind, failure.node, failure.rank) == (kind, "worker1", None)
    assert failure.reason.endswith(f"srun could not start its task on worker1: {why}")


def test_a_rank_that_ended_because_it_lost_a_peer_is_not_meant():
    log = "srun: error: worker0: task 0: Exited with exit code 1\n" + SRUN
    failure = diagnosed(started(0), error(0, **PEER_LOST), started(1), log_tail=log)
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker1", 1)


def test_several_tasks_in_one_line_of_srun_are_read():
    log = "srun: error: worker1: tasks 2-3,5: Segmentation fault"
    failure = diagnosed(started(0), log_tail=log)
    assert "worker1: task 2-3,5: Segmentation fault" in failure.reason
    assert (failure.node, failure.rank) == ("worker1", 2)


def test_nccl_of_the_others_does_not_outvote_a_rank_that_was_killed():
    log = "NCCL watchdog: connection timed out\n" + SRUN
    assert diagnosed(started(0), started(1), log_tail=log).kind is JobKind.RANK_DIED


def test_what_a_rank_s_own_file_says_is_of_its_node():
    parts = [LogPart("srun: error: worker0: task 0: Terminated"), LogPart("std::bad_alloc", 1)]
    failure = diagnose([], state="FAILED", log_tail=parts, job="42", world_size=2, nodes=NODES)
    assert culprit(failure) == (JobKind.HOST_OUT_OF_MEMORY, None, "worker1", 1)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("line", "of_the_start"),
    [
        ("std::bad_alloc", None),
        ("ModuleNotFoundError: No module named 'torch'", JobKind.IMPORT_FAILURE),
        ("/shared/venv/bin/python: No such file or directory", JobKind.INTERPRETER),
    ],
)
def test_what_keeps_a_rank_from_starting_ends_none_that_has_begun(line, of_the_start, begun):
    lines = [started(0), started(1)] if begun else []
    failure = diagnosed(*lines, nodes=NODES, log_tail=[LogPart(""), LogPart(line, 1)])
    if of_the_start is None:
        assert culprit(failure)[0::2] == (JobKind.HOST_OUT_OF_MEMORY, "worker1")
    else:
        assert (failure.kind is of_the_start) is not begun, failure


ENDED = "ON worker0 CANCELLED AT 2026-11-25T10:39:27"


@pytest.mark.parametrize(
    ("line", "rank", "strength"),
    [
        ("srun: error: Node failure on worker1", None, Strength.NODE_LOST),
        (f"slurmstepd-worker0: error: *** STEP 3.0 {ENDED} DUE TO NODE FAILURE ***", None,
         Strength.NODE_LOST),
        (f"slurmstepd-worker0: error: *** JOB 3 {ENDED} DUE TO PREEMPTION ***", None,
         Strength.TAKEN_BY_SLURM),
        ("srun: error: Job allocation 3 has been revoked", None, Strength.TAKEN_BY_SLURM),
        (f"slurmstepd-worker0: error: *** JOB 3 {ENDED} ***", None, Strength.CANCELLED),
        ("KeyboardInterrupt", 0, Strength.CANCELLED),
        (f"slurmstepd-worker0: error: *** STEP 3.0 {ENDED} DUE TO TIME LIMIT ***", None,
         Strength.STATE),
        ("NCCL watchdog: connection timed out", 0, Strength.WAITED),
        ("worker0:7:9 [0] NCCL WARN NET/IB : mlx5_0:1 Got async fatal event: port error", None,
         Strength.LINE_OF_SLURM),
        ("CUDA error: an illegal memory access was encountered", 0, Strength.LINE_OF_SLURM),
        ("CUDA error: an illegal memory access was encountered", None, Strength.LINE_OF_PROGRAM),
        ("pyxis: couldn't start container", 0, Strength.LINE_OF_SLURM),
        ("slurmstepd-worker0: error: Detected 1 oom_kill event in StepId=3.0", None,
         Strength.LINE_OF_SLURM),
        ("std::bad_alloc", 0, Strength.LINE_OF_PROGRAM),
    ],
)  # fmt: skip
def test_how_much_a_line_explains_follows_from_who_says_what(line, rank, strength):
    events = read([LogPart(line, rank)], NODES)
    assert [c.strength for c in of_log(evidence_of(events))] == [strength]
