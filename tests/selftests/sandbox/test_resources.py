"""What the sandbox takes of its host: GPUs, device numbers, cores, memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.sandbox import resources
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.resources import Gpu, short_model
from tests.selftests.sandbox.parts import Calls, faked

pytestmark = pytest.mark.cpu


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Another /dev, /proc and /sys; every file of the first is a device."""

    class Device(type(tmp_path)):
        def is_char_device(self) -> bool:
            return "block" not in self.read_text()

    monkeypatch.setattr(resources, "Path", lambda path: Device(tmp_path) / path.lstrip("/"))
    for name in ("dev", "proc", "sys/fs/cgroup/memory"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def on_cores(monkeypatch, *numbers: int) -> None:
    monkeypatch.setattr(resources, "os", faked(os, sched_getaffinity=lambda _: {*numbers}))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "geforce"),
        ("", "gpu"),
    ],
)
def test_gpu_type_is_a_word(name: str, word: str) -> None:
    assert short_model(name) == word


def test_an_unusual_name_still_gives_a_word():
    assert short_model("NVIDIA (?)") == "gpu"
    assert short_model("Tesla T4") == "t4"


# --- GPUs

INFORMATION = "Model: \t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
SMI = """\
==============NVSMI LOG==============
Attached GPUs : 2
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H200
    GPU UUID                              : GPU-b
    Minor Number                          : 10
GPU 00000000:2B:00.0
    GPU UUID                              : GPU-a
    Minor Number                          : 2
GPU 00000000:3B:00.0
    GPU UUID                              : GPU-none
GPU 00000000:4B:00.0
    Minor Number                          : 4
"""


def information(root: Path, name: str, text: str) -> None:
    file = root / "proc" / "driver" / "nvidia" / "gpus" / name / "information"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_gpus_are_in_the_order_of_their_devices(root, monkeypatch):
    assert resources.gpus() == []
    for name in ("nvidia10", "nvidia2", "nvidia7", "nvidia2x", "nvidiactl", "nvidia3"):
        (root / "dev" / name).touch()
    (root / "dev" / "nvidia3").write_text("block")
    information(root, "0000:1b:00.0", INFORMATION.format(uuid="GPU-b1", minor=10))
    information(root, "0000:2b:00.0", "GPU UUID: GPU-a1\nDevice Minor: 2\n")
    information(root, "0000:3b:00.0", "GPU UUID: GPU-c3\n")
    information(root, "0000:4b:00.0", "Device Minor: 7\n")
    (root / "proc/driver/nvidia/gpus/broken/information").mkdir(parents=True)
    monkeypatch.setattr(resources, "gpu_facts_from_nvidia_smi", dict)
    assert resources.gpus() == [
        Gpu(str(root / "dev" / "nvidia2"), "GPU-a1", ""),
        Gpu(str(root / "dev" / "nvidia7"), "", ""),
        Gpu(str(root / "dev" / "nvidia10"), "GPU-b1", "NVIDIA H200"),
    ]


def test_a_container_without_the_drivers_files_asks_nvidia_smi(root, monkeypatch):
    for name in ("nvidia2", "nvidia10"):
        (root / "dev" / name).touch()
    monkeypatch.setattr(shutil, "which", Calls(None))
    assert resources.gpu_facts_from_nvidia_smi() == {}
    monkeypatch.setattr(shutil, "which", Calls("/usr/bin/nvidia-smi"))
    monkeypatch.setattr(subprocess, "run", Calls(SimpleNamespace(stdout=SMI)))
    assert resources.gpu_facts_from_nvidia_smi() == {10: ("GPU-b", "NVIDIA H200"), 2: ("GPU-a", "")}
    assert [(gpu.uuid, gpu.model) for gpu in resources.gpus()] == [
        ("GPU-a", ""), ("GPU-b", "NVIDIA H200")
    ]  # fmt: skip


def test_gpus_are_shared_out_or_too_few(monkeypatch):
    every = [Gpu(f"/dev/nvidia{k}", f"GPU-{k}", "") for k in range(4)]
    monkeypatch.setattr(resources, "gpus", lambda: every)
    assert resources.share_gpus(2, 2) == every
    assert resources.share_gpus(1, 3) == every[:3]
    assert resources.share_gpus(2, 1) == every[:2]
    assert resources.share_gpus(2, 0) == []
    with pytest.raises(SandboxError, match="2 nodes of 3 GPUs need 6, this host has 4"):
        resources.share_gpus(2, 3)
    monkeypatch.setattr(resources, "gpus", list)
    assert resources.share_gpus(2, 3) == []


def test_fake_gpus_have_a_major_that_nobody_uses(root):
    text = "Character devices:\n  1 mem\n{used}\nBlock devices:\n 120 sd\n 121 sd\n"
    for used, major in (
        ([], 120), ([120], 121), ([*range(120, 128)], 60), ([*range(120, 128), 60, 61], 62)
    ):  # fmt: skip
        lines = "\n".join(f"{number} driver" for number in used)
        (root / "proc" / "devices").write_text(text.format(used=lines))
        assert resources.fake_major() == major
    lines = "\n".join(f"{number} driver" for number in (*range(120, 128), *range(60, 64)))
    (root / "proc" / "devices").write_text(text.format(used=lines))
    with pytest.raises(SandboxError, match="no local character major"):
        resources.fake_major()


# --- memory and cores


def test_a_tenth_of_the_available_memory_is_left_to_the_host(root):
    (root / "proc" / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 1024000 kB\n")
    assert resources.memory_mib() == 900
    limits = [
        root / "sys/fs/cgroup" / name for name in ("memory.max", "memory/memory.limit_in_bytes")
    ]
    for two, one, mib in (("max", "", 900), (str(500 * 2**20), "", 450), ("max", "", 900),
                          ("max", str(100 * 2**20), 90),
                          (str(2**50), str(2**60), 900)):  # fmt: skip
        for file, text in zip(limits, (two, one), strict=True):
            file.unlink(missing_ok=True)
            if text:
                file.write_text(f"{text}\n")
        assert resources.memory_mib() == mib


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    on_cores(monkeypatch, 5, 2, 9)
    assert resources.cores() == [2, 5, 9]


def test_nodes_claim_their_share_of_the_cores(monkeypatch):
    on_cores(monkeypatch, *range(16))
    for nodes, gpus, claimed in (
        (1, 2, 16), (2, 2, 8), (8, 2, 2), (16, 2, 4), (8, 3, 4), (5, 2, 4), (3, 0, 6), (4, 6, 6),
    ):  # fmt: skip
        assert resources.claimed_cpus(nodes, gpus) == claimed, (nodes, gpus)
    on_cores(monkeypatch, 0)
    assert [resources.claimed_cpus(n, 0) for n in (1, 2, 3)] == [2, 4, 4]


def test_cores_are_bound_where_one_node_has_all_of_them(monkeypatch):
    on_cores(monkeypatch, 0, 1, 2, 3)
    for nodes, gpus, cpus, can in (
        (1, 2, None, True), (1, 2, 4, True), (1, 2, 5, False), (2, 2, 2, False),
        (1, 6, None, False),        (1, 6, 4, True),
    ):  # fmt: skip
        assert resources.can_bind_cores(nodes, gpus, cpus) is can, (nodes, gpus, cpus)
    on_cores(monkeypatch, 4, 5, 6, 7)
    assert resources.can_bind_cores(1, 2) is False


def test_each_node_has_cores_of_its_own_where_there_are_enough(monkeypatch):
    on_cores(monkeypatch, *range(10, 15))
    assert [resources.cores_of_node(k, 2, 2) for k in range(2)] == ["10,11", "12,13"]
    assert resources.cores_of_node(0, 2, 3) is None
