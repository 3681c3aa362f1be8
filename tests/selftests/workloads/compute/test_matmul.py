"""The product that is measured: its operands, its shape and its check."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.compute import matmul
from fixtures.workloads.compute.matmul import MatMul
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


# --- what is checked, and in which dtype


def test_the_check_reads_a_block_and_the_first_thousand_rows(tmp_path):
    product = MatMul(alone(tmp_path), "fp32", (1500, 300, 8))
    product.launch()
    assert product.c is not None
    product.c[1024:] = 1e6
    checks, facts = product.check()
    assert checks["operand_std"] == pytest.approx(1, abs=0.1)
    assert checks["relative_error"] < 1e-5
    product.c[256:, :] *= 2
    product.c[:, :44] *= 2
    assert product.check()[0]["relative_error"] < 1e-5, "256 x 256 elements are compared"
    product.c[255, 299] += 100
    assert product.check()[0]["relative_error"] > 0.01
    product.a[1024:] = 1e6
    assert product.check()[1]["a"]["std"] == pytest.approx(1, abs=0.1)
    assert facts["a"]["mean"] == pytest.approx(0, abs=0.1)
    assert "scales" not in facts


def test_fp8_has_scales_and_a_second_operand_by_columns(tmp_path, monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **how: calls.append(how))
    ranks = alone(tmp_path)
    product = MatMul(ranks, "fp8", (32, 48, 64))
    assert (product.a.dtype, product.c.dtype) == (torch.float8_e4m3fn, torch.bfloat16)
    assert (tuple(product.b.shape), product.b.stride()) == ((64, 48), (1, 64))
    product.launch()
    assert calls[0]["out"] is product.c
    assert product.check()[1]["scales"] == 1.0
    plain = MatMul(ranks, "bf16", (32, 48, 64))
    plain.launch()
    assert (plain.b.stride(), plain.c.dtype, len(calls)) == ((48, 1), torch.bfloat16, 1)


@pytest.mark.parametrize(("name", "precision"), [("tf32", "high"), ("fp32", "highest")])
def test_only_tf32_lowers_the_precision(name, precision, tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    MatMul(alone(tmp_path), name, (8, 8, 8))
    matmul.restore_default_precision()
    assert asked == [precision, "highest"]


@pytest.mark.parametrize(
    ("capability", "name", "reason"),
    [
        (None, "bf16", None), (None, "fp32", None), (None, "fp16", "not on a CPU"),
        (8.0, "bf16", None), (7.5, "bf16", "needs compute capability 8.0, has 7.5"),
        (8.9, "fp8", None), (8.6, "fp8", "needs compute capability 8.9, has 8.6"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_multiply_says_why(capability, name, reason):
    ranks: Any = SimpleNamespace(
        on_gpu=capability is not None, device_facts=lambda: {"compute_capability": capability}
    )
    assert matmul.unsupported_reason(ranks, name) == reason
