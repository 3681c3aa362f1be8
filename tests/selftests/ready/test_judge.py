"""Each fault of driver and host is "not ready" with its reason; healthy nodes are ready, whatever
else they show."""

from __future__ import annotations

import copy
import random
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.ready import children, readings
from fixtures.ready.certificate import node_of
from fixtures.ready.judge import judge
from fixtures.sandbox import emulation
from fixtures.sandbox.hardware_faults import GPU_FAULTS
from tests.selftests.ready_nodes import NODE, PLATFORM, Node, certified, of_node

pytestmark = pytest.mark.cpu

NIC = PLATFORM.ordered_nics[-1]
PORT = f"infiniband/{NIC}/ports/1"
BUS = "00000000:28:00.0"
ON_GPU = re.escape(f"GPU 1 {BUS} (GPU-971f86e2): ")
"""The beginning of what is said of the second GPU."""

Breaks = Callable[[Node, dict[str, Any]], None]


def gpu(kind: str) -> Breaks:
    """A fault that the sandbox knows, on the second GPU."""
    return lambda node, data: node.break_driver(*(f"1.{line}" for line in GPU_FAULTS[kind]))


def lines(*texts: str) -> Breaks:
    return lambda node, data: node.break_driver(*texts)


def sysfs(name: str, text: str) -> Breaks:
    return lambda node, data: node.write(name, text)


def xid(*numbers: int) -> Breaks:
    return lambda node, data: node.log(*numbers)


def mounted(line: str, **was: Any) -> Breaks:
    """A certified mount at /, and this line of the kernel's table."""

    def breaks(node: Node, data: dict[str, Any]) -> None:
        mounts = {"/": {"type": "nfs4", "writable": True, **was}}
        of_node(data)["mounts"] = mounts
        (node.root / "proc/self/mounts").write_text(f"{line}\n" if line else "")

    return breaks


def gone(point: str) -> Breaks:
    def breaks(node: Node, data: dict[str, Any]) -> None:
        of_node(data)["mounts"] = {point: {"type": "", "writable": False}}

    return breaks


def nic_missing(node: Node, data: dict[str, Any]) -> None:
    shutil.rmtree(node.hardware / "infiniband" / NIC)


def port_missing(node: Node, data: dict[str, Any]) -> None:
    shutil.rmtree(node.hardware / PORT)


def verbs_missing(node: Node, data: dict[str, Any]) -> None:
    for uverbs in (node.hardware / "infiniband_verbs").iterdir():
        if (uverbs / "ibdev").read_text().strip() == NIC:
            shutil.rmtree(uverbs)


FAULTS: dict[str, tuple[Breaks, str]] = {
    "a lost GPU": (gpu("lost"), ON_GPU + "does not answer its driver: GpuIsLost"),
    "a GPU that asks for a reset": (
        lines("1.fail.nvmlDeviceGetTemperature=16"),
        ON_GPU + "does not answer its driver: ResetRequired",
    ),
    "a GPU without a handle": (
        lines("1.fail.nvmlDeviceGetHandleByIndex_v2=15"), "GPU 1: GpuIsLost",
    ),
    "a GPU that is not counted": (
        lines("count=1"), "GPU-.* at 00000000:28:00.0 is missing: 1 of 2",
    ),
    "a driver that is not loaded": (lines("count=-1"), "driver: DriverNotLoaded"),
    "another GPU in its place": (
        lines("1.uuid=GPU-new"), f"GPU-new is at {BUS} in place of GPU-971f86e2",
    ),
    "a GPU in another slot": (
        lines("1.pci=00000000:99:00.0"), ON_GPU + "pci 00000000:99:00.0, certified 00000000:28:",
    ),
    "another VBIOS": (gpu("vbios"), ON_GPU + "vbios 00.00.00.00.02, certified 00.00.00.00.01"),
    "ECC off": (gpu("ecc-off"), ON_GPU + "ECC disabled, certified enabled"),
    "ECC off from the next reset on": (gpu("ecc-pending"), ON_GPU + "ECC pending, certified"),
    "uncorrectable errors": (
        gpu("ecc-uncorrected"), ON_GPU + "3 uncorrectable memory errors, at most 0",
    ),
    "a storm of corrected errors": (
        gpu("ecc-corrected"), ON_GPU + "60000000 corrected memory errors, at most 20000000",
    ),
    "SRAM errors": (gpu("ecc-sram"), ON_GPU + "5 uncorrectable SRAM errors in its life, at most 0"),
    "corrected SRAM errors": (
        gpu("ecc-sram-corrected"), ON_GPU + "20000 corrected SRAM errors, at most 10000",
    ),
    "a pending remap": (gpu("remap-pending"), ON_GPU + "row remapping pending, certified none"),
    "a failed remap": (gpu("remap-failed"), ON_GPU + "row remapping failed, certified none"),
    "no spare rows": (
        gpu("remap-exhausted"), ON_GPU + "2 memory banks without a spare row, at most 0",
    ),
    "a recovery action": (
        gpu("recovery-action"), ON_GPU + "recovery action reboot the node, certified none",
    ),
    "persistence mode off": (
        gpu("persistence-off"), ON_GPU + "persistence mode disabled, certified enabled",
    ),
    "MIG on": (gpu("mig-on"), ON_GPU + "MIG enabled, certified disabled"),
    "MIG from the next reset on": (gpu("mig-pending"), ON_GPU + "MIG pending, certified disabled"),
    "exclusive processes": (
        gpu("compute-mode"), ON_GPU + "compute mode exclusive process, certified default",
    ),
    "a power limit": (gpu("power-limit"), ON_GPU + "power limit 500 of 700 W, certified default"),
    "a narrow PCIe link": (gpu("pcie-width"), ON_GPU + "PCIe x8, certified x16"),
    "an NVLink down": (gpu("nvlink-down"), ON_GPU + "17 of 18 NVLinks are up .down: 3"),
    "fewer NVLinks": (lines("1.links=12"), ON_GPU + "12 of 18 NVLinks are up"),
    "a fabric that is not ready": (
        gpu("fabric-not-ready"), ON_GPU + "NVLink fabric in progress, certified ready",
    ),
    "a fabric that is unhealthy": (
        gpu("fabric-unhealthy"), ON_GPU + "NVLink fabric unhealthy, certified ready",
    ),
    "a foreign process": (gpu("foreign-process"), "GPU 1: process 4711, which /proc does not show"),
    "leaked memory": (gpu("leaked-memory"), ON_GPU + "4096 MiB in use without a process, at most"),
    "NVLink recoveries of its life": (
        lines("1.link.errors.1=505"), ON_GPU + r"\d+ more replays and recoveries since",
    ),
    "PCIe replays of its life": (
        lines("1.pcie.replays=90000"), ON_GPU + "90000 more PCIe replays since the certificate",
    ),
    "Xid 79": (xid(79), "GPU 0000:28:00: Xid 79: the GPU fell off the bus"),
    "an Xid among those of programs": (xid(13, 43, 95, 13), "GPU 0000:28:00: Xid 95: "),
    "a NIC that is missing": (nic_missing, f"{NIC} is missing"),
    "another NIC in its place": (
        sysfs(f"infiniband/{NIC}/node_guid", "dead:beef:0000:0000"),
        f"{NIC} has GUID dead:beef:0000:0000, certified a088",
    ),
    "a port that is missing": (port_missing, f"{NIC} is missing"),
    "a port without a link": (
        sysfs(f"{PORT}/phys_state", "2: Polling"),
        f"{NIC}: physical state Polling, certified LinkUp",
    ),
    "a port without a subnet manager": (
        sysfs(f"{PORT}/state", "2: INIT"), f"{NIC}: state INIT, certified ACTIVE",
    ),
    "a slow port": (
        sysfs(f"{PORT}/rate", "200 Gb/sec (2X NDR)"), f"{NIC}: rate 200.0, certified 400.0",
    ),
    "a port of another fabric": (
        sysfs(f"{PORT}/link_layer", "Ethernet"), f"{NIC}: fabric RoCE, certified InfiniBand",
    ),
    "a NIC that no program can open": (verbs_missing, f"{NIC}: verbs missing, certified present"),
    "a narrow link of a NIC": (
        lambda node, data: node.write_of_nic(NIC, "current_link_width", "8"),
        f"{NIC}: PCIe x8, certified x16",
    ),
    "a mount that is not there": (gone("/no/such/place"), "mount /no/such/place: No such file"),
    "an empty mount point": (mounted(""), "mount /: nothing is mounted there"),
    "another file system": (mounted("x / ext4 rw 0 0"), "mount /: ext4, certified nfs4"),
    "a read-only mount": (
        mounted("x / nfs4 ro,hard 0 0"), "mount /: read-only, certified writable",
    ),
}  # fmt: skip
"""Fault -> how it is put in, and what is said of it."""


def test_there_are_as_many_faults_as_promised():
    assert len(FAULTS) >= 40


@pytest.mark.parametrize(("breaks", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_not_ready_with_its_reason(node: Node, breaks: Breaks, reason: str):
    data = certified()
    breaks(node, data)
    found = node.told(data)
    said = [*found.changed, *found.sick]
    assert found.status == 1
    assert any(re.match(reason, text) for text in said), said


def test_what_a_repair_changed_points_to_the_recertification(node: Node):
    node.break_driver("1.uuid=GPU-new")
    found = node.told(certified())
    assert len(found.changed) == 1
    assert not found.sick, "a part that was replaced is not missing as well"


def test_a_healthy_node_is_ready(node: Node):
    found = node.told(certified())
    assert (found.status, found.unseen) == (0, [])


HEALTHY: dict[str, Breaks] = {
    "a slow driver": lines("*.delay=1"),
    "Xids of programs": xid(13, 31, 43, 45, 94),
    "a program that was killed": xid(45),
    "a repair that is done": xid(154),
    "Xids before the certificate": lambda node, data: node.log(79, ago_s=90000),
    "one NVLink replay": lines("0.link.errors.0=1"),
    "PCIe replays": lines("0.pcie.replays=1000"),
    "corrected errors": lines("0.ecc.volatile.corrected=1000", "0.ecc.aggregate.corrected=5000"),
    "corrected rows": lines("1.remap.corrected=2", "1.remap.uncorrected=1"),
    "work": lines("*.utilization=100", "*.temperature=86", "*.power.usage=690000"),
    "clocks of a job": lines("1.clock.application=1500", "1.clock.reasons=2"),
    "a link that saves power": lines("*.pcie.generation=1"),
    "counters of links": lambda node, data: node.write(f"{PORT}/counters/symbol_error", "12"),
    "a NIC by another name": lambda node, data: node.rename_nic(NIC, "mlx5_77"),
}  # fmt: skip
"""What a healthy node may show."""


@pytest.mark.parametrize("shows", HEALTHY.values(), ids=HEALTHY)
def test_what_healthy_nodes_show_is_ready(node: Node, shows: Breaks):
    data = certified()
    shows(node, data)
    found = node.told(data)
    assert found.status == 0, (found.changed, found.sick, found.unknown)


def healthy_start(node: Node, seed: int) -> None:
    """A start with every counter at some healthy value is ready."""
    draw = random.Random(seed)
    node.break_driver(
        f"*.delay={int(seed % 100 == 7)}",
        f"0.pcie.replays={draw.randrange(31 * 60)}", f"1.link.errors.0={draw.randrange(6)}",
        f"1.ecc.volatile.corrected={draw.randrange(10**7)}",
        f"0.ecc.volatile.corrected.7={draw.randrange(10**4)}",
        f"0.remap.corrected={draw.randrange(8)}", f"1.memory.used={draw.randrange(15 << 20)}",
        f"0.temperature={draw.randrange(20, 90)}", f"0.utilization={draw.randrange(101)}",
        f"*.pcie.generation={draw.randrange(1, 6)}", f"0.clock.reasons={draw.choice((0, 1, 4))}",
    )  # fmt: skip
    node.log(*draw.choices((13, 31, 43, 45, 68), k=draw.randrange(4)))
    found = node.told(certified())
    assert found.status == 0, (seed, found.changed, found.sick, found.unknown)


def test_twenty_healthy_starts_are_ready(node: Node):
    for seed in range(20):
        healthy_start(node, seed)


@pytest.mark.slow
def test_a_thousand_healthy_starts_are_ready(node: Node):
    for seed in range(1000):
        healthy_start(node, seed)


# --- what is not known


def test_what_the_certificate_has_and_the_driver_does_not_tell_is_not_known(node: Node):
    for function, what in {
        "nvmlDeviceGetEccMode": "ECC: NotSupported",
        "nvmlDeviceGetRemappedRows": "row remapping: NotSupported",
        "nvmlDeviceGetNvLinkState": "NVLink: NotSupported",
        "nvmlDeviceGetCurrPcieLinkWidth": "PCIe link: NotSupported",
    }.items():
        node.break_driver(f"1.fail.{function}=3")
        found = node.told(certified())
        assert found.status == 2, function
        assert found.unknown[0].endswith(what)


def test_what_the_certificate_does_not_have_is_not_asked_for(node: Node):
    node.break_driver("1.fail.nvmlDeviceGetEccMode=3", "1.fail.nvmlDeviceGetNvLinkState=3")
    data = certified()
    of_gpu = of_node(data)["gpus"][1]
    of_gpu["states"] = {k: v for k, v in of_gpu["states"].items() if k != "ecc_mode"}
    of_gpu["links"] = None
    assert node.told(data).status == 0


def test_gpus_that_may_not_be_opened_are_not_missing(node: Node):
    node.break_driver("1.fail.nvmlDeviceGetHandleByIndex_v2=4")
    found = node.told(certified())
    assert found.status == 2
    assert found.unknown == ["GPU 1: NoPermission"]


def test_inside_a_job_a_gpu_that_is_not_shown_is_not_missing(node: Node, monkeypatch):
    """Drivers leave out what the device control group of a job forbids."""
    node.break_driver("count=1")
    monkeypatch.setattr(readings, "_of_a_job", lambda cgroup: True)
    found = node.told(certified())
    assert found.status == 2
    assert found.unknown == [f"{emulation.gpu_uuid(NODE, 1)} at {BUS} is not shown inside this job"]


def test_a_kernel_log_that_only_root_reads_is_told_and_no_hindrance(node: Node):
    (node.root / "dev/kmsg").unlink()
    found = node.told(certified())
    assert found.status == 0
    assert found.unseen == ["Xids (kernel log: No such file or directory)"]


def test_a_process_of_another_user_is_not_known_without_root(node: Node):
    data = node_of(certified(), (NODE,))
    process = {"pid": 7, "name": "python", "seen": True, "sure": False}
    told = children.Child("all", 1, -1, messages=[
        {"driver": {"count": 0}}, {"gpu": 0, "processes": [process]},
    ])  # fmt: skip
    found = judge(data, [told], data.since)
    assert "GPU 0: process 7 python: only root sees whether it is of a job" in found.unknown


def test_what_is_sick_outweighs_what_is_not_known(node: Node):
    node.break_driver("0.fail.nvmlDeviceGetEccMode=3", "1.link.3=0")
    found = node.told(certified())
    assert found.status == 1
    assert found.unknown


def test_a_certificate_without_gpus_asks_no_driver(node: Node):
    node.break_driver("count=-1")
    data = copy.deepcopy(certified())
    of_node(data)["gpus"] = []
    assert node.looked_at(data)[1].status == 0
