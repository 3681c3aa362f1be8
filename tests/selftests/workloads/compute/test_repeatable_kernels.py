"""Kernels that must give identical bits, and the replayed training."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
