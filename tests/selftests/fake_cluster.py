"""The job scheduler on a fake cluster, whose jobs write the lines of their ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.jobs import deadlines, job_ending, job_queue
from fixtures.jobs.context import RunContext
from fixtures.jobs.deadlines import Deadlines
from fixtures.jobs.destructive_stage import DestructiveStage
from fixtures.jobs.fault_injector import CommandFaultInjector
from fixtures.jobs.job_queue import RunCallbacks, Scheduler
from fixtures.jobs.launcher import JobRequest, SlurmBusy
from fixtures.jobs.watcher import JobState
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.records.files import read_json, read_lines
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from tests.selftests import support
from tests.selftests.support import NONCE, result_line

RUNNING, COMPLETED, FAILED = JobState("RUNNING"), JobState("COMPLETED"), JobState("FAILED")
LIMITS = loader.load(support.SHIPPED)
PATIENCE_S = 60


@dataclass
class FakeJob:
    """A submitted job; its script writes what the ranks would."""

    id: str
    name: str
    spec: dict[str, Any]
    script: Callable[[FakeJob], JobState]
    part: int = 0
    state: JobState = field(default_factory=lambda: JobState("PENDING", "Priority"))
    asked: bool = False

    @property
    def workloads(self) -> list[str]:
        return [w["name"] for w in self.spec["workloads"]]

    @property
    def ranks(self) -> range:
        count = len(self.spec["nodes"]) * self.spec["ranks_per_node"]
        return range(self.part * count, (self.part + 1) * count)

    def say(self, event: str, k: int, workload: str, **more: Any) -> None:
        (placement,) = {w["placement"] for w in self.spec["workloads"]}
        nodes = self.spec["nodes"]
        node = nodes[k // self.spec["ranks_per_node"] % len(nodes)]
        size = len(self.ranks) * self.spec["parts"]
        line = {**result_line(k), "event": event, "workload": workload, "placement": placement}
        line |= {"node": node, "world_size": size, "nonce": self.spec["nonce"], **more}
        support.say(Path(self.spec["directory"]) / f"rank{k}.jsonl", [line])

    def start(self, workload: str) -> None:
        for k in self.ranks:
            self.say("started", k, workload)

    def deliver(self, *workloads: str) -> None:
        for workload in workloads:
            self.start(workload)
            for k in self.ranks:
                self.say("result", k, workload)


def healthy(job: FakeJob) -> JobState:
    job.deliver(*job.workloads)
    return COMPLETED


def dies_in(workload: str, state: JobState = FAILED) -> Callable[[FakeJob], JobState]:
    """Delivers what comes before the workload, and dies in it; without it, is healthy."""

    def script(job: FakeJob) -> JobState:
        if workload not in job.workloads:
            return healthy(job)
        job.deliver(*job.workloads[: job.workloads.index(workload)])
        job.start(workload)
        return state

    return script


def dies_at_once(job: FakeJob) -> JobState:
    job.start(job.workloads[0])
    return FAILED


def stays(state: JobState) -> Callable[[FakeJob], JobState]:
    return lambda job: state


@dataclass
class Refusal:
    """slurmctld has no time for a submission; it may have taken it all the same."""

    taken: bool
    said: str = "Socket timed out"


class FakeCluster:
    """Launcher and watcher in one; plays a job's script when it is first asked for its state."""

    backend = "fake"
    memory_limit = ""

    def __init__(
        self, scripts: Mapping[str, Callable[[FakeJob], JobState]], *, queues: bool = True
    ) -> None:
        self.scripts = scripts
        self.queues = queues
        self.jobs: dict[str, FakeJob] = {}
        self.events: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.asked = threading.Event()
        self.most = 0
        """Jobs that were alive at a time."""
        self.refusals: Iterator[Refusal] = iter(())
        self.idle = False
        """Whether no job runs on any node."""
        self.others_queued = True
        """Whether this user has jobs in the queue that are not of the suite."""
        self._lock = threading.Lock()

    def submit(self, request: JobRequest, spec: Path) -> str:
        script = self.scripts.get(request.name, healthy)
        if isinstance(script, Exception):
            raise script
        with self._lock:
            refusal = next(self.refusals, None)
            if refusal is not None and not refusal.taken:
                raise SlurmBusy(f"sbatch refused it: {refusal.said}")
            job_id = str(1000 + len(self.jobs))
            job = FakeJob(job_id, request.name, read_json(spec), script, request.part)
            self.jobs[job.id] = job
            self.events.append(("submit", job.name))
            living = sum(not j.state.ended for j in self.jobs.values())
            self.most = max(self.most, living)
        if refusal is not None:
            raise SlurmBusy(f"sbatch refused it: {refusal.said}")
        return job.id

    def cancel(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self.cancelled.append(self.jobs[job_id].name)
            self.events.append(("cancel", self.jobs[job_id].name))
            self.jobs[job_id].state = JobState("CANCELLED")

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        for job_id in job_ids:
            job = self.jobs[job_id]
            if not job.asked:
                job.asked = True
                job.state = job.script(job)
                self.events.append(("run", job.name))
        self.asked.set()
        now = time.monotonic()
        return {job_id: replace(self.jobs[job_id].state, queried_at=now) for job_id in job_ids}

    def invalidate(self) -> None:
        pass

    def find(self, name: str, since: float) -> list[str]:
        return [job.id for job in self.jobs.values() if name == f"accept-r-{job.name}"]

    def nodes(self) -> dict[str, str]:
        return {}

    def reason(self, node: str) -> str:
        return ""

    def all_idle(self) -> bool:
        return self.idle

    def none_queued(self, since: float) -> bool:
        return not self.others_queued

    def living(self, run_id: str, root: Path) -> dict[str, str]:
        return {job.id: job.state.state for job in self.jobs.values() if not job.state.ended}

    def named(self, name: str) -> FakeJob:
        return next(job for job in self.jobs.values() if job.name == name)


@dataclass
class Conducted:
    """What a scheduler left behind."""

    cluster: FakeCluster
    scheduler: Scheduler
    directory: RunDirectory
    planned: list[tuple[str, str]]

    def finish(self) -> Conducted:
        """Wait for the end; what was planned is a record or one reason, never both or neither."""
        assert self.scheduler.join(PATIENCE_S)
        lines = [(m["workload"], m["placement"]) for m in read_lines(self.directory.missing)]
        assert sorted(self.records + lines) == sorted(self.planned)
        return self

    @property
    def records(self) -> list[tuple[str, str]]:
        found = []
        for path in self.directory.records.iterdir():
            record = Record.from_json(read_json(path), nonce=NONCE)
            assert record.name == path.name
            found.append((record.workload, record.placement))
        return found

    def record(self, workload: str, placement: str, attempt: int = 1) -> Record:
        return Record.from_json(read_json(self.directory.record(workload, placement, attempt)))

    @property
    def missing(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(m["workload"], m["placement"]): m for m in read_lines(self.directory.missing)}

    @property
    def submitted(self) -> list[str]:
        return [name for event, name in self.cluster.events if event == "submit"]


Conduct = Callable[..., Conducted]

BEFORE_TRAINING = ("node", "pair", "cluster")
"""Stages enough to see how one follows another."""


def conductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conduct:
    """Run the plan of a small population on a fake cluster; its waiting is cut short."""
    monkeypatch.setattr(job_queue, "TICK_S", 0.002)
    monkeypatch.setattr(job_ending, "EXIT_TICK_S", 0.002)
    monkeypatch.setattr(deadlines, "FILE_GRACE_S", 0.0)
    monkeypatch.setattr(deadlines, "STATE_LAG_S", 0.0)

    def run(
        scripts: Mapping[str, Any] | None = None,
        *,
        nodes: int = 2,
        only: Collection[str] = (),
        gate: Callable[[str], str | None] = lambda node: None,
        locate: Callable[..., None] = lambda nodes, measure: None,
        first: Callable[..., None] = lambda measure, lost: None,
        attempts: Mapping[tuple[str, str], int] | None = None,
        finish: bool = True,
        max_jobs: int | None = None,
        refusals: Iterable[Refusal] = (),
        idle: bool = False,
        others_queued: bool = True,
        queues: bool = True,
        **deadlines: float,
    ) -> Conducted:
        people = support.population(nodes)
        items = planned_list(LIMITS, people)
        jobs = [j for j in jobs_for(items, LIMITS, people) if j.stage in BEFORE_TRAINING]
        jobs = [j for j in jobs if not only or j.name in only]
        planned = [(w, j.placement) for j in jobs for w, _ in j.workloads]
        directory = RunDirectory(tmp_path / "run")
        directory.jobs.mkdir(parents=True, exist_ok=True)
        directory.records.mkdir(exist_ok=True)
        cluster = FakeCluster(scripts or {}, queues=queues)
        cluster.refusals = iter(refusals)
        cluster.idle, cluster.others_queued = idle, others_queued
        context = RunContext(
            directory=directory, run_id="r", nonce=NONCE, population=people, spec_facts={},
            attempts={key: (attempts or {}).get(key, 1) for key in planned},
        )  # fmt: skip
        started = Scheduler(
            context, jobs, launcher=cluster, watcher=cluster, deadlines=Deadlines(**deadlines),
            destructive_stage=DestructiveStage(people, CommandFaultInjector(None)),
            callbacks=RunCallbacks(
                gate=gate, locate=locate, heartbeat=lambda: None, first=first
            ),
            max_jobs=max_jobs,
        )  # fmt: skip
        started.start()
        conducted = Conducted(cluster, started, directory, planned)
        return conducted.finish() if finish else conducted

    return run


@pytest.fixture
def conduct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conduct:
    return conductor(tmp_path, monkeypatch)
