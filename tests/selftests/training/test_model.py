"""Training in this process: the model and its loss, the memory it takes, the timing of steps."""

from __future__ import annotations

import pytest

from training.settings import PRESETS

pytestmark = pytest.mark.cpu


# --- the model and its loss


def test_the_model_looks_back_only():
    import torch

    from training.model import build

    model = build("tiny", seed=1, device=torch.device("cpu"))
    tokens = torch.arange(16)[None] % 256
    changed = tokens.clone()
    changed[0, 10:] = 7
    hidden = []
    model.head.forward = lambda x, targets: hidden.append(x) or x.sum()
    model(tokens, tokens), model(changed, changed)
    assert torch.equal(hidden[0][:, :10], hidden[1][:, :10])
    assert not torch.equal(hidden[0][:, 10:], hidden[1][:, 10:])


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameters_of_a_preset_are_as_many_as_its_shape_says(name):
    import torch

    from training.model import Decoder

    with torch.device("meta"):
        model = Decoder(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) == PRESETS[name].parameters


def test_recomputation_and_bf16_change_the_loss_by_nothing_and_little():
    import torch

    from training import reference_run
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    plain = reference_run.losses(reference_run.settings_for("single", steps=3), team)
    again = reference_run.losses(
        reference_run.settings_for("single", steps=3, recompute="block"), team
    )
    half = reference_run.losses(reference_run.settings_for("single", steps=3, dtype="bf16"), team)
    assert again == plain
    assert 0 < reference_run.max_difference_percent(half, plain) < 1
