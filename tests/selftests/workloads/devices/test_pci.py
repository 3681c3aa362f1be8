"""PCIe devices, their links and their error counters, on trees in the form of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.sandbox.platforms import make_link, write_sysfs_file
from fixtures.workloads.devices import nics, pci

pytestmark = pytest.mark.cpu

BRIDGE, ROOT_PORT = "0000:15:01.0", "0000:14:00.0"


def device(root: Path, address: str, code: str, vendor: str = "0x15b3", above: str = "") -> Path:
    """Make a device in sysfs, below the bridges that `above` names."""
    path = root / "sys/devices/pci0000:14" / above / address
    write_sysfs_file(path / "class", code)
    write_sysfs_file(path / "vendor", vendor)
    link = root / pci.DEVICES / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path)
    return path


def nic(root: Path, name: str, path: Path) -> None:
    folder = root / nics.NICS / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(path)


def one(path: Path) -> pci.Device:
    return pci.Device(label="d", kind="GPU", path=path)


def test_gpus_counted_nics_and_drives_are_devices_and_what_is_above_them_bridges(tmp_path: Path):
    device(tmp_path, "0000:16:00.0", "0x030200", pci.NVIDIA, above=f"{ROOT_PORT}/{BRIDGE}")
    device(tmp_path, "0000:03:00.0", "0x030000", "0x1a03")
    device(tmp_path, "0000:18:00.0", "0x068000", pci.NVIDIA)
    nic(tmp_path, "mlx5_0", device(tmp_path, "0000:17:00.0", "0x020700", above=BRIDGE))
    device(tmp_path, "0000:19:00.0", "0x020000")
    drive = device(tmp_path, "0000:1a:00.0", "0x010802")
    (drive / "nvme" / "nvme3").mkdir(parents=True)
    device(tmp_path, "0000:1b:00.0", "0x010802")
    assert [(d.label, d.kind) for d in pci.devices(tmp_path, ["mlx5_0", "mlx5_9"])] == [
        ("mlx5_0", "NIC"), ("GPU 0000:16:00.0", "GPU"), ("nvme3 0000:1a:00.0", "NVMe"),
        ("NVMe 0000:1b:00.0", "NVMe"), (f"bridge {BRIDGE} above mlx5_0", "bridge"),
        (f"bridge {ROOT_PORT} above GPU 0000:16:00.0", "bridge"),
    ]  # fmt: skip
    assert pci.devices(tmp_path / "nowhere", []) == []


def link(path: Path, lanes: str, lanes_most: str, speed: str, speed_most: str) -> None:
    for name, text in (
        ("current_link_width", lanes), ("max_link_width", lanes_most),
        ("current_link_speed", speed), ("max_link_speed", speed_most),
    ):  # fmt: skip
        write_sysfs_file(path / name, text)


def found(path: Path) -> tuple[int, int, int, int] | None:
    shown = pci.link_of(one(path))
    if shown is None:
        return None
    return shown.lanes, shown.lanes_able, shown.generation, shown.generation_able


def test_the_best_link_is_what_device_and_port_above_support(tmp_path: Path):
    path = tmp_path / BRIDGE / "0000:17:00.0"
    link(path, "8", "16", "16.0 GT/s PCIe", "32.0 GT/s PCIe")
    assert found(path) == (8, 16, 4, 5), "the port above says nothing"
    for lanes, speed, able in (
        (8, "16.0 GT/s", (8, 4)), (4, "8.0 GT/s", (16, 5)), (16, "64.0 GT/s", (16, 5)),
    ):  # fmt: skip
        make_link(path.parent, lanes=lanes, speed=speed)
        assert found(path) == (8, able[0], 4, able[1])
    bare = tmp_path / "not-an-address" / "0000:18:00.0"
    link(bare, "8", "16", "16.0 GT/s PCIe", "32.0 GT/s PCIe")
    make_link(bare.parent, lanes=8, speed="16.0 GT/s")
    assert found(bare) == (8, 16, 4, 5)


def test_values_that_no_link_can_have_are_none(tmp_path: Path):
    good = ["8", "16", "16.0 GT/s PCIe", "32.0 GT/s PCIe"]
    for place, wrong in ((0, "0"), (0, "33"), (1, "63"), (1, ""), (2, "Unknown"), (3, "7 GT/s")):
        path = tmp_path / f"{place}{wrong}"[:3].strip()
        link(path, *(wrong if k == place else text for k, text in enumerate(good)))
        assert found(path) is None, (place, wrong)
    for k, lanes in enumerate(("1", "32")):
        path = tmp_path / f"good{k}"
        link(path, lanes, lanes, "2.5 GT/s PCIe", "128.0 GT/s PCIe")
        assert found(path) == (int(lanes), int(lanes), 1, 7)


def test_errors_are_counted_by_kind_without_the_total(tmp_path: Path):
    path = tmp_path / "0000:17:00.0"
    write_sysfs_file(
        path / "aer_dev_fatal", "DLP 2\nCompletion Timeout 1\nodd x\n7\nTOTAL_ERR_FATAL 3"
    )
    assert pci.aer_counts(one(path), "fatal") == {"DLP": 2, "Completion Timeout": 1}
    assert pci.aer_counts(one(path), "correctable") is None


def test_every_rate_of_pci_express_has_its_generation():
    """PCI Express Base Specification: 2.5 and 5 GT/s, then twice as many from 8 GT/s on."""
    rates = [2.5, 5, 8, 16, 32, 64, 128]
    assert {float(text): k for text, k in pci.GENERATIONS.items()} == {
        rate: k for k, rate in enumerate(rates, 1)
    }
    assert pci.GENERATIONS["5"] == pci.GENERATIONS["5.0"] == 2
