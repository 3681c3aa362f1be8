"""Trees of sysfs with the NICs that the sandbox emulates."""

from __future__ import annotations

from pathlib import Path

from fixtures.sandbox import emulation, platforms

NIC = "mlx5_0"


def tree(platform: str, root: Path) -> Path:
    emulation.make_hardware(platforms.find(platform), root / "sys" / "class")
    return root


def port(root: Path) -> Path:
    return root / "sys" / "class" / "infiniband" / NIC / "ports" / "1"


def interface(root: Path) -> Path:
    (found,) = (port(root).parents[1] / "device" / "net").glob("*")
    return found
