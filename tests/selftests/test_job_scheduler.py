"""The scheduler against a fake cluster that writes rank lines: order, gates, retries, reasons."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import RunError
from fixtures.jobs import deadlines, scheduler, submission_queue
from fixtures.jobs.context import RunContext
from fixtures.jobs.deadlines import Deadlines
from fixtures.jobs.destructive_stage import DestructiveStage
from fixtures.jobs.fault_injector import CommandFaultInjector
from fixtures.jobs.launcher import Busy, JobRequest
from fixtures.jobs.scheduler import RunCallbacks, Scheduler
from fixtures.jobs.watcher import JobState
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.records.files import read_json, read_lines
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from tests.selftests import support
from tests.selftests.support import NONCE, result_line

pytestmark = pytest.mark.cpu

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


class FakeCluster:
    """Launcher and watcher in one; plays a job's script when it is first asked for its state."""

    backend = "fake"

    def __init__(self, scripts: Mapping[str, Callable[[FakeJob], JobState]]) -> None:
        self.scripts = scripts
        self.jobs: dict[str, FakeJob] = {}
        self.events: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.asked = threading.Event()
        self.most = 0
        """Jobs that were alive at a time."""
        self.refusals: Iterator[Refusal] = iter(())
        self._lock = threading.Lock()

    def submit(self, request: JobRequest, spec: Path) -> str:
        script = self.scripts.get(request.name, healthy)
        if isinstance(script, Exception):
            raise script
        with self._lock:
            refusal = next(self.refusals, None)
            if refusal is not None and not refusal.taken:
                raise Busy("sbatch refused it: Socket timed out")
            job_id = str(1000 + len(self.jobs))
            job = FakeJob(job_id, request.name, read_json(spec), script, request.part)
            self.jobs[job.id] = job
            self.events.append(("submit", job.name))
            living = sum(not j.state.ended for j in self.jobs.values())
            self.most = max(self.most, living)
        if refusal is not None:
            raise Busy("sbatch refused it: Socket timed out")
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
        return {job_id: replace(self.jobs[job_id].state, asked=now) for job_id in job_ids}

    def forget(self) -> None:
        pass

    def find(self, name: str, since: float) -> list[str]:
        return [job.id for job in self.jobs.values() if name == f"accept-r-{job.name}"]

    def nodes(self) -> dict[str, str]:
        return {}

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
        self.scheduler.join(PATIENCE_S)
        assert not self.scheduler.is_alive()
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


@pytest.fixture
def conduct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conduct:
    """Run the plan of a small population on a fake cluster; its waiting is cut short."""
    monkeypatch.setattr(scheduler, "TICK_S", 0.002)
    monkeypatch.setattr(deadlines, "FILE_GRACE_S", 0.0)
    monkeypatch.setattr(deadlines, "STALE_S", 0.0)

    def run(
        scripts: Mapping[str, Any] | None = None,
        *,
        nodes: int = 2,
        only: Collection[str] = (),
        gate: Callable[[str], str | None] = lambda node: None,
        locate: Callable[..., None] = lambda nodes, measure: None,
        attempts: Mapping[tuple[str, str], int] | None = None,
        finish: bool = True,
        max_jobs: int | None = None,
        refusals: Iterable[Refusal] = (),
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
        cluster = FakeCluster(scripts or {})
        cluster.refusals = iter(refusals)
        context = RunContext(
            directory=directory, run_id="r", nonce=NONCE, population=people, spec_facts={},
            attempts={key: (attempts or {}).get(key, 1) for key in planned},
        )  # fmt: skip
        started = Scheduler(
            context, jobs, launcher=cluster, watcher=cluster, deadlines=Deadlines(**deadlines),
            destructive_stage=DestructiveStage(people, CommandFaultInjector(None)),
            callbacks=RunCallbacks(gate=gate, locate=locate, heartbeat=lambda: None),
            max_jobs=max_jobs,
        )  # fmt: skip
        started.start()
        conducted = Conducted(cluster, started, directory, planned)
        return conducted.finish() if finish else conducted

    return run


# --- order


def test_a_job_is_told_near_which_values_one_round_is_not_enough(conduct):
    done = conduct()
    spec = read_json(done.directory.job("node-worker0") / "spec.json")
    (gemm,) = [w for w in spec["workloads"] if w["name"] == "gemm"]
    told = {r["metric"]: (r["at"], r["limit"]) for r in gemm["references"]}
    rows = {m: LIMITS.criteria[f"gemm.{m}"].limit_for({"model": "cpu"}) for m in told}
    assert set(told) == {"bf16", "fp32"}
    assert told == {m: ({}, row.fail_below.number) for m, row in rows.items()}


def test_everything_that_was_planned_becomes_a_record(conduct):
    done = conduct()
    assert sorted(done.records) == sorted(done.planned)
    assert done.missing == {}
    assert done.cluster.cancelled == []
    assert done.scheduler.error is None


def test_all_jobs_of_a_stage_are_submitted_before_the_first_is_awaited(conduct):
    events = conduct(nodes=3).cluster.events
    submits = [
        k for k, (event, name) in enumerate(events) if (event, name[:4]) == ("submit", "node")
    ]
    first = next(k for k, (event, _) in enumerate(events) if event == "run")
    assert len(submits) == 3
    assert max(submits) < first


def test_small_jobs_go_first_and_two_that_wait_for_each_other_before_all(conduct):
    submitted = conduct(nodes=2).submitted
    kinds = [name.split("-")[0] for name in submitted]
    assert kinds[:4] == ["isolation"] * 4
    assert kinds[4:6] == ["memory_limit", "placement"]
    assert kinds[6:] == ["node", "node", "cluster"]


def test_two_jobs_that_share_a_node_make_one_record(conduct):
    done = conduct(nodes=1)
    record = done.record("isolation", "worker0")
    assert [(r.rank, r.node) for r in record.ranks] == [(0, "worker0"), (1, "worker0")]
    both = [job.id for job in done.cluster.jobs.values() if job.name == "isolation-worker0"]
    assert record.job["id"] == ",".join(both)


def test_of_two_jobs_that_belong_together_one_that_fails_ends_the_other(conduct):
    def script(job: FakeJob) -> JobState:
        return dies_at_once(job) if job.part else RUNNING

    done = conduct({"isolation-worker0": script}, nodes=1)
    assert done.missing["isolation", "worker0"]["kind"] == "rank died"
    assert set(done.cluster.cancelled) == {"isolation-worker0"}


def test_a_small_job_that_failed_leaves_no_node_out(conduct):
    done = conduct(
        {"memory_limit-worker0--worker1": dies_at_once, "isolation-worker0": dies_at_once}
    )
    assert "cluster" in done.submitted
    assert done.record("allreduce", "all").nodes == ["worker0", "worker1"]


BUSY = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def test_a_job_behind_others_on_its_node_waits_though_slurm_speaks_of_down_nodes(conduct):
    waited: list[FakeJob] = []

    def script(job: FakeJob) -> JobState:
        waited.append(job)
        threading.Timer(0.1, start, [job]).start()
        return JobState("PENDING", BUSY)

    def start(job: FakeJob) -> None:
        job.state = RUNNING
        job.state = healthy(job)

    done = conduct({"node-worker0": script}, nodes=1)
    assert len(waited) == 1
    assert done.missing == {}


def test_a_stage_opens_when_all_jobs_of_the_one_before_have_delivered(conduct):
    events = conduct(nodes=3).cluster.events
    names = [name for event, name in events if event == "submit"]
    assert sorted(names[-6:-3]) == ["node-worker0", "node-worker1", "node-worker2"]
    assert sorted(names[-3:-1]) == ["pair-worker0--worker1", "pair-worker2--worker0"]
    assert names[-1] == "cluster"
    for later, earlier in (("pair", "node"), ("cluster", "pair")):
        opened = min(k for k, (e, n) in enumerate(events) if e == "submit" and n.startswith(later))
        ran = [k for k, (e, n) in enumerate(events) if e == "run" and n.startswith(earlier)]
        assert max(ran) < opened


def test_a_job_file_says_what_a_later_process_needs_to_find_the_job(conduct):
    done = conduct()
    job = json.loads((done.directory.job("cluster") / "job.json").read_text())
    assert (job["id"], job["backend"], job["nodes"]) == (
        done.cluster.named("cluster").id, "fake", ["worker0", "worker1"],
    )  # fmt: skip
    assert job["started"] <= job["ended"]


# --- gates and reduced sets


def test_a_node_that_failed_a_gate_is_left_out_of_later_stages(conduct):
    done = conduct(gate=lambda node: "gemm.bf16 failed there" if node == "worker0" else None)
    assert done.cluster.named("cluster").spec["nodes"] == ["worker1"]
    assert done.record("allreduce", "all").nodes == ["worker1"]
    assert done.missing == {}


def test_a_node_whose_job_left_a_record_out_is_left_out_of_later_stages(conduct):
    done = conduct({"node-worker1": dies_in("gemm")})
    assert done.cluster.named("cluster").spec["nodes"] == ["worker0"]
    assert list(done.missing) == [("gemm", "worker1")]


def test_a_pair_with_a_node_that_was_left_out_is_not_run_and_says_so(conduct):
    done = conduct(nodes=3, gate=lambda node: "it is ill" if node == "worker2" else None)
    assert "pair-worker2--worker0" not in done.submitted
    reasons = {m["reason"] for (_, where), m in done.missing.items() if "worker2" in where}
    assert reasons == {"worker2 was left out: it is ill"}
    assert {m["kind"] for m in done.missing.values()} == {"not run"}
    assert done.record("allreduce", "all").nodes == ["worker0", "worker1"]


def test_without_any_node_left_the_later_stages_are_not_run(conduct):
    done = conduct(gate=lambda node: "it is ill")
    assert "cluster" not in done.submitted
    reason = done.missing["allreduce", "all"]["reason"]
    assert reason == "worker0 was left out: it is ill; worker1 was left out: it is ill"


# --- trying again


def test_a_job_that_ended_early_is_submitted_again_without_what_it_died_in(conduct):
    done = conduct({"node-worker0": dies_in("gemm")})
    first = done.cluster.named("node-worker0").workloads
    again = done.cluster.named("node-worker0.2").workloads
    assert again == first[first.index("gemm") + 1 :]
    assert list(done.missing) == [("gemm", "worker0")]
    missed = done.missing["gemm", "worker0"]
    ended = done.cluster.named("node-worker0").id
    assert (missed["kind"], missed["job"], missed["attempt"]) == ("rank died", ended, 1)
    assert "was in gemm when it ended" in missed["reason"]


def test_it_is_not_submitted_again_for_ever(conduct):
    done = conduct(
        {"node-worker0": dies_at_once, "node-worker0.2": dies_at_once}, only=["node-worker0"]
    )
    assert done.submitted == ["node-worker0", "node-worker0.2"]
    assert done.records == []


def test_it_is_submitted_again_as_long_as_each_submission_leaves_a_record(conduct):
    def one_more(job: FakeJob) -> JobState:
        job.deliver(job.workloads[0])
        if len(job.workloads) > 1:
            job.start(job.workloads[1])
        return FAILED

    names = ["node-worker0", *(f"node-worker0.{k}" for k in range(2, 20))]
    done = conduct(dict.fromkeys(names, one_more), only=["node-worker0"])
    planned = len(done.planned)
    assert len(done.submitted) == (planned + 1) // 2
    assert len(done.records) == (planned + 1) // 2


def test_a_resumed_run_starts_in_a_fresh_folder_and_still_tries_again(conduct, tmp_path):
    (tmp_path / "run" / "jobs" / "node-worker0").mkdir(parents=True)
    done = conduct({"node-worker0.2": dies_at_once}, only=["node-worker0"])
    assert done.submitted == ["node-worker0.2", "node-worker0.3"]
    assert len(done.missing) == 1


def test_a_second_attempt_leaves_the_first_record_alone(conduct):
    conduct(only=["node-worker0"])
    done = conduct(only=["node-worker0"], attempts={("gemm", "worker0"): 2}, finish=False)
    done.scheduler.join(PATIENCE_S)
    assert done.record("gemm", "worker0", 1).attempt == 1
    assert done.record("gemm", "worker0", 2).attempt == 2
    attempts = {
        w["name"]: w["attempt"] for w in done.cluster.named("node-worker0.2").spec["workloads"]
    }
    assert attempts["gemm"] == 2
    assert attempts["environment"] == 1


# --- reasons


def only_kind(done: Conducted) -> str:
    """The kind of all that is missing, and nothing of it was submitted twice."""
    (kind,) = {m["kind"] for m in done.missing.values()}
    assert sorted(done.missing) == sorted(done.planned)
    assert done.submitted == ["node-worker0"]
    return str(kind)


@pytest.mark.parametrize(
    "reason", ["ReqNodeNotAvail, UnavailableNodes:worker0", "(PartitionConfig)", "BadConstraints"]
)
def test_a_job_that_will_never_start_is_cancelled(conduct, reason):
    done = conduct({"node-worker0": stays(JobState("PENDING", reason))}, only=["node-worker0"])
    assert only_kind(done) == "never started"
    assert done.cluster.cancelled == ["node-worker0"]
    assert reason.strip("()") in done.missing["gemm", "worker0"]["reason"]


def test_a_job_that_waits_too_long_times_out_in_the_queue(conduct):
    waiting = stays(JobState("PENDING", "Priority"))
    done = conduct({"node-worker0": waiting}, only=["node-worker0"], queue_s=0)
    assert only_kind(done) == "timed out in queue"
    assert done.cluster.cancelled == ["node-worker0"]


def test_a_job_that_runs_and_says_nothing_never_started(conduct):
    done = conduct({"node-worker0": stays(RUNNING)}, only=["node-worker0"], start_s=0)
    assert only_kind(done) == "never started"
    assert "no rank wrote a line" in done.missing["gemm", "worker0"]["reason"]


def test_a_job_that_is_pending_again_has_lost_its_node(conduct):
    def requeued(job: FakeJob) -> JobState:
        job.start(job.workloads[0])
        return JobState("PENDING", "BeginTime")

    done = conduct({"node-worker0": requeued}, only=["node-worker0"])
    assert only_kind(done) == "node lost"
    assert done.cluster.cancelled == ["node-worker0"]


def test_a_job_whose_node_failed_is_not_tried_again(conduct):
    script = dies_in("inventory", JobState("NODE_FAIL"))
    assert only_kind(conduct({"node-worker0": script}, only=["node-worker0"])) == "node lost"


def test_a_refused_submission_settles_its_job_and_leaves_the_others_alone(conduct):
    refused = RunError("sbatch refused node-worker0: invalid account")
    done = conduct({"node-worker0": refused})
    assert {m["kind"] for m in done.missing.values()} == {"never started"}
    assert {where for _, where in done.missing} == {"worker0"}
    assert "invalid account" in done.missing["gemm", "worker0"]["reason"]
    assert done.record("allreduce", "all").nodes == ["worker1"]


def test_a_rank_that_falls_silent_has_hung_and_the_rest_is_measured(conduct):
    done = conduct({"node-worker0": dies_in("gemm", RUNNING)}, only=["node-worker0"], silence_s=0)
    assert {key: m["kind"] for key, m in done.missing.items()} == {("gemm", "worker0"): "rank hung"}
    assert [event for event in done.cluster.events if event[0] != "run"] == [
        ("submit", "node-worker0"), ("cancel", "node-worker0"), ("submit", "node-worker0.2"),
    ]  # fmt: skip


def test_an_error_of_a_rank_gives_the_kind(conduct):
    def raises(job: FakeJob) -> JobState:
        job.start("environment")
        job.say("error", 1, "environment", kind="raised", error="CUDA out of memory", stack="")
        return FAILED

    done = conduct({"node-worker0": raises}, only=["node-worker0"])
    missed = done.missing["environment", "worker0"]
    assert (missed["kind"], missed["node"], missed["rank"]) == ("out of GPU memory", "worker0", 1)
    assert len(done.missing) == 1


def test_the_last_words_of_a_job_that_never_wrote_are_kept(conduct):
    def crashes(job: FakeJob) -> JobState:
        log = Path(job.spec["directory"]) / "submitit" / "1_0_log.out"
        log.parent.mkdir()
        log.write_bytes(b"\xff\nModuleNotFoundError: No module named 'torch'\n")
        return FAILED

    done = conduct({"node-worker0": crashes}, only=["node-worker0"])
    assert only_kind(done) == "import failure"
    assert "No module named 'torch'" in done.missing["gemm", "worker0"]["reason"]


def test_lines_of_another_run_are_nobody_s(conduct):
    def foreign(job: FakeJob) -> JobState:
        for k in job.ranks:
            job.say("result", k, "gemm", nonce="f" * 32)
        return FAILED

    assert conduct({"node-worker0": foreign}, only=["node-worker0"]).records == []


@pytest.mark.parametrize("wrong", [{"start": float("inf")}, {"device": None}, {"rank": "x"}])
def test_a_result_that_cannot_be_trusted_is_missing_with_the_reason(conduct, wrong):
    def lies(job: FakeJob) -> JobState:
        job.deliver(*(w for w in job.workloads if w != "gemm"))
        for k in job.ranks:
            path = Path(job.spec["directory"]) / f"rank{k}.jsonl"
            line = {**result_line(k), "placement": "worker0", **wrong}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return COMPLETED

    done = conduct({"node-worker0": lies}, only=["node-worker0"])
    assert list(done.missing) == [("gemm", "worker0")]
    assert done.missing["gemm", "worker0"]["reason"].startswith("unusable result: ")


# --- a shared cluster


@pytest.mark.parametrize("cap", [1, 3])
def test_there_are_never_more_jobs_in_the_queue_than_allowed(conduct, cap):
    jobs = [f"node-worker{k}" for k in range(5)]
    done = conduct(nodes=5, only=jobs, max_jobs=cap)
    assert sorted(done.records) == sorted(done.planned)
    assert done.cluster.most == cap


def test_two_jobs_that_wait_for_each_other_are_submitted_together_whatever_the_cap(conduct):
    done = conduct(only=["isolation-worker0", "isolation-worker1"], max_jobs=1)
    assert sorted(done.records) == sorted(done.planned)
    assert done.cluster.most == 2


def test_a_busy_slurmctld_is_asked_again_later(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0", "node-worker1"], refusals=[Refusal(False)] * 5)
    assert sorted(done.records) == sorted(done.planned)
    assert sorted(done.submitted) == ["node-worker0", "node-worker1"]


def test_a_job_that_was_taken_though_sbatch_failed_is_not_submitted_twice(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0", "node-worker1"], refusals=[Refusal(True)] * 2)
    assert sorted(done.records) == sorted(done.planned)
    assert sorted(done.submitted) == ["node-worker0", "node-worker1"]


def test_a_slurmctld_that_stays_busy_is_given_up_after_the_queue_s_deadline(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (0.01, 0.02))
    done = conduct(only=["node-worker0"], refusals=[Refusal(False)] * 1000, queue_s=0.2)
    assert {m["kind"] for m in done.missing.values()} == {"never started"}
    assert "Socket timed out" in done.missing["gemm", "worker0"]["reason"]


def test_a_job_that_was_taken_in_doubt_is_cancelled_at_the_end(conduct, monkeypatch):
    monkeypatch.setattr(submission_queue, "BACK_OFF_S", (60.0, 60.0))
    done = conduct(only=["node-worker0"], refusals=[Refusal(True)], finish=False)
    while not done.cluster.jobs:
        time.sleep(0.01)
    done.scheduler.stop("interrupted")
    done.finish()
    assert done.cluster.cancelled == ["node-worker0"]


def test_what_was_measured_does_not_stay_in_memory(conduct):
    """A stage of a thousand nodes is as large in memory as the jobs that run at a time."""
    done = conduct(only=["node-worker0", "node-worker1"])
    assert len(done.records) > 10
    assert all(s.lines == [] and s.tails == [] for s in done.scheduler._active)


def test_few_files_are_looked_into_at_a_time_and_all_of_them_in_turn(conduct, monkeypatch):
    monkeypatch.setattr(scheduler, "READS", 2)
    done = conduct(nodes=3, only=[f"node-worker{k}" for k in range(3)])
    assert sorted(done.records) == sorted(done.planned)


# --- the end


def test_stop_cancels_what_runs_and_says_why(conduct):
    done = conduct({"node-worker0": stays(RUNNING)}, finish=False)
    assert done.cluster.asked.wait(PATIENCE_S)
    done.scheduler.stop("interrupted by Ctrl-C")
    done.finish()
    assert "node-worker0" in done.cluster.cancelled
    assert "cluster" not in done.submitted
    assert done.missing["gemm", "worker0"]["reason"] == "interrupted by Ctrl-C"
    assert all(job.state.ended for job in done.cluster.jobs.values())


def broken_gate(node: str) -> str | None:
    raise ZeroDivisionError("a bug of ours")


def test_a_suite_error_in_the_thread_settles_everything(conduct):
    done = conduct(gate=broken_gate)
    assert isinstance(done.scheduler.error, ZeroDivisionError)
    assert "a bug of ours" in (done.directory.jobs / "suite-error.txt").read_text()
    assert {where for _, where in done.missing} == {"all"}
    assert "suite error" in done.missing["allreduce", "all"]["reason"]


def test_a_suite_error_while_jobs_run_cancels_them(conduct):
    def broken(job: FakeJob) -> JobState:
        raise ZeroDivisionError("a bug of ours")

    done = conduct({"node-worker0": stays(RUNNING), "node-worker1": broken})
    assert isinstance(done.scheduler.error, ZeroDivisionError)
    assert "node-worker0" in done.cluster.cancelled
    assert sorted(done.missing) == sorted(done.planned)
