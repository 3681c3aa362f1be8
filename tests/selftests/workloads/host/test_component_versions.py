"""Versions of firmware and software, and which are below a minimum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices
from fixtures.workloads.host import component_versions

pytestmark = pytest.mark.cpu


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


def test_a_prefix_of_a_version_is_enough_and_what_is_missing_is_below():
    assert not component_versions.is_below("kernel", "5.15", "5.15")
    assert component_versions.is_below("kernel", "5", "5.15")
    assert component_versions.is_below("kernel", "A.5", "6"), "only digits count there"


def test_parts_below_a_minimum_are_named_and_what_is_not_shown_too():
    found = {"kernel": {"the node": "5.4"}, "nic": {"mlx5_0": "28.1", "mlx5_1": "28.2"}}
    minimums = {"kernel": "5.15", "nic": "28.2", "bios": "1.0"}
    short, unseen = component_versions.below(found, minimums)
    assert list(short) == ["kernel", "nic of mlx5_0"]
    assert short["nic of mlx5_0"] == "nic of mlx5_0: 28.1, at least 28.2 is wanted"
    assert unseen == ["bios"]
    assert component_versions.below(found, {"nic": "28.1"}) == ({}, [])


def test_what_a_node_shows_is_read_by_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "nvml", lambda: None)
    monkeypatch.setattr(component_versions, "_container_toolkit", lambda: None)
    monkeypatch.setattr(component_versions.platform, "release", lambda: "6.1")
    assert component_versions.read({}, tmp_path) == {"kernel": {"the node": "6.1"}}
    for path, text in (
        ("sys/class/dmi/id/bios_version", "1.4"), ("sys/class/infiniband/mlx5_0/fw_ver", "28.1"),
        ("sys/class/infiniband/mlx5_1/fw_ver", ""),
    ):  # fmt: skip
        write_sysfs_file(tmp_path / path, text)
    monkeypatch.setattr(devices, "nvml", lambda: object())
    monkeypatch.setattr(devices, "query_nvml", lambda *_: "580.1")
    monkeypatch.setattr(devices, "gpu_addresses", list)
    monkeypatch.setattr(devices, "open_handles", lambda: ["a", "b"])
    facts = {"a": {"uuid": "GPU-a", "vbios": "96.00"}, "b": {"uuid": "GPU-b"}}
    monkeypatch.setattr(devices, "nvml_facts", facts.get)
    monkeypatch.setattr(component_versions, "_container_toolkit", lambda: "1.17.8")
    assert component_versions.read({}, tmp_path) == {
        "kernel": {"the node": "6.1"}, "bios": {"the node": "1.4"}, "nic": {"mlx5_0": "28.1"},
        "driver": {"the node": "580.1"}, "vbios": {"GPU-a": "96.00"},
        "container_toolkit": {"the node": "1.17.8"},
    }  # fmt: skip


def test_the_container_toolkit_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch):
    answers: list[Any] = [
        "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: 1", "none", OSError(),
        component_versions.subprocess.TimeoutExpired("nvidia-ctk", 5),
    ]  # fmt: skip

    def run(command: list[str], *, timeout: float, **_: Any) -> Any:
        assert (command, timeout) == (["/bin/nvidia-ctk", "--version"], 5)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(component_versions.subprocess, "run", run)
    monkeypatch.setattr(component_versions.shutil, "which", lambda name: f"/bin/{name}")
    found = [component_versions._container_toolkit() for _ in range(4)]
    assert found == ["1.17.8", None, None, None]
    monkeypatch.setattr(component_versions.shutil, "which", lambda _: None)
    assert component_versions._container_toolkit() is None
