"""The host's workloads on trees of plain files: bridges, virtual machines, what is not shown."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox import emulated_host
from fixtures.sandbox.platforms import make_aer, make_link, write_sysfs_file
from fixtures.workloads.devices import host_facts, nics, pci
from fixtures.workloads.host import component_versions, host, host_errors

pytestmark = pytest.mark.cpu

BRIDGE, NIC = "0000:15:01.0", "0000:17:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with one NIC below a bridge."""
    bridge = tmp_path / "sys/devices/pci0000:15" / BRIDGE
    device = bridge / NIC
    make_link(device, lanes=16, speed="32.0 GT/s PCIe")
    make_link(bridge, lanes=16, speed="32.0 GT/s PCIe")
    make_aer(device)
    make_aer(bridge)
    for path, code in ((bridge, "0x060400"), (device, "0x020700")):
        write_sysfs_file(path / "class", code)
        link = tmp_path / pci.DEVICES / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    nic = tmp_path / nics.NICS / "mlx5_0"
    nic.mkdir(parents=True)
    (nic / "device").symlink_to(device)
    return tmp_path


def found(root: Path) -> list[pci.Device]:
    return pci.devices(root, ["mlx5_0"])


def ranks(**spec: Any) -> Any:
    return SimpleNamespace(
        leads_node=True, spec={"nic_order": {"names": ["mlx5_0"]}, **spec}, node="n",
        nodes=["n"], begin_notes={},
    )  # fmt: skip


def test_a_bridge_is_named_by_the_device_below_it(root: Path):
    assert [d.label for d in found(root)] == ["mlx5_0", f"bridge {BRIDGE} above mlx5_0"]


def test_a_slot_that_is_narrower_than_the_card_is_no_fault_and_a_lost_lane_is(root: Path):
    bridge = root / "sys/devices/pci0000:15" / BRIDGE
    make_link(bridge, lanes=8, speed="16.0 GT/s PCIe")
    device = bridge / NIC
    write_sysfs_file(device / "current_link_width", "8")
    write_sysfs_file(device / "current_link_speed", "16.0 GT/s PCIe")
    assert host._link_width(ranks(), root).value == 0
    assert host._link_generation(ranks(), root).value == 0
    write_sysfs_file(device / "current_link_width", "4")
    width = host._link_width(ranks(), root)
    assert (width.value, width.at["part"]) == (4, "mlx5_0")


def test_a_hypervisors_port_that_is_slower_than_the_link_hides_no_fault(root: Path):
    bridge = root / "sys/devices/pci0000:15" / BRIDGE
    make_link(bridge, lanes=1, speed="2.5 GT/s PCIe")
    write_sysfs_file(bridge / NIC / "current_link_width", "8")
    assert host._link_width(ranks(), root).value == 8


@pytest.mark.parametrize("width", ["0", "63", "255", ""])
def test_a_virtual_device_shows_no_link_and_the_row_says_so(root: Path, width: str):
    device = root / "sys/devices/pci0000:15" / BRIDGE / NIC
    write_sysfs_file(device / "current_link_width", width)
    said = host._link_width(ranks(), root)
    assert isinstance(said, str)
    assert "none shows a link" in said


def counted(root: Path, change: Any) -> Any:
    """What is measured where `change` happens between begin() and run()."""
    asked = ranks()
    asked.begin_notes = {host_errors.NAME: host_errors.begin(asked, root=str(root))}
    change()
    return host_errors.run(asked, list(host_errors.WORKLOAD.metrics), root=str(root))


def test_errors_of_a_bridge_name_it(root: Path):
    file = root / "sys/devices/pci0000:15" / BRIDGE / "aer_dev_fatal"
    result = counted(root, lambda: write_sysfs_file(file, "DLP 2\nTLP 1\nTOTAL_ERR_FATAL 3"))
    fatal = next(m for m in result.measurements if m.metric == "aer_fatal")
    assert (fatal.value, fatal.at["part"]) == (3, f"bridge {BRIDGE} above mlx5_0")
    assert "DLP 2" in fatal.notes[0]


def test_a_device_that_stops_counting_makes_its_row_invalid(root: Path):
    file = root / "sys/devices/pci0000:15" / BRIDGE / NIC / "aer_dev_correctable"
    result = counted(root, file.unlink)
    row = next(m for m in result.measurements if m.metric == "aer_correctable")
    assert row.checks["resets"] == 1


def test_what_a_kernel_does_not_count_is_named_by_its_file(root: Path):
    unsupported = counted(root, lambda: None).facts["unsupported"]
    assert set(unsupported) == {"edac_corrected", "edac_uncorrected", "machine_checks"}
    assert "/sys/devices/system/edac/mc" in unsupported["edac_corrected"]
    assert "/proc/interrupts" in unsupported["machine_checks"]


def test_machine_checks_of_all_cores_are_counted(root: Path):
    file = root / "proc/interrupts"
    text = "      CPU0 CPU1\nMCE:   1   2   Machine check exceptions\nMCP: 9 9 polls"
    write_sysfs_file(file, text)
    assert host_errors._machine_checks(root) == 3


def test_memory_is_read_by_numa_node_and_that_of_a_gpu_is_left_out(tmp_path: Path):
    folder = tmp_path / "sys/devices/system/node"
    for node, cores in ((0, "0-7"), (1, "8-15"), (2, "")):
        text = f"Node {node} MemTotal:       {1 << 20} kB"
        write_sysfs_file(folder / f"node{node}" / "meminfo", text)
        write_sysfs_file(folder / f"node{node}" / "cpulist", cores)
    assert host_facts.memory_by_node(tmp_path) == {"node0": 1024, "node1": 1024}


@pytest.mark.parametrize(
    ("component", "version", "least", "below"),
    [
        ("driver", "570.133.20", "570.172.08", True),
        ("driver", "580.95.05", "570.172.08", False),
        ("kernel", "5.15.0-113-generic", "5.15", False),
        ("kernel", "5.4.0", "5.15", True),
        ("vbios", "96.00.9F.00.01", "96.00.CF.00.01", True),
        ("vbios", "96.00.D0.00.01", "96.00.CF.00.01", False),
        ("container_toolkit", "1.17.10", "1.17.8", False),
    ],
)
def test_versions_are_compared_by_number(component: str, version: str, least: str, below: bool):
    assert component_versions.is_below(component, version, least) is below


def test_an_ordered_version_that_is_not_shown_is_no_pass(root: Path):
    row = host._firmware(ranks(host_order={"firmware": {"bios": "1.4"}}), root)
    assert row.value is None
    assert row.notes == ["bios: the node does not show its version"]


def test_a_pinned_core_is_found_and_a_governor_that_the_processor_follows_is_none(tmp_path: Path):
    policies = tmp_path / host.POLICIES
    for name, text in emulated_host.tree("n").items():
        if name.startswith("cpufreq/"):
            write_sysfs_file(policies / name.removeprefix("cpufreq/"), text)
    assert host._governor(ranks(), tmp_path).value == "full"
    write_sysfs_file(policies / "policy1/scaling_governor", "powersave")
    row = host._governor(ranks(), tmp_path)
    assert (row.value, row.at["part"]) == ("powersave", "cpu1")
    write_sysfs_file(policies / "policy1/scaling_driver", "intel_pstate")
    assert host._governor(ranks(), tmp_path).value == "full"


def test_a_compiler_that_the_environment_names_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\n")
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "cc-of-a-module")
    lacking = host._compiler(ranks(), tmp_path)
    assert lacking.value == "missing"
    assert "no C compiler (cc-of-a-module)" in lacking.notes[0]
    monkeypatch.delenv("CC")
    assert "no C compiler" not in host._compiler(ranks(), tmp_path).notes[0]


def test_headers_are_looked_for_where_debian_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    schemes = {
        "posix_prefix": str(tmp_path / "usr/include"),
        "posix_local": str(tmp_path / "usr/local/include"),
    }
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme="posix_local": schemes[scheme])
    assert f"no {tmp_path}/usr/include/Python.h" in host._compiler(ranks(), tmp_path).notes[0]
    write_sysfs_file(tmp_path / "usr/include/Python.h", "")
    assert not any("Python.h" in note for note in host._compiler(ranks(), tmp_path).notes)
