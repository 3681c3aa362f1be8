"""NUMA nodes of a made-up /sys, and memory bound to a node through made-up system calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.devices import numa
from tests.selftests.workloads.numa_hosts import host_of

pytestmark = pytest.mark.cpu


def test_nodes_of_a_host_are_sorted_and_a_kernel_without_numa_has_one(tmp_path: Path):
    assert numa.nodes(tmp_path) == [0]
    for number in (10, 2):
        (tmp_path / f"devices/system/node/node{number}").mkdir(parents=True)
    assert numa.nodes(tmp_path) == [2, 10]


def test_an_address_has_the_domain_of_sysfs():
    assert numa.address_of("00000000:1B:00.0") == "0000:1b:00.0"
    assert numa.address_of("0001:1b:00.0") == "0001:1b:00.0"


def test_the_node_of_a_gpu_is_what_the_system_says(tmp_path: Path):
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [1, 0, -1])
    found = [numa.node_of(f"00000000:0{k}:00.0", host) for k in range(4)]
    assert found == [1, 0, None, None]
    (host / "bus/pci/devices/0000:00:00.0/numa_node").write_text("none")
    assert numa.node_of("00000000:00:00.0", host) is None
    alone = host_of(tmp_path / "alone", {2: "0-3"}, [-1])
    assert numa.node_of("00000000:00:00.0", alone) == 2


def test_cores_of_a_node_are_all_cores_without_numa(tmp_path: Path):
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [])
    assert (numa.cores(0, host), numa.cores(1, host)) == ({0, 1, 2, 3}, {4, 5, 6, 7})
    (host / "devices/system/node/node0/cpulist").write_text("0")
    assert numa.cores(0, host) == {0}
    bare = tmp_path / "bare"
    (bare / "devices/system/cpu").mkdir(parents=True)
    (bare / "devices/system/cpu/online").write_text("0-1")
    assert numa.cores(0, bare) == {0, 1}
    with pytest.raises(FileNotFoundError):
        numa.cores(1, bare)


def test_a_list_of_cores_is_read():
    assert numa.parse_cpulist("0-3,8\n") == {0, 1, 2, 3, 8}
    assert numa.parse_cpulist("\n") == set()


class Calls:
    """System calls that succeed, but for those with an error; what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, machine: str = "x86_64") -> None:
        self.errors: dict[int, int] = {}
        self.mode, self.mask = 0, 0
        self.policies: list[tuple[int, int, int]] = []
        self.pages: list[int] = []
        self.asked: list[int] = []
        monkeypatch.setattr(numa, "_call", self)
        monkeypatch.setattr(numa.platform, "machine", lambda: machine)

    def __call__(self, number: int, *arguments: Any) -> int:
        self.asked.append(number)
        if error := self.errors.get(number):
            return error
        if number in (238, 237):
            mode, mask, size = arguments
            bits = 0 if mask is None else sum(word << 64 * k for k, word in enumerate(mask))
            self.policies.append((mode.value, bits, size.value))
        elif number in (239, 236):
            arguments[0]._obj.value = self.mode
            arguments[1][0] = self.mask
            arguments[1][1] = 1
        else:
            _, count, _, _, status, _ = arguments
            self.asked[-1] = count.value
            for k in range(count.value):
                status[k] = self.pages[k % len(self.pages)]
        return 0


def affinity(monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> list[set[int]]:
    bound: list[set[int]] = []
    monkeypatch.setattr(numa.os, "sched_getaffinity", lambda _: set(cores))
    monkeypatch.setattr(numa.os, "sched_setaffinity", lambda _, c: bound.append(set(c)))
    return bound


def test_cores_and_memory_are_bound_to_a_node_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [])
    bound = affinity(monkeypatch, {3, 4, 5})
    calls = Calls(monkeypatch)
    calls.mode, calls.mask = 1, 3
    with numa.bound_to(None, host) as refused:
        assert (refused, bound, calls.asked) == ([], [], [])
    with numa.bound_to(1, host) as refused:
        assert refused == []
        assert bound == [{4, 5}]
        assert calls.policies == [(numa.MPOL_BIND, 0b10, numa.MASK_BITS + 1)]
    assert bound[1:] == [{3, 4, 5}]
    assert calls.policies[1:] == [(1, 3 + (1 << 64), numa.MASK_BITS + 1)], "as it was before"
    assert (numa.MPOL_BIND, numa.MASK_BITS) == (2, 1024), "linux/mempolicy.h and its default mask"


def test_what_the_kernel_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [])
    bound = affinity(monkeypatch, {0, 1})
    calls = Calls(monkeypatch)
    with numa.bound_to(1, host) as refused:
        assert bound == []
        assert refused == ["no core of NUMA node 1 is this job's"]
    calls.errors = {238: errno.EPERM}
    with numa.bound_to(0, host) as refused:
        assert refused == [f"set_mempolicy: {os.strerror(errno.EPERM)}"]
    calls.errors = {239: errno.ENOSYS}
    calls.policies.clear()
    with numa.bound_to(0, host) as refused:
        assert refused == ["set_mempolicy: not on this kernel"]
    assert calls.policies == []

    def offline(_: int, cores: set[int]) -> None:
        if cores != {0, 1}:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(numa.os, "sched_setaffinity", offline)
    calls.errors = {}
    (host / "devices/system/node/node0/cpulist").write_text("0")
    with numa.bound_to(0, host) as refused:
        assert refused == ["sched_setaffinity: Invalid argument"]


def test_a_policy_without_nodes_has_no_mask(monkeypatch: pytest.MonkeyPatch):
    calls = Calls(monkeypatch, "aarch64")
    assert numa._set_policy(0, 0) == ""
    assert numa._set_policy(2, 1 << 70) == ""
    assert calls.policies == [(0, 0, 0), (2, 1 << 70, 1025)]
    assert calls.asked == [237, 237]
    Calls(monkeypatch, "riscv64")
    assert numa._policy() is None
    assert numa.pages_by_node(0, 4096) is None


def test_pages_of_a_range_are_counted_by_node(monkeypatch: pytest.MonkeyPatch):
    page = numa.mmap.PAGESIZE
    calls = Calls(monkeypatch)
    calls.pages = [0, 1, 1, -2]
    assert numa.pages_by_node(0, 4 * page) == {0: 1, 1: 2, -2: 1}
    assert numa.pages_by_node(0, numa.MAX_PAGES * page) == {0: 1024, 1: 2048, -2: 1024}
    assert calls.asked == [4, numa.MAX_PAGES]
    assert numa.MAX_PAGES == 4096
    # One page more, and every second one is queried.
    assert numa.pages_by_node(0, (numa.MAX_PAGES + 1) * page) is not None
    assert calls.asked[-1] == numa.MAX_PAGES // 2 + 1
    calls.errors = {279: errno.ENOSYS}
    assert numa.pages_by_node(0, page) is None


def test_share_of_pages_elsewhere_is_of_all_pages_and_none_where_unknown():
    assert numa.share_elsewhere({0: 3, 1: 1}, 0, 2) == 0.25
    assert numa.share_elsewhere({0: 3, 1: 1}, 2, 3) == 1
    assert numa.share_elsewhere(None, 0, 2) is None
    assert numa.share_elsewhere({0: 3}, None, 2) is None
    assert numa.share_elsewhere(None, None, 1) == 0


def test_a_system_call_gives_its_errno():
    get_pid, close = {"x86_64": (39, 3), "aarch64": (172, 57)}[numa.platform.machine()]
    assert numa._call(get_pid) == 0
    assert numa._call(close, numa.ctypes.c_int(-1)) == errno.EBADF
