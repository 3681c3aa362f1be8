"""From a planned job to its directory, spec, submission and job.json."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.entry import SmallJob
from fixtures.errors import RunError
from fixtures.jobs import submitter
from fixtures.jobs.context import RunContext
from fixtures.jobs.launcher import JobRequest, SlurmBusy
from fixtures.jobs.submission import Submission
from fixtures.jobs.submission_queue import QueuedJob
from fixtures.jobs.submitter import JobSubmitter
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job, Victim
from fixtures.records import run_directory
from fixtures.records.run_directory import RunDirectory
from tests.selftests import support

pytestmark = pytest.mark.cpu

JOB = Job(
    name="pair", stage="pair", placement="p", nodes=("worker0", "worker1"), ranks_per_node=2,
    gpus_per_node=2, workloads=(("environment", ("versions",)), ("inventory", ("gpus",))),
    params={"every_path": True}, references={"inventory": [{"limit": 2}]},
)  # fmt: skip
SMALL = replace(JOB, small=SmallJob(tasks=1, memory_mib=512, batch="some.module", halves=True))


class Launcher:
    """Remembers what it is asked for; refuses what it is told to."""

    backend = "fake"

    def __init__(self) -> None:
        self.requests: list[JobRequest] = []
        self.refuses: Exception | None = None

    def submit(self, request: JobRequest, spec: Path) -> str:
        assert spec.is_file()
        if self.refuses is not None and request.part == len(self.requests):
            raise self.refuses
        self.requests.append(request)
        return str(100 + request.part)


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def jobs(tmp_path: Path, launcher: Launcher) -> JobSubmitter:
    people = replace(support.population(2), addresses={"worker0": "10.0.0.1"})
    context = RunContext(
        directory=RunDirectory(tmp_path), run_id="r", nonce=support.NONCE, population=people,
        attempts={("environment", "p"): 1, ("inventory", "p"): 3}, spec_facts={"token": "t"},
    )  # fmt: skip
    found = {"accept-r-pair": ["7", "8"], "accept-r-gone": []}
    watcher = SimpleNamespace(find=lambda name, since: found.get(name) if since > 5 else None)
    return JobSubmitter(context, launcher, watcher)  # type: ignore[arg-type]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_each_submission_of_a_job_has_a_fresh_directory(jobs, tmp_path):
    made = [jobs.prepare(JOB, 1) for _ in range(3)]
    assert [s.name for s in made] == ["pair", "pair.2", "pair.3"]
    assert [s.directory for s in made] == [tmp_path / "jobs" / s.name for s in made]
    assert made[0].pending == {"environment", "inventory"}
    assert [t.path.name for t in made[0].tails] == [f"rank{k}.jsonl" for k in range(4)]


def test_files_of_a_large_job_are_spread_over_folders(jobs, monkeypatch):
    monkeypatch.setattr(run_directory, "FILES_PER_FOLDER", 2)
    s = jobs.prepare(JOB, 1)
    folders = {t.path.parent for t in s.tails}
    assert len(folders) == 2
    assert all(f.is_dir() for f in folders)


def test_ranks_are_told_all_that_they_need(jobs, tmp_path):
    s = jobs.prepare(JOB, 1)
    spec = read(s.directory / "spec.json")
    assert spec["nodes"] == ["worker0", "worker1"]
    assert (spec["job"], spec["run_id"], spec["token"], spec["attempt"]) == ("pair", "r", "t", 3)
    assert (spec["ranks_per_node"], spec["parts"], spec["gpus_per_node"]) == (2, 1, 2)
    assert (spec["anywhere"], spec["telemetry"], spec["memory_mib"]) == (False, False, None)
    assert spec["master_address"] == "10.0.0.1"
    first, second = spec["workloads"]
    assert (first["name"], first["attempt"], first["references"]) == ("environment", 1, [])
    assert (second["metrics"], second["references"]) == (["gpus"], [{"limit": 2}])
    assert second["params"] == {"every_path": True}
    assert second["module"].endswith(".inventory")


@pytest.mark.parametrize("requeue", [True, False])
def test_only_a_job_that_is_requeued_may_start_on_another_node(jobs, requeue):
    s = jobs.prepare(replace(JOB, victim=Victim(fault_timeout_s=9, requeue=requeue)), 1)
    assert read(s.directory / "spec.json")["anywhere"] is requeue


def test_each_submission_has_its_port_below_the_ephemeral_ones(jobs):
    specs = [read(jobs.prepare(JOB, 1).directory / "spec.json") for _ in range(3)]
    ports = [spec["master_port"] for spec in specs]
    assert len(set(ports)) == 3
    assert all(20000 <= port < 32000 for port in ports)
    assert submitter.hash_port("x") == submitter.hash_port("x") < 12000


def test_what_slurm_is_asked_for_is_what_the_job_needs(jobs, launcher):
    s = jobs.prepare(JOB, 1)
    assert jobs.submit([s]) == [None]
    (asked,) = launcher.requests
    assert (asked.name, asked.nodes, asked.ranks_per_node) == ("pair", JOB.nodes, 2)
    assert (asked.memory_mib, asked.batch, asked.victim, asked.gpus_per_node) == (
        None,
        "",
        False,
        2,
    )
    # Whole minutes of its deadline, and three.
    assert asked.time_limit_min == JOB.deadline_s("cpu") // 60 + 3
    assert s.parts == {"100": JobState("SUBMITTED")}
    written = read(s.directory / "job.json")
    assert (written["id"], written["name"], written["backend"]) == ("100", "pair", "fake")
    assert (written["nodes"], written["gpus"]) == (["worker0", "worker1"], 4)


def test_a_small_job_asks_for_a_part_of_its_nodes_in_two_jobs(jobs, launcher):
    s = jobs.prepare(SMALL, 1)
    assert jobs.submit([s]) == [None]
    assert [r.part for r in launcher.requests] == [0, 1]
    assert {(r.memory_mib, r.batch) for r in launcher.requests} == {(512, "some.module")}
    assert s.job_id == "100,101"
    assert read(s.directory / "spec.json")["memory_mib"] == 512
    assert read(s.directory / "job.json")["gpus"] == 0  # others may have the rest of the node


@pytest.mark.parametrize(("given", "minutes"), [(7, 7), (None, JOB.deadline_s("cpu") // 60 + 3)])
def test_a_victim_has_its_own_limits(jobs, launcher, given, minutes):
    victim = Victim(fault_timeout_s=9, time_limit_min=given, requeue=True, exclude=("worker1",))
    jobs.submit([jobs.prepare(replace(JOB, victim=victim), 1)])
    (asked,) = launcher.requests
    assert (asked.victim, asked.requeue, asked.exclude) == (True, True, ("worker1",))
    assert asked.time_limit_min == minutes


def test_a_refusal_is_returned_and_only_the_parts_that_are_missing_are_asked_for_again(
    jobs, launcher
):
    s = jobs.prepare(SMALL, 1)
    launcher.requests, launcher.refuses = [], SlurmBusy("no time")
    (error,) = jobs.submit([s])
    assert isinstance(error, RunError)
    assert (s.parts, (s.directory / "job.json").exists()) == ({}, False)
    launcher.refuses = None
    s.parts["100"] = JobState("SUBMITTED")
    assert jobs.submit([s]) == [None]
    assert [r.part for r in launcher.requests] == [1]


def test_jobs_that_slurm_took_though_it_refused_them_are_adopted(jobs):
    def doubtful(name: str, at: float) -> QueuedJob:
        s = Submission(job=JOB, name=name, directory=Path(), number=1)
        s.parts["7"] = JobState("RUNNING")
        return QueuedJob(JOB, 1, s, at)

    known = doubtful("pair", 6.0)
    assert jobs.adopt(known) is True
    assert known.refused_submission is not None
    assert known.refused_submission.parts == {
        "7": JobState("RUNNING"), "8": JobState("SUBMITTED"),
    }  # fmt: skip
    assert jobs.adopt(doubtful("gone", 6.0)) is True
    assert jobs.adopt(doubtful("pair", 1.0)) is False


def test_a_job_has_ended_in_job_json_only_when_it_is_closed(jobs):
    s = jobs.prepare(JOB, 1)
    for times, closed, expected in (
        (None, True, (None, None)), ((1.0, 2.0), False, (1.0, None)), ((1.0, 2.0), True, (1.0, 2.0))
    ):  # fmt: skip
        s.times, s.closed = times, closed
        jobs.write_job_json(s)
        written = read(s.directory / "job.json")
        assert (written["started"], written["ended"]) == expected


def test_as_many_are_submitted_at_a_time_as_slurmctld_takes_in_a_moment(jobs, monkeypatch):
    """Each waits 0.2 s in submitit: eight at a time are 40 in a second."""
    sizes = []

    def pool(max_workers: int) -> ThreadPoolExecutor:
        sizes.append(max_workers)
        return ThreadPoolExecutor(max_workers)

    monkeypatch.setattr(submitter, "ThreadPoolExecutor", pool)
    assert jobs.submit([jobs.prepare(JOB, 1), jobs.prepare(JOB, 1)]) == [None, None]
    assert sizes == [8]
