"""What the ranks of a job reported: who raised, who hung, who only lost a peer."""

from __future__ import annotations

import pytest

from fixtures.records.absence import JobKind
from tests.selftests.job_failures import (
    PEER_LOST,
    alive,
    culprit,
    diagnosed,
    error,
    hung,
    started,
)

pytestmark = pytest.mark.cpu


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


def test_peers_that_lost_their_partner_are_not_blamed():
    failure = diagnosed(started(0), error(0, **PEER_LOST), started(1))
    assert culprit(failure) == (JobKind.RANK_DIED, "gemm", "worker1", 1)


def test_a_partner_that_raised_is_blamed_although_the_peer_wrote_first():
    failure = diagnosed(started(0), error(0, time=10.0, **PEER_LOST), error(1, time=11.0))
    assert culprit(failure) == (JobKind.RANK_RAISED, "gemm", "worker1", 1)


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
