"""Which jobs are submitted next, and how long a busy slurmctld is waited for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.entry import SmallJob
from fixtures.jobs import submission_queue
from fixtures.jobs.submission import Submission
from fixtures.jobs.submission_queue import MAX_BATCH, QueuedJob, SubmissionQueue
from fixtures.plan.jobs import Job

pytestmark = pytest.mark.cpu

HALVES = SmallJob(tasks=1, halves=True)


def job(name: str, small: SmallJob | None = None) -> Job:
    return Job(
        name=name, stage="node", placement=name, nodes=(name,), ranks_per_node=1, workloads=(),
        small=small,
    )  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(submission_queue, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def queue(*jobs: Job, max_jobs: int | None = None) -> SubmissionQueue:
    made = SubmissionQueue(max_jobs)
    made.add(jobs)
    return made


def names(batch: list[QueuedJob]) -> list[str]:
    return [q.job.name for q in batch]


def taken(q: SubmissionQueue, queued: int = 0, resolved: bool = True) -> list[str]:
    return names(q.next(queued, lambda _: resolved))


def refuse(
    q: SubmissionQueue, batch: list[QueuedJob], *, timeout_s: float = 10, none_queued: bool = True
) -> bool:
    made = [(w, Submission(job=w.job, name=w.job.name, directory=Path(), number=1)) for w in batch]
    return q.refused(made, timeout_s=timeout_s, none_queued=none_queued)


def test_jobs_leave_in_their_order_and_what_is_left_of_one_comes_first():
    q = queue(job("a"), job("b"))
    q.add_first(job("rest"), 2)
    assert len(q) == 3
    batch = q.next(0, lambda _: True)
    assert [(w.job.name, w.number) for w in batch] == [("rest", 2), ("a", 1), ("b", 1)]
    assert len(q) == 0
    assert taken(q) == []


def test_jobs_of_one_turn_leave_together_and_32_at_most():
    q = queue(job("s", SmallJob(tasks=1)), *(job(f"n{k}") for k in range(40)))
    assert taken(q) == ["s"]
    assert len(taken(q)) == MAX_BATCH == 32
    assert len(taken(q)) == 8


def test_there_is_room_for_as_many_as_are_allowed():
    q = queue(job("a"), job("b"), job("c"), max_jobs=2)
    assert taken(q, queued=2) == []
    assert taken(q, queued=1) == ["a"]
    assert taken(q, queued=0) == ["b", "c"]
    assert taken(queue(job("a"), job("b")), queued=1000) == ["a", "b"]


def test_parts_that_belong_together_leave_together_where_nothing_else_is_queued():
    q = queue(job("a", HALVES), job("b", HALVES), max_jobs=1)
    assert taken(q, queued=1) == []
    assert taken(q, queued=0) == ["a"]


def test_a_busy_slurmctld_is_left_alone_for_twice_as_long_each_time(clock):
    q = queue(job("a"))
    waits = []
    for _ in range(8):
        batch = q.next(0, lambda _: True)
        assert refuse(q, batch, timeout_s=1e9)
        start = clock.now
        clock.now += 0.5
        assert taken(q) == []
        while not len(q.next(0, lambda _: False)) and clock.now < q._not_before:
            clock.now += 0.5
        waits.append(clock.now - start)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    batch = q.next(0, lambda _: True)
    q.accepted()
    refuse(q, batch)
    assert q._not_before - clock.now == 1  # once it has taken one, from the beginning


def test_a_job_in_doubt_waits_until_it_is_known_what_became_of_it(clock):
    q = queue(job("a"), job("b"), job("c"))
    batch = q.next(0, lambda _: True)[:2]
    assert names(q.maybe_accepted) == []
    assert refuse(q, batch) is True
    assert names(q.maybe_accepted) == ["a", "b"]
    assert [w.refused_at for w in q.maybe_accepted] == [1000.0, 1000.0]
    clock.now += 1
    assert taken(q, resolved=False) == []
    assert taken(q) == ["a", "b"]
    # One that was never refused is in no doubt.
    assert taken(queue(job("d")), resolved=False) == ["d"]


@pytest.mark.parametrize(("none_queued", "kept"), [(True, False), (False, True)])
def test_it_is_given_up_after_the_time_unless_jobs_of_our_own_may_be_the_reason(
    clock, none_queued, kept
):
    q = queue(job("a"))
    batch = q.next(0, lambda _: True)
    assert refuse(q, batch, none_queued=none_queued) is True
    clock.now += 10
    batch = q.next(0, lambda _: True)
    assert refuse(q, batch, none_queued=none_queued) is True  # not longer than the time
    clock.now += 5
    batch = q.next(0, lambda _: True)
    assert refuse(q, batch, none_queued=none_queued) is kept
    assert len(q) == kept
