"""Rounds of own steps: how many, how long, and whose time is compared with whose."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from training.settings import Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("paces", "on_gpu", "step_s", "rounds", "steps"),
    [
        ([100.0, 97.0], False, 0.03, 1, 10),
        ([100.0, 96.9], False, 0.03, 3, 10),
        ([96.9, 100.0], True, 0.2, 3, 10),
        ([100.0, 100.0], True, 1.0, 1, 5),
        ([100.0, 100.0], True, 0.001, 1, 20),
    ],
)
def test_further_rounds_are_measured_where_a_rank_seems_slow(
    paces, on_gpu, step_s, rounds, steps, monkeypatch
):
    from training import stragglers

    asked: list[int] = []
    warmed: list[int] = []

    @contextlib.contextmanager
    def here(training: Any) -> Any:
        yield "meet"

    def one(ranks: Any, training: Any, meet: Any, steps: int) -> Any:
        asked.append(steps)
        return stragglers.Round(own=[1.0] * 5, waiting=[], reference=paces[0] / 100)

    monkeypatch.setattr(stragglers, "collectives_answered_here", here)
    monkeypatch.setattr(stragglers, "_round", one)
    training: Any = SimpleNamespace(
        settings=Settings(checkpoint="d", save_every=3), run=warmed.append
    )

    def agree(item: float, choose: Any) -> Any:
        return choose([item, paces[1] if choose is min else item])

    ranks: Any = SimpleNamespace(on_gpu=on_gpu, agree=agree)
    found = stragglers.measure(ranks, training, step_s=step_s)
    assert asked == [steps] * rounds
    assert len(found) == rounds
    assert found[0].pace == [paces[0]] * 5
    assert warmed == [1]
    assert (training.settings.checkpoint, training.settings.save_every) == ("", 0)


def test_a_round_has_own_and_waiting_times_and_those_of_the_others(monkeypatch):
    from training import stragglers

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stragglers, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def meet() -> None:
        clock.now += 0.5

    def run(steps: int, marks: Any) -> None:
        marks.mark()
        for _ in range(steps):
            clock.now += 2.0
            marks.mark()

    team: Any = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    training: Any = SimpleNamespace(team=team, run=run)
    ranks: Any = SimpleNamespace(rank=1, gather=lambda own: [3.0, own, 5.0])
    found = stragglers._round(ranks, training, meet, 3)  # type: ignore[arg-type]
    assert (found.own, found.waiting, found.reference) == ([2.0] * 3, [0.5] * 3, 4.0)


def test_on_a_gpu_times_are_those_of_its_events(monkeypatch):
    import torch

    from training import stragglers

    times = iter([10.0, 20.0, 2020.0, 2520.0])

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(times)

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Any) -> float:
            return float(other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    team: Any = SimpleNamespace(device=torch.device("cuda"), group=None)
    marks = stragglers.StepMarks(team, lambda: None)
    marks.mark()
    marks.mark()
    assert marks.finish() == ([2.0], [0.5])


def test_the_time_of_the_others_is_their_median():
    from training.stragglers import time_of_others

    assert time_of_others([1.0, 9.0, 3.0, 4.0], 1) == 3.0
    assert time_of_others([1.0, 9.0], 0) == 9.0
