"""The shared directory broken on one node of a real Slurm: named there, and nothing else red."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox, leftovers, storage
from tests.selftests import faults, faults_filesystem
from tests.selftests.faults import Fault
from tests.selftests.faults_filesystem import FAULTS
from tests.selftests.sandboxes import refuse

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Two nodes of one GPU; skips with the reason where there can be none, fails where it must."""
    refuse(request, Sandbox.refusal() or storage.refusal())
    with Sandbox.up(nodes=2, gpus=1) as up:
        yield up
    assert leftovers(up.id) == []


def healthy(name: str, inject: faults.Inject) -> Fault:
    return Fault(criterion="", name=name, where="", culprit="", inject=inject, select="filesystem")


ROWS = [
    # Slurm itself takes its time to give up a process that cannot be killed.
    pytest.param(f, marks=[pytest.mark.slow] if f.inject is faults_filesystem.stuck else [])
    for f in FAULTS
]


@pytest.mark.parametrize("fault", ROWS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_the_shared_directory_is_named(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    assert found.named == (fault.culprit,), found.said
    assert fault.says in found.lines[0]
    assert found.others == ()
    unmeasured = {r["criterion"] for r in found.rows if r["outcome"] == "NOT_MEASURED"}
    assert fault.criterion not in unmeasured
    assert sandbox.node_states() == dict.fromkeys(sandbox.nodes, "idle")


@pytest.mark.parametrize(
    "inject",
    [faults_filesystem.nothing, faults_filesystem.lies("none")],
    ids=["bare", "through-the-fuse-filesystem"],
)
def test_healthy_shared_directory_passes_whole(sandbox: Sandbox, inject, tmp_path: Path):
    found = faults.drill(sandbox, healthy("none", inject), tmp_path / "run")
    outcomes = {(r["criterion"], r["subject"]): r["outcome"] for r in found.rows}
    assert set(outcomes.values()) == {"PASS"}, found.said
    assert len(outcomes) == 28
