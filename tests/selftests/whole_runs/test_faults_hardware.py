"""GPUs, NVLink, InfiniBand and nodes broken one by one: named by UUID or port, nothing else red."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests import faults, faults_hardware
from tests.selftests.faults import Fault, emulated, named

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

sandbox = emulated(nodes=2, gpus=2)
three = emulated(nodes=3, gpus=1)
roce = emulated(nodes=2, platform=faults_hardware.ROCE)
efa = emulated(nodes=2, platform=faults_hardware.EFA)


@pytest.mark.parametrize(
    "fault",
    [*faults_hardware.GPU_FAULTS, *faults_hardware.PORT_FAULTS],
    ids=lambda f: f.name.replace(" ", "-"),
)
def test_fault_of_a_device_names_it(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    named(found, fault)


@pytest.mark.parametrize(
    "fault", faults_hardware.ROCE_FAULTS, ids=lambda f: f.name.replace(" ", "-")
)
def test_fault_of_a_roce_port_names_it(roce: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(roce, fault, tmp_path / "run")
    named(found, fault)
    assert found.devices == (fault.device,)


@pytest.mark.parametrize(
    "fault", faults_hardware.EFA_FAULTS, ids=lambda f: f.name.replace(" ", "-")
)
def test_fault_of_an_efa_device_names_it(efa: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(efa, fault, tmp_path / "run")
    named(found, fault)
    assert found.devices == (fault.device,)


@pytest.mark.parametrize(
    "fault", faults_hardware.DRIFT_FAULTS, ids=lambda f: f.name.replace(" ", "-")
)
def test_fault_of_a_node_unlike_the_others_names_node_and_fact(
    three: Sandbox, fault: Fault, tmp_path: Path
):
    found = faults.drill(three, fault, tmp_path / "run")
    named(found, fault)
    assert found.devices == (fault.device,)


def test_fault_that_resets_a_counter_is_not_measured_and_no_pass(sandbox: Sandbox, tmp_path: Path):
    fault = faults_hardware.port(
        "infiniband.symbol_error", "counter reset", "ib-counter-reset", "", "mlx5_3:symbol_error"
    )
    found = faults.drill(sandbox, fault, tmp_path / "run")
    outcomes = {(r["criterion"], r["subject"]): r["outcome"] for r in found.rows}
    assert outcomes["infiniband.symbol_error", "worker1"] == "NOT_MEASURED", found.said
    assert [k for k, v in outcomes.items() if v not in ("PASS", "NOT_APPLICABLE")] == [
        ("infiniband.symbol_error", "worker1")
    ]


TAKEN_AWAY = {
    "health.ecc_mode": ("nvmlDeviceGetEccMode",),
    "health.ecc_rate": ("nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetTotalEccErrors"),
    "health.remap_pending": ("nvmlDeviceGetRemappedRows",),
    "health.xid": ("nvmlDeviceRegisterEvents",),
    "health.thermal": ("nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"),
    "nvlink.links": ("nvmlDeviceGetNvLinkState",),
    "nvlink.fabric": ("nvmlDeviceGetGpuFabricInfoV",),
}


@pytest.mark.parametrize(("criterion", "functions"), TAKEN_AWAY.items(), ids=TAKEN_AWAY)
def test_fault_that_takes_a_measurement_away_is_no_pass(
    sandbox: Sandbox, criterion: str, functions: tuple[str, ...], tmp_path: Path
):
    fault = Fault(
        criterion=criterion, name="", where="", culprit="", select="test_health",
        inject=faults_hardware.broken("unsupported", *(f"gpu1:{f}" for f in functions)),
    )  # fmt: skip
    found = faults.drill(sandbox, fault, tmp_path / "run")
    outcomes = {(r["criterion"], r["subject"]): r["outcome"] for r in found.rows}
    assert outcomes[criterion, "worker1"] == "NOT_MEASURED", found.said
    assert outcomes[criterion, "worker0"] == "PASS"
    assert "FAIL" not in outcomes.values()


def test_healthy_hardware_passes_whole(sandbox: Sandbox, tmp_path: Path):
    healthy = Fault(
        criterion="", name="", where="", culprit="", select="test_health or infiniband or drift",
        inject=lambda _: nullcontext(),
    )  # fmt: skip
    found = faults.drill(sandbox, healthy, tmp_path / "run")
    assert {r["outcome"] for r in found.rows} <= {"PASS", "NOT_APPLICABLE"}, found.said
    assert {r["outcome"] for r in found.rows if r["criterion"].startswith("health")} == {"PASS"}
