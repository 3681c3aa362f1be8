"""The parts of the scheduler by themselves: how long it waits, and what it makes of an end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.entry import SmallJob
from fixtures.errors import RunError
from fixtures.jobs import comparison, job_ending
from fixtures.jobs import job_queue as module
from fixtures.jobs.context import RunContext
from fixtures.jobs.deadlines import Deadlines
from fixtures.jobs.destructive_stage import DestructiveStage
from fixtures.jobs.failure import Failure
from fixtures.jobs.fault_injector import CommandFaultInjector
from fixtures.jobs.job_queue import RunCallbacks, Scheduler
from fixtures.jobs.launcher import SlurmBusy, SlurmRefused
from fixtures.jobs.submission import Submission
from fixtures.jobs.submission_queue import QueuedJob
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job, Victim
from fixtures.records.absence import JobKind
from fixtures.records.files import read_lines
from fixtures.records.run_directory import RunDirectory
from tests.selftests import support

pytestmark = pytest.mark.cpu

JOB = Job(
    name="pair", stage="pair", placement="p", nodes=("worker0", "worker1"), ranks_per_node=1,
    workloads=(("gemm", ("bf16",)),),
)  # fmt: skip


class World:
    """Slurm, the run and the clock, as the scheduler sees them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.states_of: dict[str, JobState] = {}
        self.node_states: dict[str, str] | None = {"worker0": "idle", "worker1": "idle"}
        self.cancelled: list[str] = []
        self.beats = 0
        self.slept: list[float] = []
        self.nobody_queued = True
        self.living: dict[str, str] | None = {}

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def states(self, ids: Any) -> dict[str, JobState]:
        return self.states_of


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep, time=lambda: made.now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(job_ending, "time", clock)
    monkeypatch.setattr(comparison, "time", clock)
    return made


@pytest.fixture
def scheduler(world: World, tmp_path: Path) -> Scheduler:
    return built(world, tmp_path)


def built(world: World, folder: Path, backend: str = "slurm") -> Scheduler:
    directory = RunDirectory(folder)
    directory.jobs.mkdir(exist_ok=True)
    people = support.population(2)
    context = RunContext(
        directory=directory, run_id="r", nonce=support.NONCE, population=people,
        attempts={("gemm", "p"): 1}, spec_facts={},
    )  # fmt: skip
    launcher: Any = SimpleNamespace(
        backend=backend, queues=True, cancel=lambda ids: world.cancelled.extend(ids)
    )
    watcher: Any = SimpleNamespace(
        states=world.states, invalidate=lambda: None, all_idle=lambda: False,
        nodes=lambda: world.node_states, reason=lambda node: "", find=lambda name, since: ["7"],
        none_queued=lambda since: world.nobody_queued, living=lambda run, root: world.living,
    )  # fmt: skip

    def beat() -> None:
        world.beats += 1

    callbacks = RunCallbacks(gate=lambda n: None, locate=lambda n, m: None, heartbeat=beat)
    return Scheduler(
        context, [JOB], launcher=launcher, watcher=watcher, deadlines=Deadlines(),
        destructive_stage=DestructiveStage(people, CommandFaultInjector(None)), callbacks=callbacks,
    )  # fmt: skip


def submission(of: Scheduler, *states: str, job: Job = JOB, **more: Any) -> Submission:
    folder = of._context.directory.job(job.name)
    folder.mkdir(exist_ok=True)
    made = Submission(job=job, name=job.name, directory=folder, number=1, **more)
    made.parts |= {str(k): JobState(state) for k, state in enumerate(states, 7)}
    return made


# --- called by the owner


def test_the_owner_waits_ninety_seconds_for_the_end(scheduler):
    waited: list[float] = []
    scheduler._thread = SimpleNamespace(
        alive=True, error=None, join=lambda s: waited.append(s) or True,
        wait_for=lambda event, s: event is scheduler._submissions_done and s == 3,
    )  # fmt: skip
    scheduler.stop("Ctrl-C")
    assert waited == [90.0]
    assert (scheduler.alive, scheduler.join(1.0)) == (True, True)
    assert scheduler.wait_for_submissions(3) is True
    assert (scheduler._stop_reason, scheduler._stop_requested.is_set()) == ("Ctrl-C", True)


def test_jobs_at_work_owe_a_record_and_have_not_left_slurm(scheduler):
    scheduler._active = [
        submission(scheduler, "RUNNING", "PENDING", pending={"gemm"}),
        submission(scheduler, "RUNNING"), submission(scheduler, "FAILED", pending={"gemm"}),
    ]  # fmt: skip
    assert scheduler.jobs_at_work == 2


def test_an_error_of_the_suite_is_told_with_its_file(scheduler):
    assert (scheduler.error, scheduler.suite_error) == (None, "")
    scheduler._thread = SimpleNamespace(error=ValueError("of the thread"))
    assert scheduler.suite_error == "suite error: ValueError('of the thread')"
    for text in ("first", "second"):
        with scheduler._keeping_error():
            raise KeyError(text)
    assert str(scheduler.error) == "'first'"
    assert f"see jobs/{module.SUITE_ERROR}: KeyError('first')" in scheduler.suite_error


def test_states_of_nodes_are_those_of_slurm_only(world, tmp_path):
    world.node_states = {}
    assert built(world, tmp_path)._retry.usable(JOB) is False
    assert built(world, tmp_path, "local")._retry.usable(JOB) is True


# --- how long it waits


def test_jobs_that_were_cancelled_are_waited_for_a_minute_or_after_an_error_five_seconds(
    scheduler, world
):
    world.states_of = {"7": JobState("RUNNING")}
    for error, seconds in ((None, 60.0), (ValueError(), 5.0)):
        scheduler._error, start = error, world.now
        scheduler._cancel([submission(scheduler, "RUNNING")])
        assert seconds <= world.now - start < seconds + 0.5
    scheduler.hurried, start = True, world.now
    scheduler._cancel([submission(scheduler, "RUNNING")])
    assert world.now == start
    # A minute is six times of ten seconds: a controller that was away has not heard of it.
    assert world.cancelled == ["7"] * 8
    scheduler._cancel([submission(scheduler, "FAILED")])
    assert len(world.cancelled) == 8
    # One that Slurm no longer knows is gone.
    world.states_of = {"7": JobState("GONE")}
    scheduler.hurried, start = False, world.now
    scheduler._cancel([submission(scheduler, "RUNNING")])
    assert world.now == start


@pytest.mark.parametrize(
    ("states", "left"),
    [(("RUNNING", "PENDING"), ["7", "8"]), (("SUBMITTED",), ["7"]), (("SUSPENDED", "GONE"), ["7"]),
     (("COMPLETING", "FAILED"), []), (("GONE",), [])],
)  # fmt: skip
def test_jobs_left_are_those_whose_end_is_not_proven(scheduler, states, left):
    scheduler._active = [submission(scheduler, *states)]
    assert scheduler.jobs_left == left


def test_jobs_that_the_run_does_not_know_of_are_cancelled_at_its_end(scheduler, world):
    scheduler._active = [submission(scheduler, "RUNNING")]
    world.living = {"7": "RUNNING", "20": "PENDING", "21": "COMPLETING"}
    scheduler._ending.cancel_unknown({"7"})
    assert world.cancelled == ["20", "21"]
    assert scheduler.jobs_left == ["7", "20"]
    world.living = None
    scheduler._ending.cancel_unknown({"7"})
    assert world.cancelled == ["20", "21"]


def test_what_runs_on_this_host_leaves_no_job(world, tmp_path):
    here = built(world, tmp_path, backend="local")
    here._active = [submission(here, "RUNNING")]
    assert here.jobs_left == []


def test_the_run_shows_that_it_lives_every_half_minute(scheduler, world):
    for seconds, beats in ((30.0, 0), (0.5, 1), (30.0, 1), (0.5, 2)):
        world.now += seconds
        scheduler._tick()
        assert world.beats == beats


@pytest.mark.parametrize(("requeue", "left"), [(False, False), (True, True)])
def test_a_victim_s_nodes_are_waited_for_twenty_seconds_after_its_end(
    scheduler, world, requeue, left
):
    job = replace(JOB, victim=Victim(fault_timeout_s=1, requeue=requeue))
    s = submission(scheduler, "RUNNING", job=job, closed=True, closed_since=world.now)
    scheduler._active = [s]
    assert scheduler._has_left(job) is False  # nothing is settled
    scheduler._collector.record_all_missing(job, Failure(JobKind.NOT_RUN, "x"))
    world.now += 19.5
    assert scheduler._has_left(job) is left
    assert scheduler._has_left(JOB) is True
    world.now += 0.5
    assert scheduler._has_left(job) is True
    s.closed = False
    assert scheduler._has_left(job) is left


@pytest.mark.parametrize("settled", [False, True])
def test_how_it_goes_elsewhere_is_awaited_to_the_end_of_the_stage(scheduler, world, settled):
    job = replace(JOB, nodes=("worker0",), placement="worker0")
    scheduler._context.attempts["gemm", "worker0"] = 1
    s = submission(scheduler, "FAILED", job=job, closed=True, closed_since=world.now)
    (s.directory / "submitit").mkdir(parents=True)
    (s.directory / "submitit" / "7_0_log.out").touch()
    s.pending = {"gemm"}
    other = replace(JOB, nodes=("worker1",), placement="worker1")
    scheduler._active = [submission(scheduler, "RUNNING", job=other, pending={"gemm"})]
    scheduler._comparison.begin([job, other])
    assert scheduler._comparison.take(s, Failure(JobKind.NOT_VISIBLE, "no log"))
    world.now += 900
    scheduler._settle_compared(at_once=settled)
    assert bool(list(read_lines(scheduler._context.directory.missing))) is settled


def test_a_failure_that_is_awaited_when_the_run_is_stopped_keeps_what_was_heard(scheduler, world):
    job = replace(JOB, nodes=("worker0",), placement="worker0")
    scheduler._context.attempts["gemm", "worker0"] = 1
    s = submission(scheduler, "FAILED", job=job, closed=True, pending={"gemm"})
    scheduler._comparison.begin([job])
    scheduler._comparison.hear(job)
    assert scheduler._comparison.take(s, Failure(JobKind.RANK_RAISED, "ValueError"))
    scheduler._stop_requested.set()
    scheduler._run_stages()
    scheduler._settle_compared(at_once=True)
    (line,) = read_lines(scheduler._context.directory.missing)
    assert (line["reason"], "cause" in line) == ("ValueError", False)


# --- submitting and reading


def test_a_limit_of_the_user_s_jobs_is_for_good_after_a_second_try_without_any(scheduler, world):
    first = QueuedJob(JOB, 1)
    again = QueuedJob(JOB, 1, submission(scheduler), 5.0)
    limit = SlurmBusy("AssocMaxSubmitJobLimit")
    assert isinstance(scheduler._final(again, limit), SlurmRefused)
    assert scheduler._final(first, limit) is limit
    other = SlurmBusy("Socket timed out")
    assert scheduler._final(again, other) is other
    assert scheduler._final(again, None) is None
    world.nobody_queued = False
    assert scheduler._final(again, limit) is limit


def test_what_runs_is_looked_after_once_submitting_has_taken_a_second(scheduler, world):
    for seconds, count in ((0.6, 2), (1.1, 1), (0.1, 4)):
        queued, submitted = iter("abcd"), []
        scheduler._queue = SimpleNamespace(next=lambda *_, of=queued: next(of, ""))
        scheduler._submit = lambda one, to=submitted, s=seconds: to.append(one) or world.sleep(s)
        scheduler._submit_queued()
        assert submitted == list("abcd")[:count]


def test_jobs_in_doubt_are_adopted_where_slurm_has_them(scheduler):
    again = QueuedJob(JOB, 1, submission(scheduler), 5.0)
    found = scheduler._adopted(again)
    assert found is again.refused_submission
    assert list(found.parts) == ["7"]


def test_why_a_job_was_not_submitted_has_its_kind():
    kinds = {
        SlurmBusy("x"): JobKind.QUEUE_TIMEOUT, SlurmRefused("x"): JobKind.REFUSED,
        RunError("x"): JobKind.NEVER_STARTED,
    }  # fmt: skip
    assert {e: module._refusal(e) for e in kinds} == {e: Failure(k, "x") for e, k in kinds.items()}


def test_those_that_waited_longest_are_read_first_as_far_as_files_allow(scheduler, monkeypatch):
    monkeypatch.setattr(module, "FILES_PER_TICK", 3)
    made = [
        submission(scheduler, "RUNNING", read_at=float(9 - k), tails=[SimpleNamespace()] * files)
        for k, files in enumerate((1, 2, 2, 9))
    ]
    assert scheduler._next_to_read(made) == [made[3]]  # the largest counts as what is read of it
    assert scheduler._next_to_read(made) == [made[2]]
    assert scheduler._next_to_read(made) == [made[1], made[0]]


# --- nodes that are left out


@pytest.mark.parametrize(
    ("stage", "excluded", "nodes"),
    [
        ("cluster", (), ("worker0", "worker1")), ("cluster", ("worker1",), ("worker0",)),
        ("cluster", ("worker0", "worker1"), None), ("pair", ("worker1",), None),
        ("locate", ("worker1",), None), ("destructive", ("worker1",), None),
    ],
)  # fmt: skip
def test_a_job_goes_on_without_nodes_that_are_left_out_unless_it_needs_them(
    scheduler, stage, excluded, nodes
):
    scheduler._excluded_nodes = dict.fromkeys(excluded, "it is ill")
    found = scheduler._without_excluded(replace(JOB, stage=stage))
    assert (found and found.nodes) == nodes
    lines = list(read_lines(scheduler._context.directory.missing))
    assert len(lines) == (nodes is None)
    if lines:
        assert "worker1 was left out: it is ill" in lines[0]["reason"]


def test_only_node_jobs_that_are_not_small_leave_their_node_out(scheduler):
    alone = replace(JOB, nodes=("worker0",), stage="node")
    scheduler._apply_gates([replace(alone, stage="pair")])
    scheduler._apply_gates([replace(alone, small=SmallJob())])
    assert scheduler._excluded_nodes == {}
    scheduler._apply_gates([alone])
    assert scheduler._excluded_nodes == {"worker0": "its node job left no record of gemm"}
    # What needs the node follows from what its own job lacks.
    assert scheduler._without_excluded(replace(JOB, stage="pair")) is None
    *_, line = read_lines(scheduler._context.directory.missing)
    assert (line["kind"], line["follows_from"]) == ("left out", "gemm@worker0")
