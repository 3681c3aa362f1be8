"""The fastest batch that fits into memory: what is tried, and what ends the search."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import a_rank, a_team
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


# --- one trial


GIB = 2**30


class FakeTraining:
    """A training that counts its steps, and has no memory from the given one on."""

    fails_at = 99

    def __init__(self, settings: Settings, team: Any, *, kernel: Any) -> None:
        self.settings, self.team = settings, team
        self.tokens_per_step = 640
        self.log: list[int] = []
        FakeTraining.last = self
        if self.fails_at == 0:
            raise RuntimeError("CUDA out of memory.")

    def run(self, steps: int) -> None:
        self.log.append(steps)
        if len(self.log) == self.fails_at:
            raise RuntimeError("cublas: CUBLAS_STATUS_ALLOC_FAILED")


FakeTraining.last = None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fails_at", "rate", "log"),
    [(99, 320.0, [1, 1, 2]), (0, None, []), (1, None, [1]), (2, None, [1, 1])],
)
def test_a_batch_that_fits_is_timed_over_five_steps(fails_at, rate, log, monkeypatch):
    import torch

    from training import batch_search

    monkeypatch.setattr(FakeTraining, "fails_at", fails_at)
    monkeypatch.setattr(batch_search, "Training", FakeTraining)
    monkeypatch.setattr(batch_search, "agreed_kernel", lambda *given: None)
    monkeypatch.setattr(batch_search, "free_memory", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: pytest.fail("this is a CPU"))
    timed: list[int] = []
    monkeypatch.setattr(
        batch_search, "seconds_per_step",
        lambda ranks, training, steps: timed.append(steps) or 2.0,
    )  # fmt: skip
    settings = batch_search._for_trial(Settings(save_every=3), 1, 1)
    assert (settings.batch, settings.save_every, settings.steps) == (1, 0, 9)
    assert batch_search._trial(a_rank(), a_team(), settings) == rate
    assert FakeTraining.last.log == log  # type: ignore[attr-defined]
    assert timed == ([] if rate is None else [5])


def test_the_peak_of_a_gpu_is_counted_anew_for_each_batch(monkeypatch):
    import torch

    from training import batch_search

    resets: list[int] = []
    monkeypatch.setattr(batch_search, "Training", FakeTraining)
    monkeypatch.setattr(batch_search, "agreed_kernel", lambda *given: None)
    monkeypatch.setattr(batch_search, "free_memory", lambda device: None)
    monkeypatch.setattr(batch_search, "seconds_per_step", lambda *given: 1.0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: resets.append(1))
    batch_search._trial(a_rank(), a_team(device="cuda"), Settings())
    assert resets == [1]


@pytest.mark.parametrize(("size", "answered"), [(1, 0), (2, 1), (3, 1)])
def test_steps_are_tried_without_waiting_for_other_ranks(size, answered, monkeypatch):
    from training import batch_search, stragglers

    calls: list[Any] = []

    @contextmanager
    def here(training: Any) -> Any:
        calls.append(training)
        yield
        raise stragglers.CommunicationMissed("not seen")

    monkeypatch.setattr(stragglers, "collectives_answered_here", here)
    training = FakeTraining(Settings(), a_team(size), kernel=None)
    assert batch_search._steps_fit(a_rank(), training) is True  # type: ignore[arg-type]
    assert calls == [training] * answered
    assert training.log == [1, 1]


def test_only_a_lack_of_memory_ends_a_trial_and_any_rank_s_counts():
    from training import batch_search

    def broken() -> None:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        batch_search._all_have_memory(a_rank(), broken)
    another = a_rank(agree=lambda item, choose: choose([item, False]))
    assert batch_search._all_have_memory(another, lambda: None) is False
    assert batch_search._all_have_memory(a_rank(), lambda: None) is True


@pytest.mark.parametrize(
    ("free", "reserved", "peak", "left"),
    [
        (GIB, 0, 0, True), (GIB - 1, 0, 0, False), (GIB // 2, 9 * GIB, 8 * GIB, True),
        (GIB, 0, 5 * GIB, True), (GIB // 2, 8 * GIB + 9, 8 * GIB, False),
    ],
)  # fmt: skip
def test_a_gib_must_be_left_free_or_reusable(free, reserved, peak, left, monkeypatch):
    import torch

    from training import batch_search

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    assert batch_search._memory_is_left(torch.device("cuda")) is left
    assert batch_search._memory_is_left(torch.device("cpu")) is True


def test_one_rank_alone_tells_of_the_search(capsys):
    from training import batch_search

    for number in (0, 1, 2):
        batch_search._say(a_rank(rank=number), f"said by {number}")
    assert capsys.readouterr().out == "said by 0\n"
