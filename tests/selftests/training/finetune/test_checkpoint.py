"""`final/` of a fine-tuning: which weights are in it, and what a reload must give."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.selftests.training.one_rank import a_rank
from training.finetune import checkpoint
from training.finetune.settings import InputError, Settings

pytestmark = pytest.mark.cpu


def a_model() -> nn.Module:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    return model


def test_only_trained_weights_are_kept_and_whole():
    model = a_model()
    found = checkpoint.adapters_of(model)
    assert list(found) == ["weight"]
    assert torch.equal(found["weight"], model.weight)
    assert found["weight"].data_ptr() != model.weight.data_ptr(), "a copy"
    plain = torch.ones(2)
    sharded = SimpleNamespace(full_tensor=lambda: "whole")
    assert checkpoint._unsharded(sharded) == "whole"  # type: ignore[comparison-overlap]
    assert checkpoint._unsharded(plain) is plain


def test_weights_are_compared_bit_by_bit():
    model = a_model()
    adapters = checkpoint.adapters_of(model)
    assert checkpoint.compare_weights(adapters, model) == "reloads"
    lacking = {**adapters, "other": torch.ones(1)}
    assert checkpoint.compare_weights(lacking, model) == "1 of 2 weights are missing"
    with torch.no_grad():
        model.weight[0, 0] += 1e-6
    assert checkpoint.compare_weights(adapters, model) == "1 of 1 weights differ"


@pytest.mark.parametrize(
    ("expected", "found", "reloads"),
    [(2.0, 2.019, True), (2.0, 2.021, False), (2.0, 1.979, False), (0.01, 0.0105, True),
     (0.01, 0.0115, False), (2.0, float("nan"), False)],
)  # fmt: skip
def test_a_reloaded_model_has_the_loss_of_before(expected, found, reloads, monkeypatch):
    model = a_model()
    monkeypatch.setattr(checkpoint, "reload", lambda *given: model)
    adapters = checkpoint.adapters_of(model)
    state, again = checkpoint.check(
        Path("f"), adapters, expected, lambda model: found, Settings(), a_rank()
    )
    assert again is model
    assert (state == "reloads") is reloads
    assert reloads or state.startswith("reloads, but its loss is ")


def test_weights_that_differ_are_told_whatever_the_loss(monkeypatch):
    model = a_model()
    adapters = {"weight": torch.zeros(2, 2)}
    monkeypatch.setattr(checkpoint, "reload", lambda *given: model)

    def loss_of(model: Any) -> float:
        raise AssertionError("it is not asked for")

    state, again = checkpoint.check(Path("f"), adapters, 1.0, loss_of, Settings(), a_rank())
    assert (state, again) == ("1 of 1 weights differ", model)


def test_what_cannot_be_read_is_told(monkeypatch):
    def refuse(*given: Any) -> Any:
        raise InputError("f cannot be loaded")

    monkeypatch.setattr(checkpoint, "reload", refuse)
    state, again = checkpoint.check(Path("f"), {}, 1.0, None, Settings(), a_rank())
    assert (state, again) == ("does not reload: f cannot be loaded", None)


def test_a_saved_adapter_is_loaded_again(tmp_path, tokenizer):
    from training.finetune import model

    wanted = Settings(name="small").with_values("model", preset="tiny")
    base = model.build(wanted.model, torch.device("cpu"), seed=wanted.training.seed)
    adapted = model.add_adapters(base, wanted.lora, seed=1)
    adapters = checkpoint.adapters_of(adapted)
    (tmp_path / ".final").mkdir()
    (tmp_path / ".final" / "left by a killed run").write_text("")
    final = checkpoint.save(adapters, adapted, tokenizer, wanted, tmp_path)
    assert final == tmp_path / "final"
    assert not (final / "left by a killed run").exists()
    again = checkpoint.reload(final, wanted, torch.device("cpu"))
    assert checkpoint.compare_weights(adapters, again) == "reloads"
    (final / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be loaded"):
        checkpoint.reload(final, wanted, torch.device("cpu"))
