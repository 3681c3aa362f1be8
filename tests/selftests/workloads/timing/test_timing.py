"""How batches are made and timed, without a device."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.timing import timing
from tests.selftests.threads import Meeting, as_ranks, own_rank

pytestmark = pytest.mark.cpu


def measured(
    estimates: list[float | None], launch: Any, *, window_s: float = 0.2, batch_s: float = 0.01
) -> dict[int, timing.Batches]:
    """The batches of every rank; one whose estimate is None takes no part."""
    meeting, found = Meeting(len(estimates)), {}

    def one(number: int) -> None:
        ranks, estimate = meeting.rank(number), estimates[number]
        if estimate is None:
            timing.take_no_part(ranks)
        else:
            found[number] = timing.measure_together(
                ranks, launch, estimate=estimate, batch_s=batch_s, window_s=window_s, minimum=3
            )

    as_ranks(len(estimates), one)
    return found


def test_a_batch_is_as_many_launches_on_a_slow_device_as_on_a_fast_one():
    """Else the batches of one that stands still now and then lie between its halts."""
    found = measured([0.001, 0.01], lambda: time.sleep(1e-4))
    assert {b.launches for b in found.values()} == {10}
    assert all(len(b.seconds) >= 3 for b in found.values())


def test_a_device_far_too_slow_gets_smaller_batches_and_not_an_endless_window():
    """A GPU at a fortieth of its rate must be named before the deadline of its workload."""
    found = measured([0.001, 0.04], lambda: time.sleep(1e-4), window_s=0.15)
    # Five batches of 0.04 s in four windows of 0.15 s: three launches each, not ten.
    assert {b.launches for b in found.values()} == {3}


def test_a_device_that_stands_still_now_and_then_keeps_its_large_batches():
    """In smaller ones most would lie between two halts, and their median look good."""
    done = 0

    def launch() -> None:
        nonlocal done
        halts = False
        if own_rank() == 1:
            done += 1
            halts = done % 8 == 0
        # Not shorter: a busy host sleeps half a millisecond longer, and fewer would make a batch.
        time.sleep(0.32 if halts else 0.004)

    found = measured([0.004, 0.16], launch, window_s=0.6, batch_s=0.04)
    assert {b.launches for b in found.values()} == {found[0].launches}
    assert found[0].launches >= 8
    assert found[1].median > 0.02


def test_who_stands_aside_has_no_say():
    found = measured([0.002, None], lambda: time.sleep(1e-4))
    assert found[0].launches == 5


def test_a_window_too_short_for_a_slow_device_is_measured_again():
    """It was said to be fast, as one that is stopped now and then may seem between two halts."""

    def launch() -> None:
        time.sleep(0.01 if own_rank() == 1 else 1e-4)

    found = measured([0.001, 0.001, None], launch, window_s=0.05)
    assert all(b.inside >= 3 for b in found.values())


BATCH_S, WINDOW_S, FEWEST = 0.05, 1.2, 20


def with_a_stall(
    monkeypatch: pytest.MonkeyPatch, at: float, lasting: float, ranks: int
) -> dict[int, timing.Batches]:
    """Batches of ranks whose launches take 5 ms each of a clock of their own; the last stalls."""
    clocks, meeting = [0.0] * ranks, Meeting(ranks)
    stalled, found = list[float](), dict[int, timing.Batches]()

    def now() -> float:
        return clocks[own_rank()]

    def launch() -> None:
        clocks[own_rank()] += 0.005
        if own_rank() == ranks - 1 and now() >= at and not stalled:
            stalled.append(now())
            clocks[own_rank()] += lasting

    def gather(item: Any) -> list[Any]:
        answers = meeting.gather(own_rank(), (item, now()))
        clocks[own_rank()] = max(clock for _, clock in answers)
        return [answer for answer, _ in answers]

    def one(number: int) -> None:
        rank = SimpleNamespace(
            device=SimpleNamespace(type="cpu"), gather=gather, gather_node=gather,
            barrier=lambda: gather(None),
        )  # fmt: skip
        found[number] = timing.measure_together(
            rank, launch, estimate=0.005, batch_s=BATCH_S, window_s=WINDOW_S, minimum=FEWEST
        )

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=now, time=now))
    as_ranks(ranks, one)
    return found


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
