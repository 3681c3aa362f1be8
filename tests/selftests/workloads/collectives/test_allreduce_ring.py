"""The all-reduce by a forced ring: its group, its sizes, and what it leaves in the environment."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from fixtures.workloads.collectives import allreduce_ring, collective_sweep
from fixtures.workloads.runtime import process_group

pytestmark = pytest.mark.cpu


def test_the_ring_is_forced_for_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []

    def sweep(ranks: Any, metrics: list[str], name: str, *, peers: Any, **sizes: int) -> str:
        seen.append((os.environ["NCCL_ALGO"], name, peers.group, peers.members, peers.rank, sizes))
        if metrics == ["fail"]:
            raise RuntimeError("on purpose")
        return "result"

    virtual = False
    destroyed: list[Any] = []
    monkeypatch.setattr(process_group, "of", lambda _: None)
    monkeypatch.setattr(dist, "new_group", lambda members: f"group of {members}")
    monkeypatch.setattr(dist, "destroy_process_group", destroyed.append)
    monkeypatch.setattr(collective_sweep, "run", sweep)
    monkeypatch.setattr(collective_sweep, "is_virtual_network", lambda _: virtual)
    ranks: Any = SimpleNamespace(world_size=2, rank=1)
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    assert allreduce_ring.run(ranks, ["busbw"]) == "result"
    assert "NCCL_ALGO" not in os.environ
    assert seen.pop() == (
        "Ring", "all_reduce", "group of [0, 1]", (0, 1), 1,
        {"min_size": 1 << 30, "demonstration_max": 16 << 20},
    )  # fmt: skip
    assert destroyed == ["group of [0, 1]"]
    virtual = True
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    allreduce_ring.run(ranks, ["busbw"], demonstration_max=8)
    assert os.environ["NCCL_ALGO"] == "Tree"
    assert seen.pop()[-1] == {"min_size": 16 << 20, "demonstration_max": 8}
    with pytest.raises(RuntimeError, match="on purpose"):
        allreduce_ring.run(ranks, ["fail"])
    assert os.environ["NCCL_ALGO"] == "Tree"
    assert allreduce_ring.GPU_MIN == 1 << 30
