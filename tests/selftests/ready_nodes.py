"""A node in emulation for the check before each job: NVML in this process, sysfs in a folder.

The real pynvml calls the emulated driver (fixtures/sandbox/emulated_nvml.c), which reads its state
at every call, and the kernel's files are a tree of the sandbox's platform.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from fixtures.ready import __main__ as ready
from fixtures.ready import certificate, children, judge, readings
from fixtures.sandbox import emulation, platforms
from fixtures.workloads.devices import nvml_fields
from tests.selftests import emulated_gpus

NODE = "worker0"
GPUS = 2
PLATFORM = platforms.find("")
LIMITS = {"ecc_uncorrected": 0, "ecc_corrected": 2e7, "ecc_sram": 0, "ecc_sram_corrected": 1e4,
          "remap_headroom": 0, "leaked_memory": 15}  # fmt: skip
STATES = {
    "ecc_mode": "enabled", "remap_pending": "none", "remap_failed": "none",
    "recovery_action": "none", "persistence": "enabled", "mig": "disabled",
    "compute_mode": "default", "power_limit": "default",
}  # fmt: skip
XID = "4,{n},{us},-;NVRM: Xid (PCI:0000:28:00): {number}, pid='<unknown>', name=<unknown>, text\n"


def healthy_lines() -> list[str]:
    lines = [f"count={GPUS}", *PLATFORM.driver_lines()]
    for k in range(GPUS):
        lines += [f"{k}.device=/dev/null", f"{k}.uuid={emulation.gpu_uuid(NODE, k)}",
                  f"{k}.pci={PLATFORM.gpu_address(k)}", f"{k}.serial={k}"]  # fmt: skip
    return lines


def certified(*, node: str = NODE, gpus: int = GPUS, mounts: Sequence[str] = ()) -> dict[str, Any]:
    """The certificate of the healthy node, as `reports ready` makes it."""
    certified_gpus = [
        {
            "uuid": emulation.gpu_uuid(node, k), "pci": PLATFORM.gpu_address(k),
            "vbios": "00.00.00.00.01", "states": STATES, "counts": [*certificate.COUNTS],
            "links": 18, "width": 16, "fabric": "ready",
            "life": {"nvlink_errors": {"total": 0}, "pcie_replays": {"total": 0}},
        }
        for k in range(gpus)
    ]  # fmt: skip
    port = {"fabric": "InfiniBand", "state": "ACTIVE", "physical_state": "LinkUp", "rate": 400.0,
            "verbs": "present"}  # fmt: skip
    nics = [
        {"name": nic.name, "guid": f"a088:c203:00e0:{k:04x}", "ports": {"1": port}, "lanes": 16}
        for k, nic in enumerate(PLATFORM.nics)
        if nic.name in PLATFORM.ordered_nics
    ]
    return {
        "schema": certificate.SCHEMA,
        "parts": [{"run": "/runs/accepted", "limits": LIMITS, "nodes": {node: {
            "since": time.time() - 86400, "gpus": certified_gpus, "nics": nics,
            "mounts": {p: {"type": "", "writable": True} for p in mounts},
        }}}],
    }  # fmt: skip


def of_node(data: dict[str, Any], node: str = NODE) -> dict[str, Any]:
    """What a certificate has of a node, for a test to change."""
    found: dict[str, Any] = data["parts"][0]["nodes"][node]
    return found


@dataclass
class Node:
    """An emulated node."""

    folder: Path
    root: Path
    touched: bool = True
    """Whether the tree of its hardware may have been changed: it takes longest to make."""

    @property
    def hardware(self) -> Path:
        """The tree, for a test to change."""
        self.touched = True
        return self.root / "sys/class"

    def break_driver(self, *lines: str) -> None:
        (self.folder / "nvml.state").write_text("\n".join([*healthy_lines(), *lines, ""]))

    def heal(self) -> None:
        self.break_driver()
        self.log()
        if self.touched:
            shutil.rmtree(self.hardware)
            platforms.make_tree(PLATFORM, self.hardware)
            self.touched = False
        (self.root / "proc/self/mounts").write_text("")

    def write(self, name: str, text: str) -> None:
        platforms.write_sysfs_file(self.hardware / name, text)

    def write_of_nic(self, nic: str, name: str, text: str) -> None:
        pci = next(n.pci for n in PLATFORM.nics if n.name == nic)
        self.write(f"{platforms.PCI_CLASS}/{pci}/{name}", text)

    def rename_nic(self, nic: str, name: str) -> None:
        """Give a NIC another name, as a kernel may at a boot."""
        for uverbs in (self.hardware / "infiniband_verbs", self.hardware / "infiniband_mad"):
            for ibdev in uverbs.glob("*/ibdev"):
                if ibdev.read_text().strip() == nic:
                    ibdev.write_text(f"{name}\n")
        (self.hardware / "infiniband" / nic).rename(self.hardware / "infiniband" / name)

    def log(self, *numbers: int, ago_s: float = 60) -> None:
        us = round(1e6 * (time.monotonic() - ago_s))
        text = "".join(XID.format(n=n, us=us, number=number) for n, number in enumerate(numbers))
        (self.root / "dev/kmsg").write_text(f"6,1,12,-;Linux version\n{text}")

    def told(self, data: Mapping[str, Any]) -> judge.Findings:
        """What is said of the node, by questions in this process."""
        node = certificate.node_of(json.loads(json.dumps(data)), (NODE,))
        told = children.Child("all", os.getpid(), -1, closed=True)
        readings.driver(told.messages.append)
        readings.host(told.messages.append, self.root, node.nics)
        for point in node.mounts:
            readings.mount(told.messages.append, point, self.root / "proc/self/mounts")
        told.messages = json.loads(json.dumps(told.messages))
        return judge.judge(node, [told], time.time())

    def looked_at(
        self, data: Mapping[str, Any], limit_s: float = 9
    ) -> tuple[float, judge.Findings]:
        """The same by processes of their own, and the seconds that it took."""
        began = time.monotonic()
        node = certificate.node_of(json.loads(json.dumps(data)), (NODE,))
        found = ready.look(node, self.root, until=began + limit_s)
        return time.monotonic() - began, found


@contextmanager
def emulated(folder: Path) -> Iterator[Node]:
    """A healthy node below `folder`, whose driver pynvml calls in this process."""
    driver, root = folder / "driver", folder / "root"
    driver.mkdir(parents=True)
    (root / "sys").mkdir(parents=True)
    for name in ("dev", "proc/self"):
        (root / name).mkdir(parents=True)
    emulated_gpus.compile_driver(driver)
    node = Node(driver, root)
    node.hardware.mkdir(parents=True)
    node.heal()
    nvml_fields.driver_release.cache_clear()
    before = pynvml.nvmlLib
    pynvml.nvmlLib = ctypes.CDLL(str(driver / emulation.LIBRARY))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield node
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        nvml_fields.driver_release.cache_clear()
