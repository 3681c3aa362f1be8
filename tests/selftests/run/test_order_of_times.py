"""Times that cannot be true are void; a clock that is wrong is a clock, and accuses nobody."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from fixtures.paths import CHECKOUT
from fixtures.run.order_of_times import (
    Offset,
    Window,
    apart,
    measured_in,
    merged,
    of_another_clock,
    out_of_sequence,
    samples_in_order,
)
from fixtures.thresholds.loader import load
from fixtures.verdict import judge
from fixtures.verdict.causes import Cause
from tests.selftests.fleets import NODES, Data, FleetRun, as_attempt, fleet, names, whole_fleet
from tests.selftests.support import bf16, rank, record

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

SICK = NODES[1]
DAY_S, HOUR_S = 86400.0, 3600.0


def shift(data: Data, seconds: float, *, nodes: tuple[str, ...] = NODES, ranks: int = 99) -> None:
    """Move all times of the first ranks of these nodes."""
    for r in data["ranks"]:
        if r["node"] not in nodes or r["local_rank"] >= ranks:
            continue
        r["start"] += seconds
        r["end"] += seconds
        for m in r["measurements"]:
            if m.get("started") is not None:
                m["started"] += seconds
            if m.get("ended"):
                m["ended"] = [t + seconds for t in m["ended"]]


def _before_the_rank(data: Data) -> None:
    for r in data["ranks"]:
        r["start"] = r["end"] - 5


def _after_the_rank(data: Data) -> None:
    for r in data["ranks"]:
        r["end"] = r["start"] + 40


def _too_short(data: Data) -> None:
    for r in data["ranks"]:
        r["end"] = r["start"] + 0.01
        for m in r["measurements"]:
            m.pop("ended", None)
            m.pop("started", None)


def _batches_at_once(data: Data) -> None:
    m = next(m for m in data["ranks"][0]["measurements"] if m.get("ended"))
    m["ended"] = [m["started"] + 1e-6 * k for k in range(len(m["ended"]))]


def _an_hour_apart(data: Data) -> None:
    shift(data, HOUR_S / 2, ranks=1)


def _after_the_run(data: Data) -> None:
    shift(data, 2 * HOUR_S)


def _in_a_later_century(data: Data) -> None:
    shift(data, 200 * 365.25 * DAY_S)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_before_the_rank, "a sample before the rank began"),
        (_after_the_rank, "a sample after the rank ended"),
        (_too_short, "its samples took at least"),
        (_batches_at_once, "too little time for them"),
        (_an_hour_apart, "its ranks did not run together"),
    ],
)
def test_a_record_whose_times_cannot_be_true_is_not_measured(change, reason, fleet, tmp_path):
    fleet.change(f"gemm@{SICK}.json", change)
    verdict, rows = fleet.judged(tmp_path / "judged")
    void = {k: v for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}
    assert ("gemm.bf16", SICK) in void
    assert {subject for _, subject in void} == {SICK}
    assert all(reason in v["reason"] for v in void.values())
    assert {v["cause"] for v in void.values()} == {Cause.RECORD}
    assert verdict["verdict"] == "INCOMPLETE"


def _of_another_year(data: Data) -> None:
    shift(data, -366 * DAY_S)


@pytest.mark.parametrize("change", [_after_the_run, _in_a_later_century, _of_another_year])
def test_a_clock_that_was_set_since_the_inventory_voids_and_accuses_nobody(change, fleet, tmp_path):
    fleet.change(f"gemm@{SICK}.json", change)
    verdict, rows = fleet.judged(tmp_path / "judged")
    void = [v for v in rows.values() if v["outcome"] == "NOT_MEASURED"]
    assert {v["subject"] for v in void} == {SICK}
    assert all("these are not the times of its job" in v["reason"] for v in void)
    assert {v["cause"] for v in void} == {Cause.MEASUREMENT}
    assert verdict["verdict"] == "INCOMPLETE"
    assert names(tmp_path / "judged" / "bad-nodes.txt") == []


@pytest.mark.parametrize("days", [-2.0, 2.0, 40.0])
def test_a_node_whose_clock_is_days_off_is_named_with_its_clock(days, fleet: FleetRun, tmp_path):
    for name in fleet.names(SICK):
        fleet.change(name, lambda data: shift(data, days * DAY_S, nodes=(SICK,)))
    verdict, rows = fleet.judged(tmp_path / "judged")
    own = [v for (_, subject), v in rows.items() if subject == SICK and v["cause"]]
    assert {v["cause"] for v in own} == {Cause.CLOCK}
    assert all("its clock is wrong" in v["reason"] for v in own)
    assert verdict["verdict"] == "INCOMPLETE"
    assert names(tmp_path / "judged" / "bad-nodes.txt") == [SICK]
    assert "clock" in (tmp_path / "judged" / "node-reasons.txt").read_text()


@pytest.mark.parametrize("hours", [-3.0, 3.0, 20.0])
def test_a_clock_that_is_always_hours_off_is_no_fault(hours, fleet: FleetRun, tmp_path):
    for name in fleet.names(SICK):
        fleet.change(name, lambda data: shift(data, hours * HOUR_S, nodes=(SICK,)))
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert {v["outcome"] for v in rows.values()}.isdisjoint({"FAIL", "NOT_MEASURED"})
    assert verdict["verdict"] == "ACCEPTED"


@pytest.mark.parametrize("hours", [-30.0, -5.0, 4.0])
def test_a_clock_that_was_corrected_after_the_inventory_is_no_fault(hours, fleet, tmp_path):
    fleet.change(f"inventory@{SICK}.json", lambda data: shift(data, hours * HOUR_S, nodes=(SICK,)))
    _, rows = fleet.judged(tmp_path / "judged")
    void = {k for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}
    # More than a day is a clock that is wrong, when the inventory is taken.
    assert (void == set()) == (abs(hours) < 24)
    assert ("gemm.bf16", SICK) not in void


@pytest.mark.parametrize("hours", [-60.0, 30.0, 9000.0])
def test_a_clock_of_the_owner_that_is_wrong_is_no_fault_of_a_node(hours, fleet, tmp_path):
    for name in {name for node in NODES for name in fleet.names(node)}:
        fleet.change(name, lambda data: shift(data, hours * HOUR_S))
    verdict, rows = fleet.judged(tmp_path / "judged")
    bad = (tmp_path / "judged" / "bad-nodes.txt").read_text()
    assert (verdict["verdict"], bad) == ("INCOMPLETE", "")
    void = [v for v in rows.values() if v.get("cause") == Cause.OWNER_CLOCK]
    assert len(void) > len(rows) / 2
    assert all("clock of" in v["reason"] and "that clock is wrong" in v["reason"] for v in void)
    assert all("begin a new run" in v["next_step"] for v in void)


@pytest.mark.parametrize(
    ("clocks", "whose"),
    [
        ((9000.0, 0.0, 0.0), "node"), ((9000.0, 0.0), "node"), ((9000.0, 9000.0), "owner"),
        ((9000.0,), "unknown"), ((9000.0, 9000.0, 0.0), "owner"), ((9000.0, -9000.0), "unknown"),
        ((9000.0, 9000.0, 0.0, 0.0), "node"),
    ],
)  # fmt: skip
def test_more_clocks_than_the_owner_has_with_him_show_whose_is_wrong(clocks, whose):
    window = Window(0.0, 5000.0)
    of = [Offset.of(100 + h * HOUR_S, 200 + h * HOUR_S, window) for h in clocks]
    void = of_another_clock("n", 100 + clocks[0] * HOUR_S, of[0], [of[0]], window, lambda: of)
    assert void is not None
    assert void.cause == (Cause.CLOCK if whose == "node" else Cause.OWNER_CLOCK)
    assert ("that clock is wrong" in void.reason) == (whose == "owner")
    assert ("one of the two clocks" in void.reason) == (whose == "unknown")


def test_a_pass_that_is_older_than_the_failure_takes_nothing_back(fleet: FleetRun, tmp_path):
    first = fleet.read(f"gemm@{SICK}.json")
    for k in range(1, 5):
        data = as_attempt(first, k, seconds=-60.0 if k == 4 else 200.0)
        for r in data["ranks"]:
            for m in r["measurements"]:
                m["samples"] = [value * (0.5 if k == 1 else 1) for value in m.get("samples", [])]
        fleet.write(f"gemm@{SICK}{'' if k == 1 else f'.attempt{k}'}.json", data)
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["gemm.bf16", SICK]["outcome"] == "NOT_MEASURED"
    assert "attempt 4 began before attempt 3 ended" in rows["gemm.bf16", SICK]["reason"]


def test_samples_of_a_whole_job_may_be_older_than_their_rank():
    early = rank(0, "worker0", bf16([650.5] * 5))
    m = early.measurements[0]
    object.__setattr__(m, "started", 50.0)
    object.__setattr__(m, "ended", [60.0, 70.0, 80.0, 90.0, 101.0])
    assert "before the rank began" in samples_in_order([early])[0]["worker0"]
    assert samples_in_order([early], spans_job=True)[0] == {}


def test_a_node_that_began_in_time_and_ended_after_the_run_is_not_0_hours_ahead():
    window = Window(0.0, 600.0)
    for start, said in ((60.0, "measured on after the run had ended"), (7200.0, "2.0 hours ahead")):
        own = Offset.of(start, start + 100_000.0, window)
        found = of_another_clock("worker0", start, own, (), window)
        assert found is not None
        assert said in found.reason
        assert found.cause == Cause.CLOCK


@pytest.mark.parametrize(
    ("begin", "hours", "said"),
    [
        (None, 5000.0, "by its clock measured at another time than by that of the run's owner"),
        (10 * DAY_S, 0.04, "by its clock it measured on after the run had ended"),
        (
            10 * DAY_S,
            3.0,
            "measured on 1970-01-11, 3.0 hours ahead of the clock of the run's owner",
        ),
        (10 * DAY_S, 23.9, "measured on 1970-01-11, 23.9 hours ahead"),
        (10 * DAY_S, 24.0, "measured on 1970-01-12, 1.0 days ahead"),
        (10 * DAY_S, 36.0, "measured on 1970-01-12, 1.5 days ahead"),
        (10 * DAY_S, -23.9, "before the run was started, 23.9 hours behind the clock of its owner"),
        (10 * DAY_S, -36.0, "measured on 1970-01-09, before the run was started, 1.5 days behind"),
        (10 * DAY_S, -4e9, "measured on 1970-01-01, before the run was started"),
    ],
)
def test_how_far_a_clock_is_off_is_said_in_hours_below_a_day(begin, hours, said):
    window = Window(begin, 10 * DAY_S + 100)
    start = 10 * DAY_S + hours * HOUR_S
    own = Offset.of(start, start + 4000, window)
    void = of_another_clock("n", start, own, [Offset(1e12, 1e12)], window)
    assert void is not None
    assert void.reason.startswith("n: ")
    assert said in void.reason


def test_an_offset_is_what_puts_a_record_into_its_job():
    window = Window(1000.0, 5000.0)
    assert window.of_job({"submitted": 2000}) == Window(2000.0, 5000.0)
    assert window.of_job({"submitted": "x"}) == window.of_job({"submitted": 10}) == window
    assert Offset.of(1100, 1200, window).least == 0
    assert Offset.of(-900, -800, window).least == -1900
    assert Offset.of(9000, 9100, window).least == 4100
    assert Offset.of(0, 1, Window()).least == 0
    own = Offset.of(-900, -800, window)
    assert of_another_clock("n", -900, own, [own], window) is None
    void = of_another_clock("n", -900, own, [Offset.of(4900, 4990, window)], window)
    assert void is not None
    assert void.cause == Cause.MEASUREMENT
    right = Offset.of(2000, 2100, window)
    assert of_another_clock("n", 2000, right, [Offset.of(9000, 9100, window)], window) is None
    unclear = of_another_clock("n", -900, own, [Offset(-3000.0, 10.0)], window)
    assert unclear is not None
    assert unclear.cause == Cause.MEASUREMENT, "it may have been set since"


@pytest.mark.parametrize(
    ("parts", "clocks", "void", "cause"),
    [
        ({"a": (0, 10), "b": (200, 210)}, {}, (), None),
        ({"a": (0, 10), "b": (3600, 3610)}, {}, ("a", "b"), Cause.MEASUREMENT),
        ({"a": (0, 10), "b": (3600, 3610)}, {"b": 3600.0}, (), None),
        ({"a": (0, 10), "b": (0, 10), "c": (3600, 3610)}, {}, ("c",), Cause.RECORD),
        ({"a": (3600, 10)}, {}, ("a",), Cause.RECORD),
    ],
)
def test_ranks_of_one_job_run_together(parts, clocks, void, cause):
    found = apart(parts, clocks)
    assert set(found) == set(void)
    assert {v.cause for v in found.values()} == ({cause} if cause else set())


def test_attempts_follow_each_other():
    one, two = record(rank(0, "worker0")), record(rank(0, "worker0"), attempt=2)
    assert out_of_sequence(two, measured_in(one)) == {}
    assert set(out_of_sequence(one, measured_in(two))) == {"worker0"}
    assert out_of_sequence(one, measured_in(record(rank(0, "worker1"), attempt=2))) == {}


@pytest.mark.parametrize(
    ("submitted", "follows"),
    [((10.0, 20.0), True), ((10.0, 19.9), False), ((20.0, 10.0), False), (("x", 20.0), False),
     ((None, None), False)],
)  # fmt: skip
def test_an_attempt_after_the_clock_was_set_back_follows_by_the_clock_of_the_owner(
    submitted, follows
):
    # The first took ten seconds; by the node's clock the second began an hour before it.
    one, two = (record(rank(0, "worker0"), attempt=k + 1) for k in range(2))
    for which, when in zip((one, two), submitted, strict=True):
        which.job["submitted"] = when
    two.ranks[:] = [replace(two.ranks[0], start=-3500.0, end=-3490.0)]
    assert (out_of_sequence(two, measured_in(one)) == {}) is follows


def test_time_is_counted_once():
    assert merged([(5, 20), (0, 10), (30, 31)]) == [(0, 20), (30, 31)]
    assert merged([(0, 10), (0, 10), (2, 3)]) == [(0, 10)]
    assert sum(b - a for a, b in merged([(0, 10), (2, 3), (5, 12), (20, 21)])) == 13
    assert merged([(0, 1), (1, 2)]) == [(0, 1), (1, 2)]
    assert merged([]) == []


def test_a_waiver_is_not_revived_by_a_judge_s_clock():
    limits = load(CHECKOUT / "thresholds.yaml")
    future = datetime.date(2091, 1, 1)
    assert replace(limits, newest_evidence=future).waiver_day() == future
    today = datetime.datetime.now(datetime.UTC).date()
    assert limits.waiver_day() >= today
    assert replace(limits, newest_evidence=datetime.date(2020, 1, 1)).waiver_day() >= today
    found = record(rank(0, "worker0"))
    early = datetime.date(2026, 1, 1)
    assert judge._day(found, limits, early) == early
    assert judge._day(found, replace(limits, newest_evidence=future), None) == future
    late = record(rank(0, "worker0"))
    object.__setattr__(late.ranks[0], "end", 4e9)
    assert judge._day(late, limits, early).year == 2096
    late.job["submitted"] = 4e9 - 20 * HOUR_S  # of the next day only by the node's clock
    assert judge._day(late, limits, early) == datetime.date(2096, 10, 1)
    late.job["submitted"] = 1.7e9
    assert judge._day(late, limits, early).year == 2096
    object.__setattr__(late.ranks[0], "end", 1e300)
    assert judge._day(late, limits, early) == datetime.date.max
