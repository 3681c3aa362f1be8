"""The cores that each rank binds itself to, on a made-up /sys and kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.workloads.devices import core_binding, numa
from tests.selftests.workloads.numa_hosts import Kernel, host_of

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("numa_node", "nodes", "near"),
    [
        ("1", {"0": "0-3", "1": "4-7"}, {4, 5, 6, 7}),
        ("-1", {"0": "0-7"}, set(range(8))),
        ("-1", {"0": "0-3", "1": "4-7"}, None),
        (None, {"0": "0-3", "1": "4-7"}, None),
    ],
)
def test_the_cores_near_a_gpu_are_those_of_its_numa_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numa_node, nodes, near
):
    for number, cores in nodes.items():
        folder = tmp_path / "devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    if numa_node is not None:
        gpu = tmp_path / "bus/pci/devices/0000:0a:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(f"{numa_node}\n")
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda rank: "00000000:0A:00.0")
    found, _ = core_binding.near_cores(0, tmp_path)
    assert found == near


DGX_A100 = {n: f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}" for n in range(8)}
DGX_A100_GPUS = [3, 3, 1, 1, 7, 7, 5, 5]
"""As `nvidia-smi topo -m` shows them: two sockets of four NUMA nodes, two threads per core."""


def bind(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kernel: Kernel, local_rank: int, ranks: int
) -> core_binding.CoreBinding:
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda k: f"00000000:0{k}:00.0")
    monkeypatch.setattr(core_binding.os, "sched_setaffinity", kernel.set)
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", kernel.get)
    return core_binding.bind_near_gpu(local_rank, ranks, folder)


def test_ranks_of_a_dgx_a100_run_near_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, DGX_A100, DGX_A100_GPUS, threads=2)
    taken: list[int] = []
    for k in range(8):
        # Slurm binds block:block: rank k to the k-th eighth, which is NUMA node k.
        kernel = Kernel(set(range(256)), numa.parse_cpulist(DGX_A100[k]))
        bound = bind(monkeypatch, host, kernel, k, 8)
        assert bound.bound <= numa.parse_cpulist(DGX_A100[DGX_A100_GPUS[k]])
        assert len(bound.bound) == 16
        assert bound.given == frozenset(numa.parse_cpulist(DGX_A100[k])), "what Slurm gave is kept"
        taken += bound.bound
    assert len(taken) == len(set(taken)) == 128, "no two ranks have a core in common"


def test_a_rank_keeps_its_cores_where_nobody_says_what_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [-1, -1])
    assert bind(monkeypatch, host, Kernel(set(range(8)), {0, 1}), 0, 2).bound == {0, 1}


def test_more_ranks_than_near_cores_keep_what_slurm_gave(tmp_path: Path) -> None:
    assert core_binding.shares([{0, 1}, {0, 1}, {0, 1}], tmp_path) == [set(), set(), set()]
    assert core_binding.shares([{0, 1, 2}, {0, 1, 2}, None], tmp_path) == [{0}, {1}, set()]


def test_cores_of_a_job_are_what_the_kernel_takes_and_the_binding_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel({0, 1, 2, 3}, {1})
    monkeypatch.setattr(core_binding.os, "sched_setaffinity", kernel.set)
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", kernel.get)
    assert core_binding.cores_of_job(frozenset({1}), tmp_path) == {1}, "no list of cores there"
    host = host_of(tmp_path, {0: "0-7"}, [])
    assert core_binding.cores_of_job(frozenset({1}), host) == {0, 1, 2, 3}
    assert kernel.bound == {1}


def test_near_cores_are_given_with_their_source_or_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [1, -1, 1])
    addresses = ["00000000:00:00.0", "00000000:01:00.0", ""]
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda k: addresses[k])
    assert core_binding.near_cores(0, host) == ({4, 5, 6, 7}, "NUMA node 1 of 2")
    for rank, gpu in ((1, "0000:01:00.0"), (2, "the GPU")):
        cores, why = core_binding.near_cores(rank, host)
        assert cores is None
        assert f"which NUMA node {gpu} is on" in why
    (host / "devices/system/node/node1/cpulist").unlink()
    cores, why = core_binding.near_cores(0, host)
    assert cores is None
    assert "No such file" in why


def test_hardware_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    host = host_of(tmp_path, {0: "0-7"}, [], threads=2)
    assert core_binding.siblings(1, host) == {1, 5}
    assert core_binding.siblings(9, host) == {9}
    assert core_binding.shares([set(range(8))] * 2, host) == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert core_binding.shares([{0, 1}, {2, 3}], host) == [{0, 1}, {2, 3}]
