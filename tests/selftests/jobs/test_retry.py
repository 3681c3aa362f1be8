"""What of a job that failed is submitted again, and on which of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.entry import SmallJob
from fixtures.jobs import watcher
from fixtures.jobs.failure import Failure
from fixtures.jobs.retry import NODE_FAILURES, RetryPolicy
from fixtures.jobs.submission import Submission
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu

ALL = Job(
    name="cluster", stage="cluster", placement="all", nodes=("n1", "n2", "n3"), ranks_per_node=1,
    workloads=(("a", ("x",)), ("b", ("y",)), ("c", ("z",))),
)  # fmt: skip


def job(placement: str = "n1--n2", small: SmallJob | None = None) -> Job:
    return Job(
        name="pair", stage="pair", placement=placement, nodes=("n1", "n2"), ranks_per_node=1,
        workloads=ALL.workloads, small=small,
    )  # fmt: skip


def policy(states: Mapping[str, str] | None, *, on_slurm: bool = True) -> RetryPolicy:
    fake = SimpleNamespace(
        nodes=lambda: states, reason=lambda node: "bad disk" if node == "n2" else ""
    )
    return RetryPolicy(fake, on_slurm=on_slurm)  # type: ignore[arg-type]


def test_slurm_s_reason_stands_beside_the_state_of_a_node(command):
    command("sinfo", "n1 drained Prolog error\nn2 idle none\nn3 down* Not responding\n")
    slurm = watcher.SlurmWatcher()
    job = Job(
        name="all", stage="cluster", placement="all", nodes=("n1", "n2", "n3"), ranks_per_node=1,
        workloads=(("allreduce", ("busbw",)),),
    )  # fmt: skip
    lost = RetryPolicy(slurm, on_slurm=True).lost_nodes(job)
    assert lost == {"n1": "drained (Prolog error)", "n3": "down* (Not responding)"}


def test_nodes_are_lost_that_slurm_cannot_use_or_does_not_know():
    states = {"n1": "idle", "n2": "drained"}
    assert policy(states).lost_nodes(ALL) == {"n2": "drained (bad disk)", "n3": "unknown to it"}
    for state in ("down", "draining", "fail", "idle*", "unk", "reboot"):
        assert set(policy({"n1": state, "n2": "idle", "n3": "mixed"}).lost_nodes(ALL)) == {"n1"}
    assert policy({"n1": "idle", "n2": "mixed"}).usable(job()) is True
    assert policy(states).usable(job()) is False


def test_where_slurm_does_not_answer_only_the_suspect_is_lost():
    assert policy(None).lost_nodes(ALL, "n1") == {"n1": "not answering"}
    assert policy(None).lost_nodes(ALL) == {}
    assert policy({"n1": "down"}, on_slurm=False).lost_nodes(ALL, "n1") == {}


def next_try(
    of: Job, failure: Failure, lost: str = "", *, pending: str = "abc", delivered: int = 0,
    number: int = 1,
) -> tuple[str, str] | None:  # fmt: skip
    """Workloads and nodes of the next attempt."""
    s = Submission(
        job=of, name=of.name, directory=Path(), number=number, pending=set(pending),
        delivered=delivered,
    )  # fmt: skip
    found = RetryPolicy.next_try(s, failure, dict.fromkeys(lost.split(), "down"))
    if found is None:
        return None
    return "".join(w for w, _ in found.workloads), " ".join(found.nodes)


@pytest.mark.parametrize("kind", NODE_FAILURES)
def test_after_a_failure_of_nodes_a_job_on_all_of_them_goes_on_without_the_lost(kind):
    failure = Failure(kind, "gone")
    assert next_try(ALL, failure, "n2", pending="bc") == ("bc", "n1 n3")
    assert next_try(ALL, failure) is None
    assert next_try(ALL, failure, "n1 n2 n3") is None


def test_a_pair_does_not_go_on_without_one_of_its_nodes_but_a_small_job_does():
    failure = Failure(JobKind.NODE_LOST, "gone")
    assert next_try(job(), failure, "n2") is None
    small = job(small=SmallJob(tasks=1, pair=True))
    assert next_try(small, failure, "n2") == ("abc", "n1")
    assert next_try(small, failure) is None


def test_after_a_failure_of_a_workload_the_others_go_on():
    failure = Failure(JobKind.RANK_DIED, "died", "b")
    assert next_try(ALL, failure, pending="bc") == ("c", "n1 n2 n3")
    assert next_try(ALL, failure, pending="b") is None
    assert next_try(ALL, failure, pending="") is None
    # The lost nodes do not leave any out here.
    assert next_try(ALL, failure, "n2", pending="bc") == ("c", "n1 n2 n3")


def test_a_job_that_leads_to_nothing_is_not_tried_for_ever():
    nowhere, known = Failure(JobKind.RANK_DIED, "died"), Failure(JobKind.RANK_DIED, "died", "b")
    assert next_try(ALL, nowhere) is None
    assert next_try(ALL, nowhere, delivered=1, pending="bc") == ("bc", "n1 n2 n3")
    assert next_try(ALL, known, number=2) is None
    assert next_try(ALL, known, number=2, delivered=1) == ("ac", "n1 n2 n3")
    assert next_try(ALL, known, number=1) == ("ac", "n1 n2 n3")
