"""A node with a NIC below a bridge, as files of sysfs, and its first rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fixtures.sandbox.platforms import make_aer, make_link, write_sysfs_file
from fixtures.workloads.devices import nics, pci

BRIDGE, NIC = "0000:15:01.0", "0000:17:00.0"


def nic_below_bridge(tmp_path: Path) -> Path:
    """Make a node with one NIC below a bridge; return the root of its files."""
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


def ranks(**spec: Any) -> Any:
    return SimpleNamespace(
        leads_node=True, spec={"nic_order": {"names": ["mlx5_0"]}, **spec}, node="n",
        nodes=["n"], begin_notes={},
    )  # fmt: skip
