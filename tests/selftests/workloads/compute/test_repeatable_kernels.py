"""Kernels that must give identical bits, and the replayed training."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.compute import repeatable_kernels as kernels
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu


def test_the_replayed_training_takes_the_steps_of_adam():
    import torch

    from fixtures.workloads.compute import repeatable_kernels

    generator = torch.Generator().manual_seed(1)
    ours = [torch.randn(4, 3, generator=generator) for _ in range(2)]
    theirs = [weight.clone().requires_grad_() for weight in ours]
    rate, betas = repeatable_kernels.LEARNING_RATE, repeatable_kernels.BETAS
    optimizer = torch.optim.Adam(theirs, lr=rate, betas=betas)
    moments = [(torch.zeros(4, 3), torch.zeros(4, 3)) for _ in ours]
    for step in range(1, 9):
        for weight in theirs:
            weight.grad = torch.randn(4, 3, generator=generator)
        repeatable_kernels.adam(ours, [w.grad for w in theirs], moments, step)
        optimizer.step()
    for weight, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, expected.detach())


def test_the_part_imports_no_compiler():
    """torch's optimizers do, which took 8 s of a job on H200."""
    program = """
import sys, types, torch
from fixtures.workloads.compute import repeatable_kernels
ranks = types.SimpleNamespace(on_gpu=False, device=torch.device("cpu"))
repeatable_kernels._training(ranks).launch()
print("torch._dynamo" in sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=CHECKOUT,
    )  # fmt: skip
    assert run.stdout.strip() == "False"


CPU: Any = SimpleNamespace(on_gpu=False, device=torch.device("cpu"), rank=0)


@pytest.mark.parametrize(
    ("on_gpu", "size", "products", "edge"),
    [(True, None, 6, 8192), (True, 64, 2, 64), (False, None, 2, 256), (False, 64, 2, 64)],
)
def test_products_are_those_that_the_device_can_do(on_gpu, size, products, edge, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(
        kernels, "unsupported_reason", lambda ranks, dtype: "no" if dtype == "fp8" else None
    )
    monkeypatch.setattr(
        kernels, "_product", lambda ranks, dtype, shape: asked.append((dtype, shape)) or "product"
    )
    monkeypatch.setattr(kernels, "_attention", lambda ranks: "attention")
    monkeypatch.setattr(kernels, "_training", lambda ranks: "training")
    ranks: Any = SimpleNamespace(on_gpu=on_gpu)
    found = list(kernels.kernels(ranks, size))
    assert found == ["product"] * products + ["attention", "training"]
    assert asked[0] == ("bf16", (edge,) * 3)


@pytest.mark.parametrize(
    ("dtype", "most"),
    [("bf16", 0.005), ("fp16", 0.001), ("tf32", 0.001), ("fp32", 2e-5), ("fp8", 0.02)],
)
def test_a_product_may_be_off_by_the_rounding_of_its_dtype(dtype, most, monkeypatch):
    """As the rows gemm.* accept it."""
    made: list[Any] = []

    class FakeProduct:
        a, b = "a", "b"
        error = 0.0

        def __init__(self, ranks: Any, name: str, shape: Any, *, seed: int) -> None:
            self.c = torch.zeros(2)
            self.launched = 0
            made.append((self, seed))

        def launch(self) -> None:
            assert self.c.isnan().all(), "what is not written must not be right by chance"
            self.c.zero_()

        def check(self) -> Any:
            return {"relative_error": self.error}, {}

    monkeypatch.setattr(kernels, "MatMul", FakeProduct)
    kernel = kernels._product(CPU, dtype, (1, 2, 3))
    ((product, seed),) = made
    # Not one of those that other workloads give their ranks.
    assert seed == 20_000
    assert kernel.launch() is product.c
    assert (kernel.name, kernel.operands(), kernel.results) == (
        f"{dtype} 1 x 2 x 3", ("a", "b"), None,
    )  # fmt: skip
    product.error = most
    assert kernel.error() is None
    product.error = most * 1.1
    assert f"at most {most:g}" in str(kernel.error())


def test_attention_is_compared_with_float64_in_its_last_rows():
    kernel = kernels._attention(CPU)
    assert kernel.name == "attention"
    first = kernel.launch()
    assert (tuple(first.shape), len(kernel.operands())) == ((1, 2, 128, 32), 3)
    assert torch.equal(first, kernel.launch())
    assert kernel.error() is None
    result = kernel.launch()
    result[0, -1, :64] = 9.0
    assert kernel.error() is None, "the last 64 rows are compared"
    result[0, -1, 64:] *= 1.01
    assert kernel.error() is None
    result[0, -1, 64:] *= 1.02
    assert "at most 0.02" in str(kernel.error())


def test_the_training_is_replayed_three_times_for_eight_steps():
    kernel = kernels._training(CPU)
    assert (kernel.name, kernel.results) == ("training of 8 steps", 3)
    weights = kernel.launch()
    assert tuple(weights.shape) == (4, 32, 32)
    assert torch.equal(weights, kernel.launch())
    data, *first = kernel.operands()
    assert tuple(data.shape) == (64, 32)
    moved = (weights - torch.stack(list(first))).abs().max().item()
    assert 0 < moved <= 8 * 1.1e-3, "a step moves a weight by the learning rate at most"
