"""What a job leaves for the next one: named by node and part; a site that clears it is not red."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests import faults, faults_tenant
from tests.selftests.faults import Fault, emulated, named

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

sandbox = emulated(nodes=2, gpus=2)


@pytest.mark.parametrize("fault", faults_tenant.FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_what_is_left_names_node_and_part(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    named(found, fault)
    assert found.devices == (fault.device,)


def test_a_site_that_clears_everything_is_accused_of_nothing(sandbox: Sandbox, tmp_path: Path):
    clean = Fault(
        criterion="tenant.shared_memory", name="nothing", where="", culprit="",
        inject=faults_tenant.site, select=faults_tenant.SELECT,
    )  # fmt: skip
    found = faults.drill(sandbox, clean, tmp_path / "run")
    assert {(r["criterion"], r["outcome"]) for r in found.rows} == {
        (key, "PASS")
        for key in (
            "tenant.gpu_memory", "tenant.gpu_processes", "tenant.processes", "tenant.variables",
            "tenant.shared_memory", "tenant.scratch",
        )
    }, found.said  # fmt: skip
