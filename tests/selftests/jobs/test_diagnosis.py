"""diagnose(): from what ranks wrote, the scheduler's state and the logs to a kind and a culprit."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.jobs.diagnosis import diagnose
from fixtures.jobs.error_texts import kind_of_text
from fixtures.jobs.failure import Failure, words_of_exit
from fixtures.jobs.log_events import LogPart
from fixtures.records.absence import JobKind
from fixtures.verdict.absence import next_step_of
from fixtures.verdict.causes import Cause
from tests.selftests.support import line, result_line

pytestmark = pytest.mark.cpu

PEER_LOST = {"kind": "peer_lost", "error": "DistNetworkError: connection closed by peer"}
NODES = ("worker0", "worker1")


def started(k: int, workload: str = "gemm", **more: Any) -> Any:
    return line("started", k, workload=workload, node=NODES[k], **more)


def error(k: int, workload: str = "gemm", **more: Any) -> Any:
    more = {"kind": "raised", "error": "ValueError: no", "stack": "", **more}
    return line("error", k, workload=workload, node=NODES[k], **more)


def done(k: int, workload: str = "gemm", **more: Any) -> list[Any]:
    return [
        started(k, workload, **more), result_line(k, workload=workload, node=NODES[k], **more)
    ]  # fmt: skip


def diagnosed(*lines: Any, state: str = "FAILED", **more: Any) -> Failure:
    return diagnose(lines, state=state, job="42", world_size=2, **more)


def culprit(failure: Failure) -> tuple[Any, ...]:
    return failure.kind, failure.workload, failure.node, failure.rank


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


def test_a_hung_rank_is_named_by_its_watchdog():
    failure = diagnosed(started(0), started(1), error(1, kind="hung", error="silent for 300 s"))
    assert culprit(failure) == (JobKind.RANK_HUNG, "gemm", "worker1", 1)


def test_a_rank_that_raised_is_the_cause_and_the_one_that_hung_on_it_is_not():
    failure = diagnosed(
        started(0), started(1), error(0, kind="hung", error="silent", time=150.0),
        error(1, time=160.0),
    )  # fmt: skip
    assert culprit(failure) == (JobKind.RANK_RAISED, "gemm", "worker1", 1)


def test_of_two_that_raised_the_first_is_the_cause():
    failure = diagnosed(error(0, time=12.0), error(1, time=11.0, error="KeyError: 'x'"))
    assert failure.rank == 1


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


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("import_failure", JobKind.IMPORT_FAILURE),
        ("storage", JobKind.STORAGE),
        ("interrupted", JobKind.CANCELLED),
        ("out_of_memory", JobKind.HOST_OUT_OF_MEMORY),
    ],
)
def test_a_kind_that_the_rank_named_itself_holds(said, kind):
    failure = diagnosed(started(0), error(0, kind=said, error="something"))
    assert culprit(failure) == (kind, "gemm", "worker0", 0)


def test_an_error_between_workloads_has_no_workload():
    assert diagnosed(error(0, workload="")).workload is None


def test_a_rank_s_own_error_beats_the_scheduler_s_state():
    failure = diagnosed(started(0), error(0, error="CUDA out of memory"), state="CANCELLED")
    assert failure.kind is JobKind.GPU_OUT_OF_MEMORY


# --- peers


def test_peers_that_lost_their_partner_are_not_blamed():
    failure = diagnosed(started(0), error(0, **PEER_LOST), started(1))
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker1", 1)


def test_a_partner_that_raised_is_blamed_although_the_peer_wrote_first():
    failure = diagnosed(started(0), error(0, time=10.0, **PEER_LOST), error(1, time=11.0))
    assert culprit(failure) == (JobKind.RANK_RAISED, "gemm", "worker1", 1)


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


def test_what_slurm_says_of_every_job_are_no_last_words():
    log = """srun: error: worker1: task 1: Killed
slurmstepd-worker0: error: error unlocking cgroup '/sys/fs/cgroup/system.slice': No such file
submitit INFO (2026-11-22 06:18:03,250) - Job completed successfully"""
    failure = diagnosed(state="FAILED", log_tail=log)
    assert culprit(failure) == (JobKind.RANK_DIED, None, "worker1", 1)
    assert "worker1: task 1: Killed" in failure.reason
    assert "unlocking" not in failure.reason


def test_a_rank_that_never_wrote_is_named_where_the_others_are_done():
    failure = diagnosed(*done(0))
    assert culprit(failure) == (JobKind.RANK_DIED, None, None, None)
    assert "ranks [1] never wrote a line" in failure.reason


def test_a_job_that_ended_between_two_workloads_says_so():
    failure = diagnosed(*done(0), *done(1), state="TIMEOUT")
    assert culprit(failure) == (JobKind.RUN_TIMEOUT, None, None, None)
    assert "between two workloads" in failure.reason


# --- who is named, from what srun, the watchdogs and torch say

SRUN = "srun: error: worker1: task 1: Killed\nsrun: error: worker0: task 0: Terminated"


def hung(k: int, begun: int | None = None, stack: str = "", **more: Any) -> Any:
    flight = {} if begun is None else {"flight": {"begun": begun, "ended": begun - 1}}
    return error(k, kind="hung", error="deadline", stack=stack, **flight, **more)


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


def test_the_flight_recorder_tells_who_hangs_from_who_waits():
    """The one that waits was the first to be ended by its watchdog."""
    failure = diagnosed(started(0), started(1), hung(0, 11, time=120.0), hung(1, 10, time=120.5))
    assert culprit(failure) == (JobKind.RANK_HUNG, "gemm", "worker1", 1)
    assert "it began 10 collectives, others 11" in failure.reason


def test_of_ranks_that_hang_in_the_same_collective_none_is_meant_but_their_link():
    stack = "thread MainThread:\n  File x\n    dist.all_reduce(x)\n"
    failure = diagnosed(
        started(0), started(1), hung(1, 11, stack, time=112.0), hung(0, 11, stack, time=113.0)
    )
    assert culprit(failure) == (JobKind.RANK_HUNG, "gemm", None, None)
    assert "ranks 0, 1 on worker0, worker1 waited for each other" in failure.reason
    assert "all began 11 collectives; in `dist.all_reduce(x)`: jobs/JOB/rank0" in failure.reason


def alive(k: int, when: float) -> Any:
    return line("alive", k, node=NODES[k], time=when)


@pytest.mark.parametrize("woken", [False, True])
def test_a_frozen_rank_is_the_one_that_fell_silent(woken):
    """Killing it wakes it, and its own watchdog then says that it hung."""
    last = [hung(1, 11, time=123.0)] if woken else []
    failure = diagnosed(
        started(0), started(1), alive(1, 105.0), alive(0, 118.0), hung(0, 11, time=120.0), *last
    )
    assert culprit(failure) == (JobKind.RANK_HUNG, "gemm", "worker1", 1)
    assert "fell silent 15 s before" in failure.reason
    assert "jobs/JOB/rank*.stacks" in failure.reason


def test_a_rank_that_hangs_in_a_file_hangs_in_the_storage():
    stack = (
        "thread watchdog:\n  File x\n    time.sleep(1)\n"
        'thread MainThread:\n  File "a.py", line 1, in save\n    with path.open("wb") as f:\n'
        "         ^^^^^^^^^^^^^^^\n"
    )
    failure = diagnosed(started(0), started(1), hung(0, 11), hung(1, 10, stack))
    assert culprit(failure) == (JobKind.STORAGE, "gemm", "worker1", 1)
    assert 'it is in `with path.open("wb") as f:`' in failure.reason


def test_an_error_that_torch_hands_on_to_all_ranks_is_that_of_the_rank_which_it_names():
    handed = "CheckpointException ranks:dict_keys([1])\nOSError: [Errno 28] No space left on device"
    failure = diagnosed(
        started(0), started(1), error(0, error=handed, time=12.0), error(1, error=handed, time=13.0)
    )
    assert culprit(failure) == (JobKind.STORAGE, "gemm", "worker1", 1)


def test_the_first_error_in_time_is_kept_whoever_is_to_blame():
    failure = diagnosed(
        started(0), error(0, time=3661.0, **PEER_LOST), started(1), error(1, time=3665.0)
    )
    assert failure.rank == 1
    assert failure.first_error.startswith("01:01:01 rank 0 on worker0 peer_lost: DistNetwork")
    assert diagnosed(started(0)).first_error == ""


def test_a_next_step_names_the_rank_where_it_is_known():
    assert "rank<k>.stacks" in Failure(JobKind.RANK_HUNG, "x").next_step
    assert "rank3.stacks" in Failure(JobKind.RANK_HUNG, "x", rank=3).next_step


@pytest.mark.parametrize(
    ("state", "kind"),
    [("TIMEOUT", JobKind.RUN_TIMEOUT), ("CANCELLED", JobKind.GPU_OUT_OF_MEMORY)],
)
def test_the_log_explains_a_job_that_somebody_cancelled_and_no_other_end(state, kind):
    lines = [line("started", 0), line("started", 1)]
    found = diagnose(lines, state=state, log_tail="CUDA out of memory", job="7", world_size=2)
    assert found.kind is kind


@pytest.mark.parametrize(
    ("code", "words"),
    [("1:0", "exit 1"), ("0:9", "signal 9"), ("17920", "exit 70"), ("256", "exit 1"),
     ("32512", "exit 127"), ("9", "signal 9"), ("0", "exit 0"), ("0:0", "exit 0"), ("?", "exit ?")],
)  # fmt: skip
def test_an_exit_code_is_decoded(code, words):
    assert words_of_exit(code) == words
    assert f"job 42 (FAILED, {words})" in diagnosed(state="FAILED", exit_code=code).reason


def test_what_a_rank_s_own_file_says_is_of_its_node():
    parts = [LogPart("srun: error: worker0: task 0: Terminated"), LogPart("std::bad_alloc", 1)]
    failure = diagnose([], state="FAILED", log_tail=parts, job="42", world_size=2, nodes=NODES)
    assert culprit(failure) == (JobKind.HOST_OUT_OF_MEMORY, None, "worker1", 1)
