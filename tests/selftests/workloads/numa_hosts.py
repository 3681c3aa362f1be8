"""Hosts with NUMA nodes, as /sys shows them, and a kernel that binds processes to their cores."""

from __future__ import annotations

from pathlib import Path

from fixtures.workloads.devices import numa


def host_of(folder: Path, numa_nodes: dict[int, str], gpus: list[int], threads: int = 1) -> Path:
    """A /sys with these NUMA nodes (number -> cores), and GPU k on node gpus[k]."""
    cores: set[int] = set()
    for number, cpulist in numa_nodes.items():
        node = folder / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpulist}\n")
        cores |= numa.parse_cpulist(cpulist)
    (folder / "devices/system/cpu").mkdir(parents=True)
    (folder / "devices/system/cpu/online").write_text(f"0-{max(cores)}\n")
    half = len(cores) // threads
    for core in cores:
        topology = folder / f"devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        twins = ",".join(str(c) for c in sorted(cores) if c % half == core % half)
        (topology / "thread_siblings_list").write_text(f"{twins}\n")
    for k, number in enumerate(gpus):
        gpu = folder / f"bus/pci/devices/0000:0{k}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(f"{number}\n")
    return folder


class Kernel:
    """What the kernel lets a process bind itself to: at most the cpuset of its cgroup."""

    def __init__(self, cpuset: set[int], bound: set[int]) -> None:
        self.cpuset, self.bound = cpuset, bound

    def set(self, pid: int, cores: set[int]) -> None:
        if not cores & self.cpuset:
            raise OSError(22, "Invalid argument")
        self.bound = set(cores) & self.cpuset

    def get(self, pid: int) -> set[int]:
        return set(self.bound)
