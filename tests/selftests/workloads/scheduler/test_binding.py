"""Whether ranks run on cores of their own, near their GPUs: no Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.records.model import Measurement
from fixtures.workloads.devices import core_binding
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import binding
from tests.selftests.workloads.numa_hosts import Kernel, host_of

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("cores", "wrong"),
    [([[0, 1], [2, 3]], 0), ([[0, 1], [1, 2], [3]], 2), ([[0, 1], [0, 1]], 2), ([[0]], 0)],
)
def test_ranks_that_share_a_core_are_counted(cores, wrong):
    assert len(binding.ranks_sharing_cores(cores)) == wrong


def binding_row(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kernel: Kernel, local_rank: int, ranks: int
) -> tuple[core_binding.CoreBinding, Measurement]:
    """What a rank binds itself to, and the measurement of scheduler.numa for it."""
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda k: f"00000000:0{k}:00.0")
    monkeypatch.setattr(core_binding.os, "sched_setaffinity", kernel.set)
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", kernel.get)
    bound = core_binding.bind_near_gpu(local_rank, ranks, folder)
    spec = {"nodes": ["n0"], "ranks_per_node": ranks, "directory": "/", "device": "cuda"}
    me = Identity(rank=local_rank, local_rank=local_rank, world_size=ranks, node="n0")
    this_rank = Ranks(spec, me)
    this_rank.core_binding = bound
    (measurement,) = binding.run(this_rank, ["numa"], system=folder).measurements
    return bound, measurement


def test_a_job_without_a_core_near_the_gpu_is_told_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [1, 0])
    kernel = Kernel({0, 1, 2, 3}, {0, 1})
    bound, measured = binding_row(monkeypatch, host, kernel, 0, 2)
    assert bound.bound == {0, 1}
    assert measured.value == 1
    assert measured.notes == [
        "rank 0 is bound to cores 0-1, its GPU is near 4-7; of those the job has none"
    ]
    _, other = binding_row(monkeypatch, host, Kernel({0, 1, 2, 3}, {2, 3}), 1, 2)
    assert other.value == 0


def test_a_host_without_numa_gives_every_rank_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = tmp_path / "devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text("0-7\n")
    bound, measured = binding_row(monkeypatch, tmp_path, Kernel(set(range(8)), set(range(8))), 1, 2)
    assert bound.bound == {4, 5, 6, 7}
    assert measured.value == 0


def test_sets_of_cores_are_spelled():
    assert binding.format_ranges({8, 0, 1, 2, 3}) == "0-3,8"
    assert binding.format_ranges(set()) == "none"
