"""diagnose(): from what ranks wrote, the scheduler's state and the logs to a kind and a culprit."""

from __future__ import annotations

import pytest

from fixtures.jobs.diagnosis import _of_state, diagnose
from fixtures.jobs.error_texts import kind_of_text
from fixtures.jobs.job_evidence import Strength
from fixtures.jobs.log_events import LogPart
from fixtures.records.absence import JobKind
from fixtures.verdict.absence import next_step_of
from fixtures.verdict.causes import Cause
from tests.selftests.job_failures import (
    PEER_LOST,
    culprit,
    diagnosed,
    done,
    error,
    evidence_of,
    started,
)
from tests.selftests.support import line

pytestmark = pytest.mark.cpu


def test_a_rank_that_raised_is_named_with_its_workload_and_message():
    failure = diagnosed(
        started(0), started(1), error(1, error="ValueError: no\n\nCUDA error: misaligned")
    )
    assert culprit(failure) == (JobKind.GPU_ERROR, "gemm", "worker1", 1)
    assert "gemm on worker1 rank 1 raised: CUDA error: misaligned" in failure.reason
    assert "job 42 (FAILED)" in failure.reason
    assert failure.next_step == next_step_of(JobKind.GPU_ERROR)


def test_an_exit_with_0_without_a_result_is_a_death_in_the_open_workload():
    """os._exit(0): no error line, and Slurm says COMPLETED."""
    failure = diagnosed(started(0), *done(1), state="COMPLETED", exit_code="0:0")
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker0", 0)
    assert "was in gemm when it ended" in failure.reason


def test_a_system_exit_is_a_death():
    failure = diagnosed(started(0), error(0, kind="exited", error="SystemExit: 0"))
    assert culprit(failure) == (JobKind.RANK_RAISED, "gemm", "worker0", 0)
    assert "exited: SystemExit: 0" in failure.reason


def test_a_killed_rank_is_the_one_that_fell_silent_first():
    lines = [started(0), started(1, time=200.0)]
    failure = diagnosed(*lines, state="FAILED", exit_code="0:9")
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker0", 0)
    assert "signal 9" in failure.reason
    assert "(1 other ranks too)" in failure.reason


def test_what_every_node_of_a_job_says_alike_is_set_up_and_names_none():
    failure = diagnosed(error(0, error="ValueError: 3 != 4"), error(1, error="ValueError: 5 != 4"))
    assert (failure.node, failure.rank, failure.cause) == (None, None, Cause.SETUP)
    assert "alike on worker0, worker1" in failure.reason
    assert "on one node: read the rank's log" in failure.next_step


@pytest.mark.parametrize(
    ("state", "kind", "place"),
    [
        # Slurm says of the job that it was ended, and of no node why.
        ("OUT_OF_MEMORY", JobKind.HOST_OUT_OF_MEMORY, (None, None)),
        ("NODE_FAIL", JobKind.NODE_LOST, (None, None)),
        ("BOOT_FAIL", JobKind.NODE_LOST, (None, None)),
        ("TIMEOUT", JobKind.RUN_TIMEOUT, (None, None)),
        ("DEADLINE", JobKind.RUN_TIMEOUT, (None, None)),
        ("CANCELLED", JobKind.CANCELLED, (None, None)),
        ("PREEMPTED", JobKind.CANCELLED, (None, None)),
        ("FAILED", JobKind.RANK_DIED, ("worker0", 0)),
        ("GONE", JobKind.RANK_DIED, ("worker0", 0)),
        ("COMPLETED", JobKind.RANK_DIED, ("worker0", 0)),
    ],
)
def test_the_schedulers_state_gives_the_kind_and_the_open_workload_the_place(state, kind, place):
    failure = diagnosed(started(0), *done(1), state=state)
    assert culprit(failure) == (kind, "gemm", *place)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            JobKind.GPU_OUT_OF_MEMORY,
        ),
        ("torch.OutOfMemoryError: x", JobKind.GPU_OUT_OF_MEMORY),
        ("slurmstepd: error: Detected 1 oom_kill event", JobKind.HOST_OUT_OF_MEMORY),
        ("MemoryError", JobKind.HOST_OUT_OF_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", JobKind.HOST_OUT_OF_MEMORY),
        ("Watchdog caught collective operation timeout: WorkNCCL", JobKind.NCCL_TIMEOUT),
        ("NCCL error: timeout waiting for rank 3", JobKind.NCCL_TIMEOUT),
        ("OSError: [Errno 28] No space left on device", JobKind.STORAGE),
        ("OSError: [Errno 116] Stale file handle: '/shared'", JobKind.STORAGE),
        ("ModuleNotFoundError: No module named 'torch'", JobKind.IMPORT_FAILURE),
        ("libcudart.so.13: cannot open shared object file", JobKind.IMPORT_FAILURE),
    ],
)
def test_a_text_gives_its_kind_in_a_rank_s_error_and_in_the_log(text, kind):
    assert diagnosed(started(0), error(0, error=text)).kind is kind
    assert diagnosed(log_tail=text).kind is kind, "no rank ever wrote"
    # What is about starting explains no job whose ranks have all started.
    begun = JobKind.RANK_DIED if kind is JobKind.IMPORT_FAILURE else kind
    assert diagnosed(started(0), started(1), log_tail=f"...\n{text}\n").kind is begun


def test_an_ordinary_text_has_no_kind():
    assert kind_of_text("all is well") is None


def test_a_rank_s_own_error_beats_the_scheduler_s_state():
    failure = diagnosed(started(0), error(0, error="CUDA out of memory"), state="CANCELLED")
    assert failure.kind is JobKind.GPU_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("state", "of_log", "kind"),
    [
        # What ended a task explains more than that a person, or a limit of time, ended the job.
        ("CANCELLED", "NCCL watchdog: connection timed out", JobKind.CANCELLED),
        ("CANCELLED", "srun: error: worker1: task 1: Killed", JobKind.CANCELLED),
        ("CANCELLED", "pyxis: couldn't start container", JobKind.CONTAINER),
        ("TIMEOUT", "srun: error: worker1: task 1: Killed", JobKind.RUN_TIMEOUT),
        ("TIMEOUT", "slurmstepd: error: *** JOB 42 CANCELLED ***", JobKind.RUN_TIMEOUT),
        ("PREEMPTED", "pyxis: couldn't start container", JobKind.CANCELLED),
        ("REVOKED", "CUDA error: unknown", JobKind.CANCELLED),
        ("NODE_FAIL", "CUDA error: unknown", JobKind.NODE_LOST),
    ],
)
def test_the_state_of_a_job_explains_its_end_before_some_lines_and_after_others(
    state, of_log, kind
):
    failure = diagnosed(started(0), started(1), state=state, log_tail=[LogPart(of_log)])
    assert failure.kind is kind


@pytest.mark.parametrize(
    ("state", "strength"),
    [
        ("CANCELLED", Strength.CANCELLED), ("PREEMPTED", Strength.TAKEN_BY_SLURM),
        ("REVOKED", Strength.TAKEN_BY_SLURM), ("NODE_FAIL", Strength.NODE_LOST),
        ("BOOT_FAIL", Strength.NODE_LOST), ("TIMEOUT", Strength.STATE),
        ("DEADLINE", Strength.STATE), ("OUT_OF_MEMORY", Strength.STATE), ("FAILED", None),
        ("COMPLETED", None),
    ],
)  # fmt: skip
def test_how_much_the_state_of_a_job_explains(state, strength):
    found = [c.strength for c in _of_state(evidence_of(state=state))]
    assert found == ([] if strength is None else [strength])


# --- peers


def test_a_partner_that_never_wrote_a_line_is_blamed_not_the_one_that_waited():
    failure = diagnosed(started(0), error(0, **PEER_LOST), log_tail="No module named 'submitit'")
    assert culprit(failure) == (JobKind.IMPORT_FAILURE, "gemm", None, None)
    assert "ranks [1] never wrote a line" in failure.reason


def test_a_partner_that_died_between_two_workloads_is_blamed_not_the_one_that_waited():
    failure = diagnosed(
        *done(0, "environment"), started(0), error(0, **PEER_LOST), *done(1, "environment")
    )
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker1", 1)
    assert "rank 1 on worker1 ended between two workloads" in failure.reason


def test_ranks_that_lost_each_other_are_none_of_them_blamed():
    failure = diagnosed(started(0), error(0, **PEER_LOST), started(1), error(1, **PEER_LOST))
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", None, None)
    assert "the ranks lost each other" in failure.reason


# --- no rank, or not all


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("FAILED", JobKind.NEVER_STARTED),
        ("CANCELLED", JobKind.CANCELLED),
        ("PREEMPTED", JobKind.CANCELLED),
        ("REVOKED", JobKind.CANCELLED),
        ("NODE_FAIL", JobKind.NODE_LOST),
        ("TIMEOUT", JobKind.RUN_TIMEOUT),
        ("OUT_OF_MEMORY", JobKind.HOST_OUT_OF_MEMORY),
    ],
)
def test_a_job_of_which_no_rank_ever_wrote(state, kind):
    failure = diagnosed(state=state, exit_code="1:0", log_tail="\nnobody knows this\n\n")
    assert culprit(failure) == (kind, None, None, None)
    assert "no rank ever wrote a line; last words: nobody knows this" in failure.reason


def test_a_rank_that_never_wrote_is_named_where_the_others_are_done():
    failure = diagnosed(*done(0))
    assert culprit(failure) == (JobKind.RANK_DIED, None, None, None)
    assert "ranks [1] never wrote a line" in failure.reason


def test_a_job_that_ended_between_two_workloads_says_so():
    failure = diagnosed(*done(0), *done(1), state="TIMEOUT")
    assert culprit(failure) == (JobKind.RUN_TIMEOUT, None, None, None)
    assert "between two workloads" in failure.reason


# --- who is named, from what srun, the watchdogs and torch say


@pytest.mark.parametrize(
    ("state", "kind"),
    [("TIMEOUT", JobKind.RUN_TIMEOUT), ("CANCELLED", JobKind.CANCELLED)],
)
def test_what_a_rank_printed_explains_no_job_that_slurm_ended(state, kind):
    lines = [line("started", 0), line("started", 1)]
    found = diagnose(lines, state=state, log_tail="CUDA out of memory", job="7", world_size=2)
    assert found.kind is kind
