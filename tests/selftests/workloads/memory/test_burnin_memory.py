"""The burn-in of memory: how long it lasts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.memory import burnin_memory

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("on_gpu", "given", "seconds"),
    [(True, None, 180.0), (False, None, 2.0), (True, 7.0, 7.0), (False, 0.0, 0.0)],
)
def test_it_lasts_three_minutes_on_gpus_unless_told_otherwise(on_gpu, given, seconds, monkeypatch):
    asked: list[float] = []

    def run(ranks: Any, metrics: list[str], *, seconds: float) -> str:
        asked.append(seconds)
        return "its result"

    monkeypatch.setattr(burnin_memory.memory_whole, "run", run)
    ranks: Any = SimpleNamespace(on_gpu=on_gpu)
    assert burnin_memory.run(ranks, ["errors"], seconds=given) == "its result"
    assert asked == [seconds]
