"""FLOPs per token, utilisation, and the memory that a training needs."""

from __future__ import annotations

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
