"""Facts of a host, on trees of plain files and a made-up driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices, host_facts

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "nvml", lambda: None)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def test_memory_is_read_by_numa_node_and_that_of_a_gpu_is_left_out(tmp_path: Path):
    folder = tmp_path / "sys/devices/system/node"
    for node, cores in ((0, "0-7"), (1, "8-15"), (2, "")):
        text = f"Node {node} MemTotal:       {1 << 20} kB"
        write_sysfs_file(folder / f"node{node}" / "meminfo", text)
        write_sysfs_file(folder / f"node{node}" / "cpulist", cores)
    write_sysfs_file(folder / "node3" / "cpulist", "16-23")
    assert host_facts.memory_by_node(tmp_path) == {"node0": 1024, "node1": 1024}


def test_what_the_host_shows_is_a_fact_and_the_rest_has_a_reason(tmp_path: Path):
    files = {
        "proc/sys/kernel/random/boot_id": "abc",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/cmdline": "quiet iommu=pt",
        "sys/class/dmi/id/bios_version": "1.4", "sys/class/dmi/id/board_name": "board",
        "sys/devices/platform/ipmi_bmc.0/firmware_revision": "",
        "sys/devices/platform/ipmi_bmc.1/firmware_revision": "7.1",
        "sys/kernel/iommu_groups/0/type": "DMA", "sys/kernel/iommu_groups/1/type": "DMA",
        "proc/cpuinfo": "processor: 0\nmicrocode\t: 0x2b\nprocessor: 1\nmicrocode\t: 0x2c",
    }  # fmt: skip
    for path, text in files.items():
        write_sysfs_file(tmp_path / path, text)
    found = host_facts.of(tmp_path)
    assert (found["boot_id"], found["bmc"], found["iommu_groups"]) == ("abc", "7.1", 2)
    assert found["transparent_hugepages"] == "madvise"
    assert found["command_line"] == "quiet iommu=pt"
    assert found["dmi"] == {"BIOS": "1.4", "board": "board"}
    assert set(found["not_readable"]) == {
        "numa_balancing", "power_profile", "turbo_off", "boost", "acs",
    }  # fmt: skip
    assert host_facts.microcode(tmp_path) == "0x2b"


def test_a_host_that_shows_nothing_says_why(tmp_path: Path):
    found = host_facts.of(tmp_path)
    assert set(found) == {"not_readable", "mps"}
    assert set(found["not_readable"]) == {*host_facts.SETTINGS, "dmi", "bmc", "acs"}
    assert host_facts.bmc(tmp_path) == ""
    assert host_facts.microcode(tmp_path) == ""


def test_a_server_for_shared_gpus_is_seen_by_variable_or_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    honest = Path.exists
    for variable, pipe in (("", False), ("/run/mps", False), ("", True)):
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", variable)
        monkeypatch.setattr(
            Path, "exists",
            lambda p, pipe=pipe: pipe if p.name == "control" else honest(p),
        )  # fmt: skip
        assert host_facts.of(tmp_path)["mps"] is (bool(variable) or pipe)


def test_locked_clocks_and_confidential_computing_come_from_the_driver(
    monkeypatch: pytest.MonkeyPatch,
):
    def answers(**found: Any) -> None:
        monkeypatch.setattr(devices, "nvml", lambda: object())
        monkeypatch.setattr(
            devices, "query_nvml",
            lambda name, *args: found.get(f"{name}{args[-1]}" if args else name),
        )  # fmt: skip

    answers()
    monkeypatch.setattr(devices, "open_handles", list)
    assert host_facts._gpu_facts() == {}
    monkeypatch.setattr(devices, "open_handles", lambda: ["gpu0", "gpu1"])
    assert host_facts._gpu_facts() == {"confidential_computing": None, "max_clocks_mhz": []}
    answers(
        nvmlSystemGetConfComputeState=SimpleNamespace(ccFeature=1), nvmlDeviceGetMaxClockInfo1=1980,
        nvmlDeviceGetMaxClockInfo2=3201,
    )  # fmt: skip
    assert host_facts._gpu_facts() == {
        "confidential_computing": True, "max_clocks_mhz": [1980, 3201],
    }  # fmt: skip
    monkeypatch.setattr(devices, "nvml", lambda: None)
    assert host_facts._gpu_facts() == {}
