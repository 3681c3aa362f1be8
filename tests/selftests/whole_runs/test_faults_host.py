"""The host around the GPUs broken part by part: named by node and part, nothing else red."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests import faults, faults_host
from tests.selftests.faults import Fault, emulated, named

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

sandbox = emulated(nodes=2, gpus=2)
three = emulated(nodes=3, gpus=1)
alone = emulated(nodes=1, gpus=2)

NOT_ORDERED = (
    "host.mounts", "host.scratch_size", "host.scratch_write", "host.scratch_read", "host.firmware",
)  # fmt: skip
NOT_INSTALLED = ("host.security",)
"""The emulated host has no container toolkit."""
NOT_OF_ONE_HOST = ("host.memory_bandwidth", "host.memory_numa")


@pytest.mark.parametrize("fault", faults_host.FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_a_host_names_node_and_part(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    named(found, fault)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: it can have no other to compare it with"
)
@pytest.mark.parametrize("fault", faults_host.ALONE_FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_fault_of_a_host_with_memory_of_its_own(alone: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(alone, fault, tmp_path / "run")
    named(found, fault)


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
    assert lacking == {*NOT_ORDERED, *NOT_OF_ONE_HOST, *NOT_INSTALLED}, (
        "the emulated host shows all but what was not ordered or installed"
    )
