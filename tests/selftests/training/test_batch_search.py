"""The fastest batch that fits into memory: what is tried, and what ends the search."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from training.settings import Settings, SettingsError

pytestmark = pytest.mark.cpu


def search_with(rates: dict[int, float | None], settings: Settings, monkeypatch: Any) -> Any:
    import torch

    from training import batch_search
    from training.strategies import Team

    tried: list[int] = []

    def trial(ranks: Any, team: Any, of: Settings) -> float | None:
        assert (of.checkpoint, of.resume) == ("", False)
        tried.append(of.batch)
        return rates[of.batch]

    monkeypatch.setattr(batch_search, "_trial", trial)
    team = Team(members=(0, 1), rank=1, device=torch.device("cpu"), group=None)
    return batch_search.fastest(SimpleNamespace(rank=1), team, settings), tried  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "best", "tried"),
    [
        ({1: 10.0, 2: 12.0, 4: None}, 2, [1, 2, 4]),
        ({1: 10.0, 2: 12.0, 4: 11.0}, 2, [1, 2, 4]),
        ({1: 10.0, 2: 9.95, 4: 12.0, 8: 9.0}, 4, [1, 2, 4, 8]),
        ({1: None}, None, [1]),
    ],
)
def test_the_search_ends_where_memory_or_speed_does(rates, best, tried, monkeypatch):
    given = Settings(strategy="ddp", checkpoint="somewhere", resume=True)
    found, tries = search_with(rates, given, monkeypatch)
    assert tries == tried
    assert found == (None if best is None else replace(given, batch=best))


def test_only_batches_that_divide_the_global_batch_are_tried(monkeypatch):
    rates: dict[int, float | None] = {1: 10.0, 2: 12.0, 4: 14.0}
    found, tries = search_with(rates, Settings(strategy="ddp", global_batch=12), monkeypatch)
    assert (found.batch, tries) == (2, [1, 2])


@pytest.mark.parametrize(
    ("show", "on_gpu", "overrides", "searched"),
    [
        (True, True, (), True), (True, True, ("preset",), True), (True, True, ("batch",), False),
        (False, True, (), False), (True, False, (), False),
    ],
)  # fmt: skip
def test_a_batch_is_searched_for_by_hand_only(show, on_gpu, overrides, searched, monkeypatch):
    from training import batch_search

    given, best = Settings(batch=2), Settings(batch=8)
    monkeypatch.setattr(batch_search, "fastest", lambda *given: best)
    ranks: Any = SimpleNamespace(on_gpu=on_gpu)
    found = batch_search.by_hand(ranks, None, given, overrides, show=show)  # type: ignore[arg-type]
    assert found is (best if searched else given)


def test_what_fits_with_no_batch_is_refused_with_what_to_do(monkeypatch):
    from training import batch_search

    monkeypatch.setattr(batch_search, "fastest", lambda *given: None)
    ranks: Any = SimpleNamespace(on_gpu=True)
    with pytest.raises(SettingsError, match="preset tiny does not fit into memory with batch 1"):
        batch_search.by_hand(ranks, None, Settings(), (), show=True)  # type: ignore[arg-type]
