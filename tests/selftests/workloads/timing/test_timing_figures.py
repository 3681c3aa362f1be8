"""Marks, warm-up and windows on a made-up clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.timing import timing
from fixtures.workloads.timing.timing import Batches

pytestmark = pytest.mark.cpu


class Clock:
    """Time that passes while something is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds, self.launched = 100.0, seconds, 0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.time, "time", lambda: self.now)

    def launch(self) -> None:
        self.launched += 1
        self.now += self.seconds


def ranks(kind: str = "cpu", **more: Any) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=kind), barrier=lambda: None, **more)


def test_batches_on_a_host_are_timed_from_mark_to_mark(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch, 0.5)
    found = timing.measure_batches(ranks(), clock.launch, launches=4, count=3, operations=2)
    assert found.seconds == [0.25] * 3, "per operation, of which a launch has two"
    assert (found.started, found.ended) == (100.0, [102.0, 104.0, 106.0])
    assert (found.launches, found.inside, found.wall_over_marks) == (8, 3, 1.0)
    assert found.launching_s == 0.25
    assert clock.launched == 12
    stamps = timing.stamps(found)
    assert stamps == {"started": 100.0, "ended": [102.0, 104.0, 106.0]}


def test_batches_on_a_gpu_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch, 0.0)
    waited: list[int] = []
    made: list[Any] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.number = len(made)
            made.append(self)

        def record(self) -> None: ...

        def synchronize(self) -> None:
            waited.append(self.number)

        def elapsed_time(self, other: Any) -> float:
            assert other.number == self.number + 1
            return 500.0

    synchronized: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronized.append(1))
    found = timing.measure_batches(ranks("cuda"), clock.launch, launches=2, count=3)
    assert found.seconds == [0.25] * 3
    assert waited == [1, 2], "for the mark before the last, so that the device always has work"
    assert len(synchronized) == 2
    timing.synchronize(ranks())
    assert len(synchronized) == 2


def test_a_device_is_kept_busy_for_so_long(monkeypatch: pytest.MonkeyPatch):
    # Launches are doubled until they last a tenth of a second.
    for seconds, launched in ((0.0625, 1 + 8 * 2), (0.125, 8), (2.0, 1)):
        clock = Clock(monkeypatch, seconds)
        assert timing.warm(ranks(), clock.launch, 1.0) == seconds
        assert clock.launched == launched


def test_a_rank_that_is_alone_measures_batches_of_that_length(monkeypatch: pytest.MonkeyPatch):
    for estimate, launches in ((0.5, 4), (9.0, 1), (0.0, 2 * 10**9)):
        asked: list[dict[str, int]] = []
        monkeypatch.setattr(timing, "measure_batches", lambda _, __, **given: asked.append(given))  # noqa: B023
        timing.measure_alone(ranks(), int, estimate=estimate, batch_s=2.0, minimum=7)  # type: ignore[arg-type]
        assert asked == [{"launches": launches, "count": 7}]


def test_a_collective_has_as_many_batches_as_its_time_allows(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(timing, "measure_batches", lambda _, __, **given: asked.append(given))
    slowest = ranks(agree=lambda item, choose: choose([item, 0.5]))
    for budget_s, count in ((100.0, 20), (30.0, 15), (1.0, 5)):
        timing.measure_collective(
            slowest, int, estimate=0.1, batch_s=2.0, minimum=20, least=5, budget_s=budget_s  # type: ignore[arg-type]
        )  # fmt: skip
        assert asked.pop() == {"launches": 4, "count": count}


def test_a_window_has_one_batch_at_least(monkeypatch: pytest.MonkeyPatch):
    for seconds, count in ((0.0, 1), (1.9, 2), (2.0, 2), (2.1, 3)):
        clock = Clock(monkeypatch, 0.5)
        found = timing._measure_window(ranks(), clock.launch, 2, seconds)
        assert len(found.seconds) == count


def batches(started: float, *seconds: float, launches: int = 1, **more: Any) -> Batches:
    ended = [started + sum(seconds[: k + 1]) for k in range(len(seconds))]
    return Batches(
        seconds=list(seconds), started=started, ended=ended, launches=launches,
        **{"wall_over_marks": 1.0, "inside": len(seconds), **more},
    )  # fmt: skip


def test_batches_that_began_in_the_window_of_all_are_kept():
    own = batches(10.0, 1.0, 1.0, 1.0, 1.0)

    def common(minimum: int, *others: Any) -> Batches:
        node = ranks(gather_node=lambda own: [own, *others])
        return timing.in_common_window(node, own, minimum=minimum)

    found = common(2, [11.0, 12.5], None)
    assert (found.started, found.ended, found.seconds) == (11.0, [12.0, 13.0], [1.0, 1.0])
    assert (found.inside, found.overlap) == (2, 0.5)
    few = common(3, [11.0, 12.5])
    assert (few.seconds, few.inside, few.overlap) == ([1.0] * 4, 2, 0.5)
    assert common(1, [0.0, 12.0]).inside == 2, "what begins at the end of the window is not in it"
    slack = timing.STAMP_SLACK_S
    assert common(1, [11.0 + slack / 2, 99.0]).inside == 3
    assert common(1, [11.0 + 2 * slack, 99.0]).inside == 2


def test_windows_are_joined_in_batches_of_as_many_launches_as_the_last_one_s():
    first = batches(0.0, 1.0, 3.0, 5.0, launches=1, wall_over_marks=1.2, overlap=0.5)
    last = batches(20.0, 2.0, launches=2)
    found = timing._joined([first, last])
    assert found.seconds == [2.0, 5.0, 2.0]
    assert (found.ended, found.started) == ([4.0, 9.0, 22.0], 0.0)
    assert (found.inside, found.overlap, found.wall_over_marks) == (3, 0.5, 1.2)
    assert found.spans == [(0.0, 9.0), (20.0, 22.0)]
    large = timing._joined([batches(0.0, 4.0, launches=4), last])
    assert (large.seconds, large.ended) == ([4.0, 4.0, 2.0], [2.0, 4.0, 22.0])


def test_a_rank_that_does_not_measure_answers_until_all_have_enough():
    for enough_at, rounds in ((1, 1), (2, 2), (99, timing.ATTEMPTS)):
        asked: list[Any] = []

        def gather(item: Any, enough_at: int = enough_at) -> list[Any]:
            asked.append(item)  # noqa: B023
            if item is None:
                return []
            done = len([a for a in asked if a is not None]) >= enough_at  # noqa: B023
            return [item, [done, True]]

        timing.take_no_part(ranks(gather=gather, gather_node=lambda _: []))
        assert asked == [None, [True, True]] * rounds
