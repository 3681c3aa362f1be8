"""The host around the GPUs broken part by part: named by node and part, nothing else red."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox, emulation
from tests.selftests import faults, faults_host
from tests.selftests.cluster import refuse
from tests.selftests.faults import Fault
from tests.selftests.test_faults_hardware import named

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

NOT_ORDERED = ("host.mounts", "host.scratch_size", "host.scratch_write", "host.scratch_read")
NOT_OF_ONE_HOST = ("host.memory_bandwidth", "host.memory_numa")


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal() or emulation.refusal())
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


@pytest.fixture(scope="module")
def three(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal() or emulation.refusal())
    with Sandbox.up(nodes=3, gpus=1) as up:
        yield up


@pytest.mark.parametrize("fault", faults_host.FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_a_host_names_node_and_part(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    named(found, fault)
    if fault.device:
        assert found.devices == (fault.device,)


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal() or emulation.refusal())
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: it can have no other to compare it with")
    with Sandbox.up(nodes=1, gpus=2) as up:
        yield up


@pytest.mark.parametrize("fault", faults_host.ALONE_FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_a_host_with_memory_of_its_own(alone: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(alone, fault, tmp_path / "run")
    named(found, fault)
    if fault.device:
        assert found.devices == (fault.device,)


@pytest.mark.parametrize("fault", faults_host.DRIFT_FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_a_host_unlike_the_others_names_it(three: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(three, fault, tmp_path / "run")
    named(found, fault)
    assert found.devices == (fault.device,)


def test_a_healthy_host_passes_what_it_shows(sandbox: Sandbox, tmp_path: Path):
    healthy = Fault(
        criterion="", name="", where="", culprit="", select=faults_host.SELECT,
        inject=lambda _: nullcontext(),
    )  # fmt: skip
    found = faults.drill(sandbox, healthy, tmp_path / "run")
    outcomes = {(r["criterion"], r["subject"]): r["outcome"] for r in found.rows}
    assert set(outcomes.values()) <= {"PASS", "NOT_APPLICABLE"}, found.said
    lacking = {criterion for (criterion, _), o in outcomes.items() if o == "NOT_APPLICABLE"}
    assert lacking == {*NOT_ORDERED, *NOT_OF_ONE_HOST}, (
        "the emulated host shows all but what was not ordered"
    )
