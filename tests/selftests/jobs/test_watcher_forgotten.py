"""Jobs that squeue does not show: what has ended is said by slurmctld or accounting, by no gap."""

from __future__ import annotations

import subprocess

import pytest

from fixtures.jobs import watcher
from fixtures.jobs.watcher import SlurmWatcher
from tests.selftests.jobs.test_watcher import slurm

__all__ = ["slurm"]

pytestmark = pytest.mark.cpu


def shown(job: str, state: str, *, exit_code: str = "0:0", nodes: str = "n1") -> str:
    """A line of `scontrol show job -o`."""
    return (
        f"JobId={job} JobName=x UserId=a(1) GroupId=a(1) Priority=1 Account=p QOS=q "
        f"JobState={state} Reason=None Dependency=(null) Requeue=0 ExitCode={exit_code} "
        f"Partition=hid NodeList={nodes} Comment=a JobState=FAILED\n"
    )


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "COMPLETED"])
def test_a_job_that_squeue_does_not_show_is_what_slurmctld_says(slurm, state):
    slurm.answers["squeue"] = ""
    slurm.shown["2"] = shown("2", state, exit_code="0:9")
    found = SlurmWatcher().states(["2"])["2"]
    assert (found.state, found.exit_code, found.nodes) == (state, "0:9", "n1")
    assert found.ended == (state == "COMPLETED")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", 1),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", 1),
        ("", 1), ("", 0), ("No jobs in the system", 0),
    ],
)  # fmt: skip
def test_a_controller_that_is_away_or_silent_has_ended_no_job(slurm, monkeypatch, said, status):
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0 if argv[0] == "squeue" else status, "", said)

    monkeypatch.setattr(watcher, "run_command", run)
    w = SlurmWatcher()
    assert w.states(["1", "2"]) == {}
    slurm.now += 5
    monkeypatch.setattr(watcher, "run_command", slurm.run)
    slurm.answers["squeue"] = ""
    assert {s.state for s in w.states(["1", "2"]).values()} == {"GONE"}


def test_what_accounting_calls_living_slurmctld_is_asked_for(slurm, monkeypatch):
    monkeypatch.setattr(watcher.shutil, "which", lambda name: f"/usr/bin/{name}")
    slurm.answers |= {"squeue": "", "sacct": "1|RUNNING|0:0\n2|PENDING|0:0\n"}
    slurm.shown["1"] = shown("1", "RUNNING")
    states = SlurmWatcher().states(["1", "2"])
    assert (states["1"].state, states["2"].state) == ("RUNNING", "GONE")


def test_many_forgotten_jobs_are_asked_for_in_turn(slurm):
    slurm.answers["squeue"] = ""
    w = SlurmWatcher()
    jobs = [str(k) for k in range(70)]
    counts = []
    for _ in range(4):
        counts.append(sum(s.ended for s in w.states(jobs).values()))
        slurm.now += 10
    assert counts == [32, 64, 70, 70]
    assert slurm.times("scontrol") == 70
