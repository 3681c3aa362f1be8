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


@pytest.mark.parametrize(("vocabulary", "device"), [(380_000, "cpu"), (600_000, "meta")])
def test_models_of_fifty_million_parameters_and_more_are_made_on_their_device(
    vocabulary, device, monkeypatch
):
    """Smaller ones on the CPU, where equal seeds give equal values whatever the GPU."""
    import torch

    from training.model import Decoder, Shape

    shape = Shape(
        layers=1, width=64, heads=4, kv_heads=2, hidden=64, vocabulary=vocabulary, sequence=8
    )
    with torch.device("meta"):
        model = Decoder(shape)
    asked: list[str] = []

    def generator(place: object) -> None:
        asked.append(str(place))
        raise NotImplementedError

    monkeypatch.setattr(torch, "Generator", generator)
    with pytest.raises(NotImplementedError):
        model.reset(1)
    assert asked == [device]


@pytest.mark.parametrize(
    ("recompute", "learning", "calls"),
    [(True, True, 2), (True, False, 0), (False, True, 0), (False, False, 0)],
)
def test_blocks_are_recomputed_only_where_there_are_gradients(
    recompute, learning, calls, monkeypatch
):
    import torch

    from training import model

    counted: list[int] = []
    monkeypatch.setattr(
        model, "checkpoint", lambda body, *given, **how: counted.append(1) or body(*given)
    )
    decoder = model.build("tiny", seed=1, device=torch.device("cpu"))
    for block in decoder.blocks:
        block.recompute = recompute
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with torch.set_grad_enabled(learning):
        decoder(tokens, tokens)
    assert len(counted) == calls, "two blocks"
