"""The model of a fine-tuning: its parameters, its costs and its layers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.selftests.training.finetune.small_training import Alone, small
from training.finetune import settings
from training.finetune.settings import LoraSettings

pytestmark = pytest.mark.cpu


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_compiled_layer_serves_them_all(
    tokenizer, conversations, tmp_path, monkeypatch, checkpointing
):
    import torch
    from torch._dynamo.testing import CompileCounter

    from training.finetune import model, packing, shapes

    torch._dynamo.reset()
    monkeypatch.setitem(shapes.SHAPES["tiny"], "num_hidden_layers", 4)
    wanted = small(6)
    ranks: Any = Alone(tmp_path)
    adapted = model.add_adapters(
        model.build(wanted.model, ranks.device, seed=0), wanted.lora, seed=0
    )
    tuned = model.prepare_for_training(adapted, wanted, ranks)
    counter = CompileCounter()
    model.compile_layers(tuned, backend=counter)
    if checkpointing:
        model.recompute_layers(tuned)
    packed = packing.pack(tokenizer, conversations, 256)
    for rows in ([0, 1], [2, 3], [4, 5]):
        with model.deprecations_ignored():
            tuned(packing.batch_of(packed, rows, separate=False)).backward()
    assert len(tuned.layers) == 4
    # The first layer's input needs no gradient, that of the others does; and no graph is broken.
    assert counter.frame_count == 2
    torch._dynamo.reset()


def test_a_model_that_learns_starts_equal_on_every_device():
    """On H200 it started otherwise than on a CPU, and ended at other answers."""
    import torch

    from training.finetune import model

    torch.manual_seed(3)
    untouched = torch.get_rng_state()
    built = model.build(small(6).model, torch.device("meta"), seed=3)
    assert next(built.parameters()).device.type == "meta"
    assert not torch.equal(torch.get_rng_state(), untouched), "the CPU's numbers were not drawn"


@pytest.mark.parametrize(("targets", "trained"), [("attention", 40_370_176), ("all", 161_480_704)])
def test_lora_trains_so_many_parameters_of_the_7b_shape(targets, trained):
    """40.4 M with the four projections of attention; the published 161 M with all seven layers."""
    import torch

    from training.finetune import model

    with (meta := torch.device("meta")):  # no weight is allocated
        base = model.build(settings.ModelSettings(preset="qwen2-7b"), meta, seed=0)
        adapted = model.add_adapters(base, LoraSettings(targets=targets), seed=0)
    assert model.count_parameters(adapted)[0] == trained


def test_the_work_a_token_is_that_of_frozen_weights(cost):
    half = cost.flop_per_token(4096, 1.0)
    full = half + 6 * 28 * 3584 * 4096
    assert full == pytest.approx(33.5e9, rel=0.005)  # with the whole square of attention
    assert half - cost.flop_per_token(4096, 0.5) == pytest.approx(2 * 152064 * 3584)


def test_the_memory_of_a_pass_is_as_measured(cost):
    assert 55 < cost.memory_gib(8192, checkpointing=False) < 67
    assert 18 < cost.memory_gib(8192, checkpointing=True) < 31
