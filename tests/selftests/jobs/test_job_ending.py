"""How jobs end: how long each is waited for, and which are ended though the run knows them not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.jobs import job_ending
from fixtures.jobs.context import RunContext
from fixtures.jobs.job_ending import JobEnding
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job
from fixtures.records.run_directory import RunDirectory
from tests.selftests import support

pytestmark = pytest.mark.cpu

JOB = Job(
    name="pair", stage="pair", placement="p", nodes=("worker0", "worker1"), ranks_per_node=1,
    workloads=(("gemm", ("bf16",)),),
)  # fmt: skip


class World:
    """Slurm and the clock, as a run that ends sees them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self.states: dict[str, JobState] = {}
        self.living: list[dict[str, str] | None] = []
        self.cancelled: list[str] = []
        self.usable = self.hurried = False
        self.folder = folder
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(job_ending, "time", clock)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def ending(self) -> JobEnding:
        context = RunContext(
            directory=RunDirectory(self.folder), run_id="r", nonce=support.NONCE,
            population=support.population(2), attempts={}, spec_facts={},
        )  # fmt: skip
        launcher: Any = SimpleNamespace(cancel=self.cancelled.extend)
        watcher: Any = SimpleNamespace(
            states=lambda ids: self.states, invalidate=lambda: None,
            living=lambda run, root: self.living.pop(0),
        )  # fmt: skip
        return JobEnding(
            context, launcher, watcher, usable=lambda job: self.usable, hurried=lambda: self.hurried
        )

    def submission(self, *states: str, **more: Any) -> Submission:
        made = Submission(job=JOB, name=JOB.name, directory=self.folder, number=1, **more)
        made.parts |= {str(k): JobState(state) for k, state in enumerate(states, 7)}
        return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(("broken", "seconds", "times"), [(False, 60.0, 6), (True, 5.0, 1)])
def test_cancelled_jobs_have_a_minute_and_after_an_error_five_seconds(
    world, broken, seconds, times
):
    world.ending().cancel([world.submission("RUNNING")], broken=broken)
    assert seconds <= world.now - 1000 < seconds + 0.5
    # A controller that was away has not heard of it.
    assert world.cancelled == ["7"] * times


def test_nothing_is_waited_for_where_nothing_lives_or_the_owner_is_in_a_hurry(world):
    world.ending().cancel([world.submission("FAILED")])
    assert (world.cancelled, world.slept) == ([], [])
    world.hurried = True
    world.ending().cancel([world.submission("RUNNING", "PENDING")])
    assert (world.cancelled, world.slept) == (["7", "8"], [])


def test_one_that_completes_is_waited_for_at_the_end_on_nodes_that_work(world):
    done, s = world.ending().has_ended, world.submission("COMPLETING")
    assert done(s, wait_for_completing=True) is True
    world.usable = True
    assert done(s, wait_for_completing=True) is False
    assert done(s, wait_for_completing=False) is True
    assert done(world.submission("RUNNING"), wait_for_completing=False) is False
    assert done(world.submission("FAILED"), wait_for_completing=True) is True


def test_jobs_that_delivered_all_have_ten_seconds_to_end_by_themselves(world):
    alone, owing = world.submission("RUNNING"), world.submission("RUNNING", pending={"gemm"})
    assert list(world.ending().wait_for_exits([alone, owing])) == []
    assert (sum(world.slept), set(world.slept)) == (pytest.approx(10.0, abs=0.2), {0.1})
    world.slept.clear()
    assert list(world.ending().wait_for_exits([owing])) == []
    assert world.slept == []
    world.states = {"7": JobState("COMPLETED")}
    assert list(world.ending().wait_for_exits([alone, owing])) == [alone]
    assert world.slept == [0.1]


@pytest.mark.parametrize(
    ("after", "left"),
    [({}, set()), ({"20": "RUNNING"}, {"20"}), ({"20": "COMPLETING"}, set()),
     (None, {"20", "21"})],
)  # fmt: skip
def test_jobs_that_the_run_does_not_know_of_are_cancelled_at_its_end(world, after, left):
    world.living = [{"7": "RUNNING", "20": "PENDING", "21": "COMPLETING"}, after]
    ending = world.ending()
    ending.cancel_unknown({"7"})
    assert (world.cancelled, ending.unknown) == (["20", "21"], left)


@pytest.mark.parametrize("living", [None, {}, {"7": "RUNNING"}])
def test_where_slurm_names_no_other_job_none_is_cancelled(world, living):
    world.living = [living]
    world.ending().cancel_unknown({"7"})
    assert world.cancelled == []
