"""The product that is measured: its operands, its shape and its check."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from tests.selftests.rank_job import Job

pytestmark = pytest.mark.cpu


def alone(tmp_path: Path) -> Ranks:
    """The only rank of a job on the CPU."""
    job = Job(tmp_path)
    return Ranks(job.spec, Identity(rank=0, local_rank=0, world_size=1, node="worker0"))


def test_a_product_of_any_shape_is_right_and_its_operands_take_turns(tmp_path: Path) -> None:
    from fixtures.workloads.compute.matmul import MatMul

    product = MatMul(alone(tmp_path), "fp32", (96, 160, 224), sets=4)
    assert product.flops == 2 * 96 * 160 * 224
    seen = []
    for _ in range(8):
        product.launch()
        seen.append(product.a.data_ptr())
        checks, _ = product.check()
        assert checks["relative_error"] < 2e-5
        assert checks["operand_std"] == pytest.approx(1, abs=0.05)
    assert len(set(seen)) == 4
    assert seen[:4] == seen[4:]


def test_one_seed_gives_all_ranks_the_same_operands_and_none_gives_each_its_own(
    tmp_path: Path,
) -> None:
    import torch

    from fixtures.workloads.compute.matmul import MatMul

    job = Job(tmp_path)
    two = [
        Ranks(job.spec, Identity(rank=k, local_rank=k, world_size=2, node="worker0"))
        for k in range(2)
    ]
    own = [MatMul(ranks, "bf16", (32, 32, 32)).a for ranks in two]
    same = [MatMul(ranks, "bf16", (32, 32, 32), seed=1).a for ranks in two]
    assert not torch.equal(*own)
    assert torch.equal(*same)
