"""Slurm, names, ways and device fences broken one by one: the node is named, nothing else red."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox, emulation, resources
from tests.selftests import faults, faults_scheduler
from tests.selftests.faults import Fault
from tests.selftests.sandboxes import refuse

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal())
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


def named(found: faults.Outcome, fault: Fault) -> None:
    assert found.named == (fault.culprit,), found.said
    assert fault.says in found.lines[0], found.lines
    assert found.others == ()


@pytest.mark.parametrize("fault", faults_scheduler.FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_the_scheduler_names_the_node(
    request: pytest.FixtureRequest, sandbox: Sandbox, fault: Fault, tmp_path: Path
):
    if fault.inject is faults_scheduler.one_board:
        refuse(request, emulation.refusal())
    found = faults.drill(sandbox, fault, tmp_path / "run")
    named(found, fault)
    assert found.rows
    assert sandbox.node_states() == dict.fromkeys(sandbox.nodes, "idle")


@pytest.mark.parametrize(
    "fault", faults_scheduler.BINDING_FAULTS, ids=lambda f: f.name.replace(" ", "-")
)
def test_fault_of_the_binding_names_the_node(
    request: pytest.FixtureRequest, fault: Fault, tmp_path: Path
):
    refuse(request, Sandbox.refusal())
    if not resources.can_bind_cores(1, 2):
        pytest.skip("this host has one core, or its first ones are not ours")
    with Sandbox.up(nodes=1, gpus=2) as one:
        healthy = faults.drill(one, quiet(fault), tmp_path / "healthy")
        assert [r["outcome"] for r in healthy.rows] == ["PASS"], healthy.said
        named(faults.drill(one, fault, tmp_path / "run"), fault)


@pytest.mark.parametrize(
    "fault", faults_scheduler.GRES_FAULTS, ids=lambda f: f.name.replace(" ", "-")
)
def test_fault_of_the_order_names_the_node(
    request: pytest.FixtureRequest, fault: Fault, tmp_path: Path
):
    refuse(request, Sandbox.refusal())
    with Sandbox.up(nodes=2, gpus=2, withheld={fault.culprit: 1}) as short:
        named(faults.drill(short, fault, tmp_path / "run"), fault)


def quiet(fault: Fault) -> Fault:
    """The same tests with nothing broken."""
    return Fault(
        criterion=fault.criterion, name="none", where="", culprit="", select=fault.select,
        inject=faults_scheduler.nothing,
    )  # fmt: skip


def test_healthy_slurm_passes_whole(sandbox: Sandbox, tmp_path: Path):
    area = Fault(
        criterion="", name="none", where="", culprit="", inject=faults_scheduler.nothing,
        select="scheduler or isolation or connectivity",
    )  # fmt: skip
    found = faults.drill(sandbox, area, tmp_path / "run")
    outcomes = {r["outcome"] for r in found.rows if not r["criterion"].endswith(NOT_HERE)}
    assert outcomes == {"PASS"}, found.said


def test_fault_of_a_node_rejects_the_run_and_hides_no_other_node(sandbox: Sandbox, tmp_path: Path):
    area = Fault(
        criterion="scheduler.node_state", name="node drained", where="", culprit="worker1",
        inject=faults_scheduler.drained, select="inventory or node_state or memory_limit",
    )  # fmt: skip
    found = faults.drill(sandbox, area, tmp_path / "run")
    assert "REJECTED" in found.said
    outcomes = {(r["criterion"], r["subject"]): r["outcome"] for r in found.rows}
    lost = {key for key, outcome in outcomes.items() if outcome == "NOT_MEASURED"}
    assert "worker0" not in {subject for _, subject in lost}
    assert ("inventory.gpus", "worker1") in lost
    assert outcomes["inventory.gpus", "worker0"] == "PASS"
    # A small job of both nodes goes on with the one that is left.
    assert outcomes["scheduler.memory_limit", "worker0"] in ("PASS", "NOT_APPLICABLE")


def test_isolation_is_not_applicable_where_slurm_gives_out_whole_nodes(
    sandbox: Sandbox, tmp_path: Path
):
    area = Fault(
        criterion="", name="whole nodes", where="scontrol update OverSubscribe=EXCLUSIVE",
        culprit="", inject=faults_scheduler.whole_nodes, select="isolation",
    )  # fmt: skip
    found = faults.drill(sandbox, area, tmp_path / "run")
    for row in found.rows:
        alone = row["criterion"] == "isolation.own_gpu"
        assert row["outcome"] == ("PASS" if alone else "NOT_APPLICABLE"), found.said
        assert alone or "OverSubscribe=EXCLUSIVE" in row["reason"]


NOT_HERE = ("cpu_binding", "numa", "memory_limit")
"""Binding needs cores for all virtual nodes, locality a GPU, the limit a memory controller."""
