"""How batches are made and timed, without a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.timing import timing
from tests.selftests.threads import Meeting, as_ranks, own_rank

pytestmark = pytest.mark.cpu


def measured(
    monkeypatch: pytest.MonkeyPatch,
    estimates: Sequence[float | None],
    seconds_of: Callable[[int, float], float],
    *,
    window_s: float = 0.2,
    batch_s: float = 0.01,
    minimum: int = 3,
) -> dict[int, timing.Batches]:
    """The batches of every rank, each with a clock of its own; one without estimate takes no part.

    `seconds_of` a rank and its time is how long its launch takes.
    """
    clocks, meeting = [0.0] * len(estimates), Meeting(len(estimates))
    found = dict[int, timing.Batches]()

    def now() -> float:
        return clocks[own_rank()]

    def launch() -> None:
        clocks[own_rank()] += seconds_of(own_rank(), now())

    def gather(item: Any) -> list[Any]:
        answers = meeting.gather(own_rank(), (item, now()))
        clocks[own_rank()] = max(clock for _, clock in answers)
        return [answer for answer, _ in answers]

    def one(number: int) -> None:
        rank, estimate = SimpleNamespace(
            device=SimpleNamespace(type="cpu"), gather=gather, gather_node=gather,
            barrier=lambda: gather(None),
        ), estimates[number]  # fmt: skip
        if estimate is None:
            timing.take_no_part(rank)
        else:
            found[number] = timing.measure_together(
                rank, launch, estimate=estimate, batch_s=batch_s, window_s=window_s,
                minimum=minimum,
            )  # fmt: skip

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=now, time=now))
    as_ranks(len(estimates), one)
    return found


def always(seconds: float) -> Callable[[int, float], float]:
    return lambda rank, now: seconds


def test_a_batch_is_as_many_launches_on_a_slow_device_as_on_a_fast_one(monkeypatch):
    """Else the batches of one that stands still now and then lie between its halts."""
    found = measured(monkeypatch, [0.001, 0.01], always(1e-4))
    assert {b.launches for b in found.values()} == {10}
    assert all(len(b.seconds) >= 3 for b in found.values())


def test_a_device_far_too_slow_gets_smaller_batches_and_not_an_endless_window(monkeypatch):
    """A GPU at a fortieth of its rate must be named before the deadline of its workload."""
    found = measured(monkeypatch, [0.001, 0.04], always(1e-4), window_s=0.15)
    # Five batches of 0.04 s in four windows of 0.15 s: three launches each, not ten.
    assert {b.launches for b in found.values()} == {3}


def test_a_device_that_stands_still_now_and_then_keeps_its_large_batches(monkeypatch):
    """In smaller ones most would lie between two halts, and their median look good."""
    done = 0

    def seconds_of(rank: int, _: float) -> float:
        nonlocal done
        done += rank == 1
        return 0.32 if rank == 1 and done % 8 == 0 else 0.004

    found = measured(monkeypatch, [0.004, 0.16], seconds_of, window_s=0.6, batch_s=0.04)
    assert {b.launches for b in found.values()} == {found[0].launches}
    assert found[0].launches >= 8
    assert found[1].median > 0.02


def test_who_stands_aside_has_no_say(monkeypatch):
    found = measured(monkeypatch, [0.002, None], always(1e-4))
    assert found[0].launches == 5


def test_a_window_too_short_for_a_slow_device_is_measured_again(monkeypatch):
    """It was said to be fast, as one that is stopped now and then may seem between two halts."""
    found = measured(
        monkeypatch, [0.001, 0.001, None], lambda rank, _: 0.01 if rank == 1 else 1e-4,
        window_s=0.05,
    )  # fmt: skip
    assert all(b.inside >= 3 for b in found.values())


BATCH_S, WINDOW_S, FEWEST = 0.05, 1.2, 20


def with_a_stall(
    monkeypatch: pytest.MonkeyPatch, at: float, lasting: float, ranks: int
) -> dict[int, timing.Batches]:
    """Batches of ranks whose launches take 5 ms each of a clock of their own; the last stalls."""
    stalled = list[float]()

    def seconds_of(rank: int, now: float) -> float:
        if rank == ranks - 1 and now + 0.005 >= at and not stalled:
            stalled.append(now)
            return 0.005 + lasting
        return 0.005

    return measured(
        monkeypatch, [0.005] * ranks, seconds_of, window_s=WINDOW_S, batch_s=BATCH_S, minimum=FEWEST
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("at", [0.02, 0.5, 1.0, 1.18])
@pytest.mark.parametrize("lasting", [0.04, 0.1, 0.2, 0.25, 0.6, 0.9, 3.0])
def test_a_stall_is_not_thrown_away_with_the_window_that_it_made_too_short(
    monkeypatch: pytest.MonkeyPatch, at: float, lasting: float, ranks: int
) -> None:
    """A long one leaves too few batches in it, or ends after the window of the others."""
    found = with_a_stall(monkeypatch, at, lasting, ranks)
    stalled = found[ranks - 1]
    slow = [x / 0.005 for x in stalled.seconds if x > 0.0055]
    assert slow == [pytest.approx(1 + lasting / BATCH_S)] * len(slow)
    assert sum(x - 1 for x in slow) * 0.005 * stalled.launches == pytest.approx(lasting)
    assert stalled.overlap > 0.8
    assert stalled.median == pytest.approx(0.005)
    assert stalled.inside == len(stalled.seconds) == len(stalled.ended) >= FEWEST
    assert stalled.ended == sorted(stalled.ended)
    if ranks > 1:
        assert max(found[0].seconds) == pytest.approx(0.005)


def test_how_long_the_host_launches_is_told_from_waiting_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, mark = SimpleNamespace(now=0.0), timing.Marks.mark
    monkeypatch.setattr(
        timing,
        "time",
        SimpleNamespace(perf_counter=lambda: clock.now, time=lambda: clock.now),
    )

    def launch() -> None:
        clock.now += 0.001

    def waiting(marks: timing.Marks) -> None:
        clock.now += 0.003
        mark(marks)

    monkeypatch.setattr(timing.Marks, "mark", waiting)
    found = timing.measure_batches(Meeting(1).rank(0), launch, launches=4, count=5)
    assert found.launching_s == pytest.approx(0.001)
    assert found.median == pytest.approx(0.007 / 4)
    of_two = timing.measure_batches(Meeting(1).rank(0), launch, launches=4, count=5, operations=2)
    assert of_two.median == pytest.approx(found.median / 2)
    assert of_two.launching_s == pytest.approx(0.0005)


def test_marks_that_are_set_by_hand_say_nothing_of_launching() -> None:
    marks = timing.Marks(Meeting(1).rank(0))
    for _ in range(3):
        marks.mark()
    found = marks.finish(1)
    assert (len(found.seconds), found.launching_s) == (2, None)
