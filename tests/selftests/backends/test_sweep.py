"""What runs with a dead owner left behind is cancelled, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import sweep as module
from fixtures.backends.sweep import sweep
from fixtures.processes import proof_of
from fixtures.records.run_schema import RUN_SCHEMA
from tests.selftests.support import NONCE

pytestmark = pytest.mark.cpu


class Host:
    """Jobs in the queue, processes of this host, and a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.stay: set[str] = set()
        self.cancelled: list[str] = []
        self.killed: list[int] = []
        self.started: dict[int, str] = {}
        """Process -> what its environment holds."""
        self.now = 0.0

    def with_prefix(self, prefix: str) -> dict[str, str]:
        return {job: name for job, name in self.jobs.items() if name.startswith(prefix)}

    def cancel(self, jobs: list[str]) -> None:
        self.cancelled += jobs
        for job in set(jobs) - self.stay:
            del self.jobs[job]

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(module, "jobs_with_prefix", made.with_prefix)
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
    run_of(tmp_path, "over", ended="2026")
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
    sweep(tmp_path, slurm=True)
    assert 15 <= host.now < 15.5
