"""FLOPs per token, utilisation, and the memory that a training needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.settings import PRESETS

pytestmark = pytest.mark.cpu


def test_flops_are_those_that_others_publish():
    from training.metrics import flops_per_token

    shape = PRESETS["8b"]
    # torchtitan and nanochat 57.9 GFLOP a token at 8192, Megatron-LM 51.5
    assert flops_per_token(shape, 8192, causal_half=False) / 1e9 == pytest.approx(57.9, abs=0.1)
    assert flops_per_token(shape, 8192, causal_half=True) / 1e9 == pytest.approx(51.5, abs=0.1)
    assert shape.non_embedding_parameters / 1e9 == pytest.approx(7.50, abs=0.01)


def test_memory_is_foreseen_as_it_was_measured():
    """On 4 H200: 16 layers, 2 x 8192 tokens 75 GiB, 8 layers, 8192 tokens on one GPU 54.

    Both with all logits at once (10 bytes each), of which here a piece of 8 GiB is held.
    """
    from training.metrics import needed_gib

    logits = 16384 * 128256 * 10 / 2**30
    four = needed_gib(PRESETS["8b-short"], tokens=16384, team_size=4, fsdp=True)
    one = needed_gib(PRESETS["8b-mini"], tokens=8192, team_size=1, fsdp=True)
    assert four == pytest.approx(75 - logits + 8, rel=0.1)
    assert one == pytest.approx(54 - logits / 2 + 8, rel=0.25)


def test_the_datasheet_knows_gpus_and_no_others():
    from training.metrics import peak_tflops

    assert peak_tflops("NVIDIA H200") == pytest.approx(989, abs=1)
    assert peak_tflops("NVIDIA H100 80GB HBM3") == peak_tflops("NVIDIA H200")
    assert peak_tflops("cpu") is None
    assert peak_tflops("NVIDIA GeForce 256") is None


def test_a_plain_product_of_8192_is_timed_for_two_seconds(monkeypatch):
    import torch

    from fixtures.workloads.timing import timing
    from training import metrics

    asked: dict[str, float] = {}
    shapes: list[Any] = []

    def measure(ranks: Any, launch: Any, **more: Any) -> Any:
        launch()
        asked.update(more)
        return SimpleNamespace(median=2 * 8192**3 / 700e12)

    monkeypatch.setattr(timing, "warm", lambda ranks, launch, seconds: 0.001)
    monkeypatch.setattr(timing, "measure_together", measure)
    monkeypatch.setattr(torch, "randn", lambda *shape, **how: shapes.append(shape))
    monkeypatch.setattr(torch, "empty_like", lambda other: None)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: None)
    ranks: Any = SimpleNamespace(device=torch.device("cpu"))
    assert metrics.gemm_tflops(ranks) == pytest.approx(700)
    assert shapes == [(8192, 8192)] * 2
    assert asked["window_s"] == 2.0


def test_states_are_four_numbers_of_32_bits_for_each_parameter():
    from training.metrics import needed_gib, states_gib

    shape = PRESETS["1b"]
    assert states_gib(shape, 1) == pytest.approx(16 * shape.parameters / 2**30)
    assert states_gib(shape, 4) == pytest.approx(states_gib(shape, 1) / 4)
    kept, again = (
        needed_gib(shape, tokens=8192, team_size=1, fsdp=False, recompute=r) for r in (False, True)
    )
    assert again < kept - 5, "only one block's activations are kept"
