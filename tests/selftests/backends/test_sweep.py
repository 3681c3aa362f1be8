"""What runs with a dead owner left behind is cancelled, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import sweep as module
from fixtures.backends.sweep import sweep
from fixtures.jobs.own_jobs import OwnJob
from fixtures.processes import proof_of
from fixtures.records.run_schema import RUN_SCHEMA
from tests.selftests.support import NONCE

pytestmark = pytest.mark.cpu


class Host:
    """Jobs in the queue, processes of this host, and a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.scripts: dict[str, str] = {}
        self.answers = True
        self.stay: set[str] = set()
        self.cancelled: list[str] = []
        self.killed: list[int] = []
        self.started: dict[int, str] = {}
        """Process -> what its environment holds."""
        self.now = 0.0

    def own_jobs(self) -> list[OwnJob] | None:
        if not self.answers:
            return None
        return [
            OwnJob(id=job, state=self.states.get(job, "RUNNING"), name=name,
                   script=self.scripts.get(job, ""))
            for job, name in self.jobs.items()
        ]  # fmt: skip

    def cancel(self, jobs: list[str]) -> None:
        self.cancelled += jobs
        for job in set(jobs) - self.stay:
            del self.jobs[job]

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(module, "own_jobs", made.own_jobs)
    monkeypatch.setattr(module, "SlurmLauncher", lambda *_: SimpleNamespace(cancel=made.cancel))
    monkeypatch.setattr(module, "owner_state", lambda data: data["owner"]["host"])
    monkeypatch.setattr(module, "is_running", lambda pid, start: start == "now")
    monkeypatch.setattr(module, "kill_tree", made.killed.append)
    monkeypatch.setattr(module, "has_proof", lambda pid, proof: made.started[pid] == proof)
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(module, "time", clock)
    return made


def run_of(root: Path, name: str, owner: str = "dead", **more: Any) -> Path:
    folder = root / name
    (folder / "jobs").mkdir(parents=True)
    data = {"schema": RUN_SCHEMA, "id": name, "nonce": NONCE, "population": {}}
    data["owner"] = {"host": owner, "pid": 1, "start": "1"}
    (folder / "run.json").write_text(json.dumps({**data, **more}))
    return folder


def test_jobs_of_a_run_whose_owner_is_dead_are_cancelled_and_counted(host, tmp_path):
    for name, owner in (("dead", "dead"), ("alive", "alive"), ("far", "unknown")):
        run_of(tmp_path, name, owner)
    run_of(tmp_path, "over", "alive", ended="2026")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    host.jobs = {
        str(k): f"accept-{run}-node"
        for k, run in enumerate(("dead", "alive", "far", "over", "unknown", "dead"))
    }
    assert sweep(tmp_path, slurm=True) == ["cancelled 2 jobs that run dead left behind"]
    assert host.cancelled == ["0", "5"]
    assert host.now == 0


def test_without_slurm_no_queue_is_looked_into(host, tmp_path):
    run_of(tmp_path, "dead")
    host.jobs = {"1": "accept-dead-node"}
    assert sweep(tmp_path, slurm=False) == []
    assert host.cancelled == []


def test_processes_of_this_host_are_ended_where_they_are_still_the_same(host, tmp_path):
    folder = run_of(tmp_path, "dead")
    host.started[7] = proof_of(NONCE, folder / "jobs" / "a")
    for name, process in (
        ("a", {"pid": 7, "start": "now"}), ("b", {"pid": 8, "start": "before"}), ("c", {}), ("d", 3)
    ):  # fmt: skip
        (folder / "jobs" / name).mkdir()
        (folder / "jobs" / name / "process.json").write_text(json.dumps(process))
    assert sweep(tmp_path, slurm=True) == ["ended process 7 that run dead left behind"]
    assert host.killed == [7]


def test_a_process_that_does_not_prove_whose_it_is_is_left_alone_and_named(host, tmp_path):
    folder = run_of(tmp_path, "dead")
    live = tmp_path / "live" / "jobs" / "a"
    host.started = {6: "", 7: proof_of("another", folder / "jobs" / "b"), 8: proof_of(NONCE, live)}
    for pid, name in ((6, "a"), (7, "b"), (8, "c")):
        (folder / "jobs" / name).mkdir()
        data = {"pid": pid, "start": "now"}
        (folder / "jobs" / name / "process.json").write_text(json.dumps(data))
    said = sorted(sweep(tmp_path, slurm=True))
    assert host.killed == []
    assert [line.partition(" names it")[0] for line in said] == [
        f"process {pid} was not ended: {folder}/jobs/{name}/process.json"
        for pid, name in ((6, "a"), (7, "b"), (8, "c"))
    ]


def test_jobs_that_do_not_leave_the_queue_are_waited_for_15_seconds(host, tmp_path):
    run_of(tmp_path, "dead")
    host.jobs, host.stay = {"1": "accept-dead-node", "2": "accept-dead-pair"}, {"2"}
    said = sweep(tmp_path, slurm=True)
    assert 15 <= host.now < 15.5
    assert said[1:] == ["1 job of earlier runs may still run: scancel 2"]
    # Slurm ends it where its node is not lost.
    host.states["2"] = "COMPLETING"
    assert len(sweep(tmp_path, slurm=True)) == 1


def script_of(root: Path) -> str:
    return str(root / "jobs" / "node-a" / "submitit" / "submission_file_1.sh")


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
@pytest.mark.parametrize("ended", [{}, {"ended": "2026"}])
def test_jobs_are_cancelled_wherever_their_run_is_and_whatever_they_are_called(
    host, tmp_path, where, ended
):
    runs = tmp_path / "runs"
    runs.mkdir()
    root = run_of(runs if where == "beside" else tmp_path / "far", "dead", **ended)
    host.jobs = {"1": "renamed", "2": "accept-dead-node", "3": "mine"}
    host.scripts = {"1": script_of(root), "2": script_of(root), "3": "/home/a/mine.sh"}
    assert sweep(runs, slurm=True) == ["cancelled 2 jobs that run dead left behind"]
    assert host.cancelled == ["1", "2"]


@pytest.mark.parametrize("owner", ["alive", "unknown"])
def test_jobs_whose_owner_may_live_are_left_alone(host, tmp_path, owner):
    root = run_of(tmp_path / "far", "x", owner)
    host.jobs, host.scripts = {"1": "renamed"}, {"1": script_of(root)}
    assert sweep(tmp_path, slurm=True) == []
    host.scripts = {"1": script_of(tmp_path / "no-run")}
    assert sweep(tmp_path, slurm=True) == []
    assert host.cancelled == []


def test_a_slurm_that_goes_away_leaves_jobs_that_may_still_run(host, tmp_path, monkeypatch):
    run_of(tmp_path, "dead")
    host.jobs = {"1": "accept-dead-node"}
    answers = iter([host.own_jobs(), *[None] * 100])
    monkeypatch.setattr(module, "own_jobs", lambda: next(answers))
    assert sweep(tmp_path, slurm=True)[1:] == ["1 job of earlier runs may still run: scancel 1"]
    host.answers = False
    monkeypatch.setattr(module, "own_jobs", host.own_jobs)
    assert sweep(tmp_path, slurm=True) == []


def test_a_folder_of_somebody_else_beside_the_runs_is_passed_over(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp there are folders that a user may not enter: Python raises an error for each."""
    (tmp_path / "closed").mkdir()
    exists = Path.exists

    def closed(path: Path, **more: Any) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **more)

    monkeypatch.setattr(Path, "exists", closed)
    assert sweep(tmp_path, slurm=True) == []
