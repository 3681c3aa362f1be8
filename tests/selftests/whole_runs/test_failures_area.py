"""The destructive area on a real Slurm: all of it passes, hurts nobody, and can fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.records.files import read_json, read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from fixtures.sandbox.processes import run
from tests.selftests import faults, faults_failures, support
from tests.selftests.faults import Fault
from tests.selftests.sandboxes import queued, refuse, submit

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

AREA = ("-m", "multinode", "-k", "failures", "--allow-destructive", "-q", "--cluster", "slurm")


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal())
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


def about(sandbox: Sandbox, job: str) -> dict[str, str]:
    """What Slurm says of a job."""
    text = run([sandbox.tools["scontrol"], "show", "job", job, "-o"], env=sandbox.environ)
    return dict(re.findall(r"(\w+)=(\S*)", text))


def test_a_job_of_somebody_else_lives_through_the_whole_area(sandbox: Sandbox, tmp_path: Path):
    """It is on all nodes, so none is taken away: our own job is requeued, and the row says so."""
    job = submit(
        sandbox, "of-somebody-else", "--nodes=2", "--ntasks-per-node=1", "--mem=100M", seconds=1500
    )
    sandbox.wait_state("worker1", "mixed")
    before = about(sandbox, job)
    into = tmp_path / "run"
    done = support.run_pytest(*AREA, f"--run-dir={into}", timeout_s=900, **sandbox.env)
    after = about(sandbox, job)
    for name in ("JobState", "StartTime", "Restarts", "NodeList"):
        assert after[name] == before[name], name
    assert after["JobState"] == "RUNNING"
    rows = read_json(into / "verdict.json")["criteria"]
    wrong = {f"{r['criterion']} {r['subject']}": r["reason"] for r in rows
             if r["outcome"] not in ("PASS", "RECORDED", "NOT_APPLICABLE")}  # fmt: skip
    assert not wrong, done.stdout
    (lost,) = [r for r in rows if r["criterion"] == "failures.node.lost"]
    assert any("stand-in: `scontrol requeue`" in note for note in lost["notes"]), lost
    # Every victim's end is told, as that of any other job: kind, culprit, first error, remedy.
    told = {line["placement"]: line for line in read_lines(RunDirectory(into).missing)}
    assert len(told) == len({r["criterion"].rpartition(".")[2] for r in rows} & set(
        faults_failures.DEATHS + faults_failures.HANGS + faults_failures.STORAGE
    )) + 3  # fmt: skip
    assert all(line["kind"] and line["next_step"] for line in told.values())
    assert queued(sandbox) == {job: "of-somebody-else"}
    run(["scancel", job], env=sandbox.environ)


CHOSEN = (
    "failures.end.kill", "failures.cancel.left", "failures.named.exit",
    "failures.hang.named.collective", "failures.storage.kept.storage_full", "failures.node.lost",
)  # fmt: skip
"""One of each kind; `make drills` puts in all of them."""


@pytest.mark.parametrize(
    "fault", [f for f in faults_failures.FAULTS if f.criterion in CHOSEN], ids=lambda f: f.criterion
)
def test_a_fault_under_a_job_that_fails_is_found(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    assert found.named == tuple(fault.culprit.split()), found.said
    assert any(fault.says in line for line in found.lines), found.lines
    assert found.others == ()
    sandbox.wait_idle(sandbox.nodes)
