"""One rank's view of its job: its device, and what it exchanges with the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.runtime import ranks as module
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from tests.selftests import rank_job
from tests.selftests.rank_job import Job
from tests.selftests.threads import as_ranks

pytestmark = pytest.mark.cpu


def rank_of(folder: Path, k: int = 0, size: int = 1, *, store: Any = None, **more: Any) -> Ranks:
    spec = {"job": "job", "master_address": "first", "master_port": 7, **more}
    return rank_job.rank_of(
        folder, k, ["n0", "n1"], per_node=2, world_size=size, store=store, **spec
    )


def test_a_gpu_that_torch_has_used_is_described_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A GPU's ceilings are computed from what torch alone says (sm_count).
    from fixtures.workloads.devices import devices

    spec = {**Job(tmp_path).spec, "device": "cuda"}
    ranks = Ranks(spec, Identity(rank=0, local_rank=0, world_size=1, node="localhost"))
    monkeypatch.setattr(devices, "gpu_facts", lambda device: {"sm_count": 132, "at": device})
    monkeypatch.setattr(devices, "nvml_facts_of_rank", lambda local_rank: {"index": local_rank})
    assert ranks.identity_facts() == {"index": 0}
    ranks.__dict__["device"] = "cuda:0"
    assert ranks.identity_facts() == {"sm_count": 132, "at": "cuda:0"}


def test_a_rank_knows_its_place_and_what_its_job_is(tmp_path: Path) -> None:
    plain = rank_of(tmp_path)
    assert (plain.on_gpu, plain.demonstration, plain.parts) == (False, False, 1)
    assert (plain.leads_node, rank_of(tmp_path, 1).leads_node) == (True, False)
    assert plain.folder == tmp_path
    other = rank_of(tmp_path, device="cuda", demonstration=True, parts=2)
    assert (other.on_gpu, other.demonstration, other.parts) == (True, True, 2)
    assert other._store_timeout == timedelta(seconds=120)
    assert plain._store_timeout == timedelta(seconds=40)


def test_a_rank_on_a_cpu_has_one_thread_and_one_on_gpus_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    threads: list[int] = []
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert rank_of(tmp_path).device == torch.device("cpu")
    assert threads == [1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert rank_of(tmp_path, 0, device="cuda").device == torch.device("cuda", 0)
    assert chosen == [0]
    with pytest.raises(RuntimeError, match="n0: rank 1 needs cuda:1, 1 visible"):
        _ = rank_of(tmp_path, 1, device="cuda").device


def test_facts_of_a_device_without_gpus_are_the_cpu_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixtures.workloads.devices import devices

    monkeypatch.setattr(devices, "cpu_facts", lambda k, node: {"at": f"{node}/{k}"})
    rank = rank_of(tmp_path, 1)
    assert rank.device_facts() == rank.identity_facts() == {"at": "n0/1"}


def test_the_store_is_on_the_first_node_as_slurm_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = rank_of(tmp_path, addresses={"n1": "10.0.0.1"})
    for nodes, host in (("n1,n0", "10.0.0.1"), ("n0", "n0"), ("n9", "first"), ("", "first")):
        monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
        assert rank.store_host == host
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    assert rank.store_host == "first"


def test_rank_0_keeps_the_store_under_the_name_of_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    made: list[tuple[Any, ...]] = []

    def tcp_store(*arguments: Any, timeout: timedelta) -> dist.HashStore:
        made.append(arguments)
        return dist.HashStore()

    monkeypatch.setattr(dist, "TCPStore", tcp_store)
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    for k in range(2):
        rank_of(tmp_path, k, 4).store.set("a", "b")
    assert made == [("first", 7, 4, True), ("first", 7, 4, False)]
    shared = dist.HashStore()
    rank_of(tmp_path, store=shared).store.set("a", "b")
    assert shared.get("job/1/a") == b"b"


def test_a_single_rank_meets_nobody(tmp_path: Path) -> None:
    rank = rank_of(tmp_path)
    assert rank.agree(3, lambda items: [*items, "chosen"]) == [3, "chosen"]
    assert (rank.gather(3), rank.gather_node(3)) == ([3], [3])
    assert rank.barrier() is None
    assert not rank.has_met
    assert rank.close() is None


def test_ranks_agree_on_all_items_and_nodes_on_their_own(tmp_path: Path) -> None:
    from torch.distributed import HashStore

    shared = HashStore()
    ranks = [rank_of(tmp_path, k, 4, store=shared) for k in range(4)]

    def one(k: int) -> tuple[Any, ...]:
        rank = ranks[k]
        # A cached property has one lock for all ranks of this process, and this one meets them.
        rank.__dict__["_node_meetings"] = Ranks._node_meetings.func(rank)
        found = rank.agree(k, max), rank.gather(k * 10), rank.gather_node(k)
        rank.barrier()
        assert rank.has_met
        rank.close()
        return found

    found = as_ranks(4, one)
    assert [(most, items) for most, items, _ in found] == [(3, [0, 10, 20, 30])] * 4
    assert [beside for _, _, beside in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    store = ranks[0].store
    assert [store.check([f"left/{k}"]) for k in range(4)] == [False, True, True, True]


def test_a_process_group_is_left_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    left: list[int] = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append(1))
    rank = rank_of(tmp_path)
    rank.process_group = SimpleNamespace()  # type: ignore[assignment]
    assert rank.has_met
    rank.close()
    assert (left, rank.process_group) == ([1], None)
    assert module._nothing([1, 2]) is None
