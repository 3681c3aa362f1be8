"""Whether ranks run on cores of their own, near their GPUs: no Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.records.model import Measurement
from fixtures.workloads.devices import core_binding
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import binding
from tests.selftests import rank_job
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
    this_rank = rank_job.rank_of("/", local_rank, per_node=ranks, device="cuda")
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


def rank_of(folder: Path, k: int, ranks: int = 2, **more: object) -> Ranks:
    found = rank_job.rank_of(folder, k, per_node=ranks, **more)
    given = frozenset({k, k + 1})
    found.core_binding = core_binding.CoreBinding(given=given, of_job=given, bound=given)
    return found


def test_the_first_rank_of_a_node_counts_the_ranks_that_share_cores(tmp_path: Path):
    other = binding.run(rank_of(tmp_path, 1), ["cpus", "numa"])
    assert other.measurements == []
    assert other.facts == {"cpus": [1, 2], "of_job": "1-2", "bound": "1-2"}
    first = binding.run(rank_of(tmp_path, 0), ["cpus", "numa"])
    assert first.facts["ranks"] == [[0, 1], [1, 2]]
    (row,) = first.measurements
    assert (row.metric, row.value) == ("cpus", 2)
    assert row.notes[0] == "rank 0 on cores 0-1 shares them with ranks 1"
    assert binding.run(rank_of(tmp_path, 0), []).measurements == []


def test_a_rank_without_a_binding_has_the_cores_that_it_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(binding.os, "sched_getaffinity", lambda _: {5, 6, 9})
    rank = rank_of(tmp_path, 0)
    rank.core_binding = None
    assert binding.run(rank, []).facts["bound"] == "5-6,9"


def test_a_gpu_of_an_unknown_node_has_no_row_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(binding.core_binding, "near_cores", lambda *_: (None, "why"))
    found = binding.run(rank_of(tmp_path, 0, device="cuda"), ["numa"])
    assert (found.measurements, found.facts["near"]) == ([], "why")


def test_cores_of_another_attempt_do_not_count_and_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(binding.time, "monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += 10

    monkeypatch.setattr(binding.time, "sleep", passes)
    binding.run(rank_of(tmp_path, 1, attempt=2), ["cpus"])
    with pytest.raises(RuntimeError, match="1 of 2 ranks of n0 reported"):
        binding.run(rank_of(tmp_path, 0), ["cpus"])
    assert now[0] == 40, "it waits for 30 s, to the end of the last pause"
    now[0] = 0
    late = rank_of(tmp_path, 1)

    def comes(seconds: float) -> None:
        binding.run(late, ["cpus"])

    monkeypatch.setattr(binding.time, "sleep", comes)
    assert binding.run(rank_of(tmp_path, 0), ["cpus"]).facts["ranks"] == [[0, 1], [1, 2]]
