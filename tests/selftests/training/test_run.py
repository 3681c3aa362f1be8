"""Timed training runs: settings that fit, figures, and what the record says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.settings import PRESETS, Settings

pytestmark = pytest.mark.cpu


def of_gpus(gib: int) -> Any:
    """As much of Ranks as says which GPUs they have."""
    return SimpleNamespace(
        on_gpu=True,
        gather=lambda own: [own],
        device_facts=lambda: {"memory_bytes": gib * 2**30},
        nodes=["worker0"],
    )


@pytest.mark.parametrize(
    ("gib", "gpus", "preset", "batch"),
    [
        (140, 4, "8b-short", 4), (140, 2, "8b-short", 4), (140, 4, "8b", 2), (140, 2, "8b", 1),
        (79, 8, "8b-short", 2), (79, 8, "8b", 1), (79, 4, "8b", None), (39, 8, "8b", None),
    ],
)  # fmt: skip
def test_utilisation_is_judged_with_the_largest_batch_that_fits(gib, gpus, preset, batch):
    from training import fsdp, run

    asked = Settings(strategy="fsdp", preset=preset, dtype="bf16", batch=2)
    found = run.largest_batch(of_gpus(gib), asked, gpus, fsdp.BATCH_SIZES)
    assert (found.batch if found else None) == batch


@pytest.mark.parametrize(
    ("gib", "preset", "passes"),
    [(140, "1b", 1), (79, "1b", 4), (94, "1b", 4), (44, "160m", 4), (39, "160m", 4),
     (22, "160m", 4)],
)  # fmt: skip
def test_a_step_of_ddp_has_as_many_tokens_on_every_model_of_gpu(gib, preset, passes):
    from training import ddp, run

    asked = Settings(strategy="ddp", preset=ddp.PRESET, dtype="bf16")
    settings = run.fit_to_memory(of_gpus(gib), asked, (), 4, ddp.BATCH_SIZES, ddp.TOKENS_PER_STEP)
    assert (settings.preset, settings.passes_per_step(4)) == (preset, passes)
    assert passes * settings.batch * settings.tokens == ddp.TOKENS_PER_STEP == 65536
    assert run.fits(of_gpus(gib), settings, 4)


def test_the_copies_that_ddp_holds_are_foreseen():
    """On 4 H200, one pass of 8 sequences: 103.7 GiB alone, 114.8 in DDP."""
    from training.metrics import needed_gib
    from training.run import DDP_GRADIENT_COPIES

    def needed(copies: int) -> float:
        return needed_gib(
            PRESETS["1b"], tokens=65536, team_size=4, fsdp=False, gradient_copies=copies
        )

    assert needed(DDP_GRADIENT_COPIES) - needed(0) == pytest.approx(114.83 - 103.66, abs=0.1)


@pytest.mark.parametrize(("gib", "preset"), [(140, "1b"), (79, "1b"), (39, "160m")])
def test_a_gpu_alone_trains_what_it_can_hold(gib, preset):
    from training import run, single

    asked = Settings(preset=single.PRESET, dtype="bf16")
    settings = run.fit_to_memory(
        of_gpus(gib), asked, (), 1, single.BATCH_SIZES, single.TOKENS_PER_STEP
    )
    assert (settings.preset, settings.batch) == (preset, 2)
    assert settings.passes_per_step(1) * settings.batch * settings.tokens == single.TOKENS_PER_STEP
    assert run.fits(of_gpus(gib), settings, 1)
    assert (
        run.fit_to_memory(
            of_gpus(gib), asked, ("dtype",), 1, single.BATCH_SIZES, single.TOKENS_PER_STEP
        )
        is asked
    )


def test_steps_that_others_needed_are_not_shown(monkeypatch):
    import torch

    from training import loop, reference_run, run
    from training.strategies import Team

    real = loop.time_steps
    monkeypatch.setattr(run, "time_steps", lambda *a, **k: (real(*a, **k)[0], 3))
    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    ranks: Any = SimpleNamespace(
        device=device, gather=lambda own: [own], barrier=lambda: None, nodes=["a"], world_size=1,
        on_gpu=False,
    )  # fmt: skip
    done = run.timed_run(ranks, team, reference_run.settings_for("single", steps=15))
    assert [len(x) for x in (done.losses, done.norms, done.learning_rates)] == [15, 15, 15]
    assert (len(done.seconds), done.excluded, done.overlap) == (5, 10, 1.0)
