"""On a real Slurm patrol gives way to every other job, keeps to its share, and can be stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.background import BackgroundThread
from fixtures.paths import CHECKOUT
from fixtures.patrol import queue, visits
from fixtures.patrol.visits import Patrol
from fixtures.records.files import read_lines
from fixtures.sandbox import Sandbox
from fixtures.sandbox.processes import wait_until
from tests.selftests import support
from tests.selftests.sandbox.test_sandbox import can_run

pytestmark = pytest.mark.cpu

HELD_S = 50
"""A visit in the sandbox: longer than a job waits, shorter than Slurm's smallest time limit."""


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
    certificate = tmp_path / "accepted"
    support.judged(support.DATA / "sandbox-2x2-cpu", certificate)
    env = {
        **os.environ, "PATROL_STATE": str(tmp_path), "PATROL_PYTHON": sys.executable,
        "PATROL_CERTIFICATE": str(certificate),
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
