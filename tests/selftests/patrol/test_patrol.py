"""Patrol gives way to every other job, keeps to its share, and stops when it is told to."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.background import BackgroundThread
from fixtures.errors import ConfigError, RunError
from fixtures.paths import CHECKOUT
from fixtures.patrol import queue, share, visits
from fixtures.patrol.share import HOUR_S, VISIT_S, Taken
from fixtures.patrol.visits import Patrol
from fixtures.records.files import append_line, read_lines
from fixtures.sandbox import Sandbox
from fixtures.sandbox.processes import wait_until
from tests.selftests.sandbox.test_sandbox import can_run

pytestmark = pytest.mark.cpu

HELD_S = 50
"""A visit in the sandbox: longer than a job waits, shorter than Slurm's smallest time limit."""


# --- the share


@pytest.mark.parametrize("seed", range(5))
def test_patrol_never_takes_more_than_its_share_of_any_hour(seed):
    rng = random.Random(seed)
    fleet, part = rng.choice([4, 30, 200]), rng.choice([0.01, 0.1, 0.5])
    names = [f"n{k}" for k in range(fleet)]
    visited: list[Taken] = []
    now = 0.0
    for _ in range(600):
        idle = [n for n in names if rng.random() < 0.7]
        for node in share.choose(idle, fleet=fleet, visits=visited, now=now, share=part):
            visited.append(Taken(node=node, start=now, end=now + VISIT_S * rng.random()))
        now += max(VISIT_S, rng.expovariate(1 / 120))
        assert share.used_s(visited, now) <= part * fleet * HOUR_S
    assert visited


def test_the_node_longest_without_a_visit_is_next():
    past = [Taken(node="a", start=0, end=60), Taken(node="b", start=100, end=160)]
    chosen = share.choose(["b", "a", "c"], fleet=8, visits=past, now=500, share=0.25)
    assert chosen == ["c", "a"]
    assert share.choose([], fleet=8, visits=past, now=500, share=0.25) == []
    with pytest.raises(ValueError, match="more than 0 and at most 1"):
        share.choose(["a"], fleet=8, visits=[], now=0, share=1.5)


def test_a_visit_whose_round_was_killed_still_counts(tmp_path):
    patrol = patrol_of(tmp_path)
    append_line(patrol.log, {"node": "a", "job": "1", "start": 100.0, "outcome": "begun"})
    append_line(patrol.log, {"node": "b", "job": "2", "start": 100.0, "outcome": "begun"})
    append_line(patrol.log, {"node": "b", "job": "2", "start": 100.0, "end": 110.0,
                             "outcome": "done"})  # fmt: skip
    assert patrol.taken() == [
        Taken(node="a", start=100.0, end=160.0), Taken(node="b", start=100.0, end=110.0)
    ]  # fmt: skip


# --- what Slurm says


def _answers(monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    def query(*command: str) -> str:
        return texts[command[0]]

    monkeypatch.setattr(queue, "slurm_query", query)


def test_only_jobs_that_a_node_would_help_are_waited_for(monkeypatch):
    reasons = ["Resources", "Priority", "None", "(Nodes required for job are DOWN)", "Dependency",
               "JobHeldUser", "BeginTime", "AssocGrpGRES", "QOSMaxJobsPerUserLimit"]  # fmt: skip
    lines = [f"{k}|a|b|{reason}\n" for k, reason in enumerate(reasons)]
    _answers(monkeypatch, squeue="".join(lines) + f"99|{queue.JOB_NAME}|Priority\n")
    assert queue.waiting_jobs() == ["0", "1", "2", "3"]


def test_where_jobs_are_hidden_and_slurm_does_not_preempt_patrol_is_refused(monkeypatch):
    _answers(monkeypatch, scontrol="PrivateData             = accounts,jobs\n")
    with pytest.raises(ConfigError, match="PrivateData=jobs hides"):
        queue.refuse_hidden(None)
    monkeypatch.setattr(queue, "slurm_partition", lambda _: {"PreemptMode": "CANCEL"})
    queue.refuse_hidden("patrol")
    _answers(monkeypatch, scontrol="PrivateData             = none\n")
    queue.refuse_hidden(None)


def test_a_job_that_waits_or_a_slurm_that_is_away_means_no_visit(monkeypatch, tmp_path):
    said: list[str] = []
    patrol = patrol_of(tmp_path, said)
    _answers(monkeypatch, scontrol="", squeue="7|train|Resources\n")
    assert patrol.round() == []

    def away(*_: str) -> str:
        raise RunError("Unable to contact slurm controller")

    monkeypatch.setattr(queue, "slurm_query", away)
    assert patrol.round() == []
    assert [line.split(":")[0] for line in said] == ["1 waiting job", "no visit"]


def test_a_round_does_not_begin_while_another_runs_or_patrol_is_stopped(monkeypatch, tmp_path):
    said: list[str] = []
    patrol = patrol_of(tmp_path, said)
    _answers(monkeypatch, squeue="")
    monkeypatch.setattr(queue, "cancel", lambda jobs: None)
    assert visits.stop(tmp_path) == 0
    assert patrol.round() == []
    visits.start(tmp_path)
    assert not patrol.stopped
    with (tmp_path / "lock").open("w") as lock:
        visits.fcntl.flock(lock, visits.fcntl.LOCK_EX)
        assert patrol.round() == []
    assert [line.split(":")[0] for line in said] == [
        "patrol is stopped", "another round is running"
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="not the state directory of a patrol"):
        visits.start(tmp_path / "nowhere")


def test_a_visit_leaves_the_mean_of_every_gpu_and_metric(tmp_path):
    command = visits.visit_command(tmp_path, 8, cpu=False)
    assert "--nproc-per-node=8" in command
    job = tmp_path / "run" / "jobs" / "gemm-memory"
    job.mkdir(parents=True)
    for k in range(2):
        line = {
            "event": "result", "workload": "gemm", "local_rank": k, "device": {"uuid": f"GPU-{k}"},
            "measurements": [{"metric": "bf16_per_ghz", "samples": [400.0, 500.0 + k]},
                             {"metric": "note", "value": 1}],
        }  # fmt: skip
        append_line(job / f"rank{k}.jsonl", {"event": "started"})
        append_line(job / f"rank{k}.jsonl", line)
    assert visits.values_of(tmp_path / "run") == [
        {"uuid": "GPU-0", "gpu": 0, "metric": "gemm.bf16_per_ghz", "value": 450.0},
        {"uuid": "GPU-1", "gpu": 1, "metric": "gemm.bf16_per_ghz", "value": 450.5},
    ]


# --- on a real Slurm


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    can_run(request)
    with Sandbox.up(nodes=4, gpus=2) as started:
        yield started


@pytest.fixture
def slurm(sandbox, monkeypatch) -> Sandbox:
    for name, text in sandbox.env.items():
        monkeypatch.setenv(name, text)
    return sandbox  # type: ignore[no-any-return]


def patrol_of(state: Path, said: list[str] | None = None, **more: object) -> Patrol:
    def command_of(directory: Path) -> list[str]:
        return ["sleep", str(HELD_S)]

    printed = [] if said is None else said
    return Patrol(**{  # type: ignore[arg-type]
        "state": state, "share": 1.0, "options": queue.Options(), "command_of": command_of,
        "print_line": printed.append, **more,
    })  # fmt: skip


class Round:
    """A round of patrol that holds so many nodes when the constructor returns."""

    def __init__(self, patrol: Patrol, nodes: int) -> None:
        self._thread = BackgroundThread(self._visit, name="round")
        self.patrol, self.visits = patrol, list[dict[str, object]]()
        # A node is completing for a moment after its last job, and a round takes idle ones only.
        assert wait_until(self._all_idle, timeout_s=60), queue.idle_nodes(None)
        self._thread.start()
        assert wait_until(lambda: self._running() == nodes, timeout_s=60), queue.own_jobs()

    @staticmethod
    def _all_idle() -> bool:
        idle, fleet = queue.idle_nodes(None)
        return len(idle) == fleet

    def join(self, timeout_s: float) -> bool:
        return self._thread.join(timeout_s)

    def _visit(self) -> None:
        self.visits = self.patrol.round()

    @staticmethod
    def _running() -> int:
        return list(queue.own_jobs().values()).count("RUNNING")


def user_job(folder: Path, nodes: int) -> tuple[str, Path]:
    """Submit a job of somebody who needs whole nodes; return its id and what it writes."""
    out = folder / "user.txt"
    line = f"date +%s.%N >> {out}"
    done = subprocess.run(
        ["sbatch", "--parsable", "--exclusive", f"--nodes={nodes}", "--output=/dev/null",
         f"--chdir={folder}", "--wrap", line],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip(), out


@pytest.mark.parametrize("attempt", range(3))
def test_a_users_job_starts_while_patrol_holds_every_node(slurm, tmp_path, attempt):
    held = Round(patrol_of(tmp_path), 4)
    _, out = user_job(tmp_path, nodes=1 + attempt)
    # Without giving way it would start when a visit has ended by itself.
    assert wait_until(out.exists, timeout_s=HELD_S / 2)
    assert held.join(60)
    assert {visit["outcome"] for visit in held.visits} == {visits.GAVE_WAY}
    assert len(held.visits) == 4
    assert len(out.read_text().splitlines()) == 1


def test_one_command_stops_it_and_no_round_begins_after(slurm, tmp_path):
    held = Round(patrol_of(tmp_path), 4)
    stopped = subprocess.run(
        [sys.executable, "-m", "fixtures.patrol", "stop", str(tmp_path)], cwd=CHECKOUT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "4 visits ended" in stopped.stdout
    assert held.join(60)
    assert wait_until(lambda: not queue.own_jobs(), timeout_s=30)
    assert {visit["outcome"] for visit in held.visits} <= {visits.STOPPED, visits.FAILED}
    assert patrol_of(tmp_path).round() == []


def test_a_round_survives_a_restart_of_slurmctld(slurm, tmp_path):
    held = Round(patrol_of(tmp_path), 4)
    slurm.stop_daemon("slurmctld")
    slurm.start_controller()
    _, out = user_job(tmp_path, nodes=4)
    assert wait_until(out.exists, timeout_s=HELD_S / 2)
    assert held.join(60)
    assert {visit["outcome"] for visit in held.visits} == {visits.GAVE_WAY}


def test_half_a_share_holds_half_of_the_nodes(slurm, tmp_path):
    held = Round(patrol_of(tmp_path, share=0.5), 2)
    assert len(queue.idle_nodes(None)[0]) == 2
    visits.stop(tmp_path)
    assert held.join(60)
    lines = list(read_lines(tmp_path / "visits.jsonl"))
    assert [line["outcome"] for line in lines[:2]] == [visits.BEGUN] * 2


@pytest.fixture(scope="module")
def preempting(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    can_run(request)
    partitions = (
        "PartitionName=main Default=YES Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF\n"
        "PartitionName=patrol Nodes=ALL State=UP PriorityTier=1 PreemptMode=CANCEL"
    )
    site = {
        "partitions": partitions,
        "slurm": "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL",
    }
    with Sandbox.up(nodes=2, gpus=1, site=site) as started:
        yield started


def test_where_slurm_preempts_it_gives_way_without_seeing_the_jobs_of_others(
    preempting, monkeypatch, tmp_path
):
    for name, text in preempting.env.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(queue, "waiting_jobs", list)
    held = Round(patrol_of(tmp_path, options=queue.Options(partition="patrol")), 2)
    _, out = user_job(tmp_path, nodes=2)
    assert wait_until(out.exists, timeout_s=HELD_S / 2)
    assert held.join(60)
    assert [visit["outcome"] for visit in held.visits] == [visits.GAVE_WAY] * 2


@pytest.mark.slow
def test_the_script_of_the_timer_visits_a_node(slurm, tmp_path):
    env = {
        **os.environ, "PATROL_STATE": str(tmp_path), "PATROL_PYTHON": sys.executable,
        "PATROL_CERTIFICATE": str(CHECKOUT / "tests" / "selftests" / "data" / "sandbox-2x2-cpu"),
        "PATROL_VISIT": "--cpu --gpus=1 --share=0.25",
    }  # fmt: skip
    done = subprocess.run(
        [CHECKOUT / "deploy" / "patrol" / "patrol.sh"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _, visit = read_lines(tmp_path / "visits.jsonl")
    assert visit["outcome"] == visits.DONE, visit
    assert {value["metric"] for value in visit["values"]} == {"gemm.fp32", "memory.triad"}
    assert "1 node visited" in done.stdout
