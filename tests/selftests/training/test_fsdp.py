"""FSDP: the shapes that are timed, the shard of a rank, and its figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import of_gpus
from training.settings import Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("gib", "preset", "recompute"),
    [(140, "8b-short", "none"), (79, "8b-mini", "none"), (39, "1b", "block")],
)
def test_fsdp_scales_with_what_one_gpu_can_hold(gib, preset, recompute):
    from training import fsdp, run

    asked = Settings(strategy="fsdp", preset=fsdp.PRESET, dtype="bf16", batch=2)
    team: Any = SimpleNamespace(size=8)
    settings = fsdp._scaling_settings(of_gpus(gib), team, asked)
    assert (settings.preset, settings.recompute) == (preset, recompute)
    assert settings.passes_per_step(8) * settings.batch == 2
    assert run.fits(of_gpus(gib), settings, 1)
