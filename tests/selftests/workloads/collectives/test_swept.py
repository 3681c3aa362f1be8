"""Collectives without a module of their own: one workload for each row of the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.collectives import collective_sweep, swept
from fixtures.workloads.nccl.collective_ops import OPERATIONS

pytestmark = pytest.mark.cpu


def test_each_row_with_a_workload_is_found_by_its_name():
    assert swept.allgather.operation == "all_gather"
    assert set(swept.SWEPT) == {op.workload for op in OPERATIONS.values()} - {""}
    assert swept.SWEPT["sendrecv"].operation == "send_recv"
    with pytest.raises(AttributeError, match="no attribute 'allreduce'"):
        _ = swept.allreduce


def test_a_sweep_is_short_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        collective_sweep, "run", lambda ranks, metrics, name, **sweep: (metrics, name, sweep)
    )
    gpu: Any = SimpleNamespace(on_gpu=True)
    cpu: Any = SimpleNamespace(on_gpu=False)
    most = {"demonstration_max": 16 << 20}
    assert swept.allgather.run(gpu, ["busbw"]) == (["busbw"], "all_gather", most)
    assert swept.allgather.run(cpu, [])[2] == {**most, "min_size": 4096, "step": 16}
    assert swept.allgather.run(cpu, [], step=2)[2]["step"] == 2
