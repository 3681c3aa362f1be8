"""judge(): which figure decides, what stands without some of the nodes, and what is waived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Record, Void
from fixtures.thresholds.loader import Thresholds, Waiver
from fixtures.thresholds.spread import Spread
from fixtures.verdict import host_load, recorded, tuning_variables
from fixtures.verdict import judge as judging
from fixtures.verdict.causes import NEXT_STEP, Cause
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.support import absent
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, row, state

pytestmark = pytest.mark.cpu

TWO = ("worker0", "worker1")
TODAY = date(2030, 3, 15)
FACTS = {"model": "H200 SXM"}
BELOW = row(fail_below=80)


def thresholds(*waivers: Waiver) -> Any:
    """Limits with these waivers and one class of spread."""
    spread = {"gemm": Spread(delta=0.08, device_sigma=0.018, run_sigma=0.02, source="x")}
    held: Any = SimpleNamespace(
        waivers=waivers, cluster=None, spread=spread, tails={}, compared_criteria=1
    )
    held.waiver = lambda key, node, today: Thresholds.waiver(held, key, node, today)
    return held


def judged(
    of: Any, found: Record | None, nodes: tuple[str, ...] = ("worker0",), devices: int = 2,
    waivers: tuple[Waiver, ...] = (), **given: Any,
) -> Verdict:  # fmt: skip
    case = made.case(of, nodes, devices, record=found, **{"facts": FACTS} | given)
    return judge(case, thresholds(*waivers), today=TODAY)


def ranks(*values: float, node: str = "worker0", first: int = 0, **more: Any) -> list[Any]:
    return [
        rank(first + k, measured("rate", v, v, **more), node=node) for k, v in enumerate(values)
    ]


def pair(first: tuple[float, ...], second: tuple[float, ...], **given: Any) -> Record:
    """A record of two nodes."""
    both = [*ranks(*first), *ranks(*second, node="worker1", first=len(first))]
    return record(*both, placement="worker0--worker1", **given)


# --- what is wrong costs one verdict


def test_a_broken_record_is_told_with_its_error():
    found = record(*ranks(100, 100))
    broken = judged(criterion(BELOW), found, facts=None)
    assert broken.outcome is Outcome.NOT_MEASURED
    assert broken.reason.startswith("the record is broken: rate: TypeError: ")
    assert (broken.cause, broken.cause_nodes) == (Cause.RECORD, ["worker0"])
    assert broken.record == "own@worker0.json"
    assert broken.next_step != ""
    both = judged(criterion(BELOW, per="pair"), pair((100,), (100,)), TWO, facts=None)
    assert both.cause_nodes == []
    absent = judged(criterion(BELOW), None, missing=3)
    assert (absent.record, absent.cause) == (None, Cause.RECORD)


def test_a_missing_record_says_what_was_found_out():
    plain = judged(criterion(BELOW), None)
    assert plain.reason == "not run: no record"
    assert (plain.job, plain.attempt, plain.notes) == (None, 1, [])
    missing = {
        "kind": "died", "reason": "signal 9", "next_step": "look", "job": "7", "attempt": 2,
        "first_error": "Xid 79",
    }  # fmt: skip
    said = judged(criterion(BELOW), None, missing=missing)
    assert said.reason == "died: signal 9"
    assert (said.job, said.attempt, said.next_step) == ("7", 2, "look")
    assert said.notes == ["first error: Xid 79"]


def test_a_verdict_has_the_job_and_the_attempt_of_its_record():
    found = replace(record(*ranks(100, 90)), attempt=3)
    good = judged(criterion(BELOW), found)
    assert (good.outcome, good.value, good.job, good.attempt) == (Outcome.PASS, 90, "42", 3)
    assert (good.next_step, good.title, good.unit) == ("", "x", "GB/s")
    assert judged(criterion(BELOW), replace(found, job={})).job is None
    assert judged(criterion(BELOW), None, recorded=True).limit == "recorded, not judged"
    assert judged(criterion(BELOW), None).limit == ""


def test_nodes_whose_part_does_not_count_say_why():
    found = pair((100, 100), (100, 100)).without({"worker0": Void("worker0: torn", "record")})
    gone = judged(criterion(BELOW), found)
    assert (gone.reason, gone.cause) == ("worker0: torn", Cause.RECORD)
    assert gone.cause_nodes == ["worker0"]
    other = judged(criterion(BELOW), found, ("worker5",))
    assert other.reason == "not measured on worker5, only on worker1"
    assert (other.cause, other.cause_nodes) == (Cause.NODE, ["worker5"])
    assert judged(criterion(BELOW), found, ("worker1",)).ok
    without = judged(criterion(BELOW, metric="none"), found, ("worker1",))
    assert without.reason == "the record holds no none"


def test_of_several_parts_that_do_not_count_each_is_charged_by_its_own_cause():
    found = pair((100, 100), (100, 100))
    torn, other = Void("worker1: torn"), Void("worker1: H100", Cause.MODEL)
    new = Void("worker0: new", Cause.REPLACED)
    for void, cause, nodes in (
        ({"worker0": new, "worker1": torn}, Cause.RECORD, ["worker1"]),
        ({"worker0": new, "worker1": other}, Cause.MODEL, ["worker1"]),
        ({"worker0": Void("torn"), "worker1": other}, Cause.RECORD, ["worker0", "worker1"]),
        ({"worker0": new, "worker1": new}, Cause.REPLACED, ["worker0", "worker1"]),
    ):
        gone = judged(criterion(BELOW, per="pair"), found.without(void), TWO)
        assert (gone.outcome, gone.cause, gone.cause_nodes) == (Outcome.NOT_MEASURED, cause, nodes)


def test_an_invalid_measurement_lies_in_its_node_or_in_none():
    short = judged(criterion(BELOW), record(*ranks(100)))
    assert (short.cause, short.cause_nodes) == (Cause.NODE, ["worker0"])
    assert "measured on 1 of 2 devices" in short.reason
    unit = judged(criterion(BELOW, measured_unit="us"), record(*ranks(100, 100)))
    assert (unit.cause, unit.cause_nodes) == (Cause.RECORD, ["worker0"])
    of_two = judged(criterion(BELOW, measured_unit="us", per="pair"), pair((1,), (1,)), TWO)
    assert of_two.cause_nodes == []
    check = judged(criterion(BELOW, valid={"overlap": (1, None)}), record(*ranks(100, 100)))
    assert (check.cause, check.cause_nodes) == (Cause.MEASUREMENT, [])
    limit = judged(criterion(row(fail_below=1, model="L40S")), record(*ranks(100, 100)))
    assert limit.reason.startswith("no limit or ceiling: ")
    assert limit.cause is Cause.LIMIT


# --- what is judged by what


def test_each_statistic_is_judged_by_its_own_rule():
    value = criterion(row(equals=8), statistic="value", unit="GPUs")
    assert judged(value, record(rank(0, state(8)), rank(1, state(8)))).ok
    assert judged(value, record(rank(0, state(8)), rank(1, state(7)))).value == 7
    alike = criterion(row(fail_above=0), statistic="alike")
    assert judged(alike, record(rank(0, state("a")), rank(1, state("b")))).value == 1
    spread = criterion(row(fail_above=10), statistic="spread")
    found = judged(spread, record(*ranks(100, 95)))
    assert found.value == pytest.approx(100 * 5 / 97.5)
    assert found.worst is not None
    assert found.worst["gpu"] == 1, "the slowest"
    assert found.ceiling is None
    sizes = [measured("rate", 10.0 * k, at={"size": k}) for k in (1, 2, 3)]
    dip = criterion(row(fail_above=1), statistic="dip")
    assert judged(dip, record(rank(0, *sizes)), devices=1).value == 0
    link = criterion(row(fail_below=80), over="links")
    ends = [rank(k, measured("rate", 100 - 30 * k, at={"to": 1 - k})) for k in (0, 1)]
    slow = judged(link, record(*ends))
    assert (slow.outcome, slow.value) == (Outcome.FAIL, 70)
    assert "only the link between gpu0 and gpu1" in slow.next_step
    assert "measured on 0 of 2 links" in judged(link, record(*ranks(100, 100))).reason


def test_a_value_that_is_not_known_is_not_judged():
    of = criterion(row(fail_above=0), statistic="alike")
    silent = rank(1, absent(Kind.UNKNOWN, "rate", "no such file"))
    assert "no rate: no such file" in judged(of, record(rank(0, state("a")), silent)).reason
    mute = judged(of, record(rank(0, state("a")), rank(1, state(None))))
    assert mute.reason == "rate: a value is missing"
    least = rank(1, state("a"), absent(Kind.LOWER_BOUND, "rate"))
    assert "a lower bound" in judged(of, record(rank(0, state("a")), least)).reason
    checked = criterion(row(equals=8), statistic="value", valid={"passes": (1, None)})
    without = judged(checked, record(rank(0, state(8)), rank(1, state(8))))
    assert "passes was not recorded" in without.reason


def test_what_is_only_recorded_has_its_value_and_no_margin():
    found = judged(criterion(row(recorded="no figure")), record(*ranks(100, 90)))
    assert (found.outcome, found.value, found.margin) == (Outcome.RECORDED, 90, None)
    assert found.reason == "no figure"
    failing = judged(criterion(BELOW), record(*ranks(100, 70)))
    assert failing.margin == pytest.approx(-0.125)


def test_over_ranks_one_figure_is_judged_and_all_must_have_measured_alike():
    of = criterion(BELOW, over="ranks")
    good = judged(of, record(*ranks(100, 80)))
    assert good.value == pytest.approx(800 / 9)
    uneven = record(rank(0, measured("rate", 1, 1)), rank(1, measured("rate", 1)))
    said = judged(of, uneven)
    assert said.reason == "ranks have 1 to 2 samples of the same launches"
    assert said.cause is Cause.RECORD
    rounds = record(rank(0, measured("rate", 1, rounds=[[1]])), rank(1, measured("rate", 1)))
    assert judged(of, rounds).reason == "ranks measured different numbers of rounds"
    twice = record(*ranks(100, 80, rounds=[[100.0, 100.0]]))
    assert judged(of, twice).value == pytest.approx((800 / 9 + 100) / 2)


def test_the_ceiling_is_that_of_a_rate_and_not_of_a_spread():
    assert judged(criterion(BELOW, ceiling=200.0), record(*ranks(100, 90))).ceiling == 200
    above = judged(criterion(BELOW, ceiling=95.0), record(*ranks(100, 90)))
    assert "above the physical ceiling of 95" in above.reason
    spread = criterion(row(fail_above=10), statistic="spread", ceiling=2.0)
    wide = judged(spread, record(*ranks(100, 95)))
    assert (wide.outcome, wide.ceiling) == (Outcome.PASS, None)


def test_only_what_is_recorded_is_told_apart_by_the_shape_of_the_measurement(monkeypatch):
    found = record(*ranks(100, 90))
    both = made.points(found)
    shapes = iter([{"8x8": both, "4x4": both}, {"": both}])
    monkeypatch.setattr(recorded, "by_shape", lambda of, points: next(shapes))
    noted = judged(criterion(row(recorded="no figure")), found)
    assert noted.notes == ["at 8x8", "at 4x4: 90 GB/s"]
    assert judged(criterion(BELOW), found).notes == []
    monkeypatch.setattr(recorded, "by_shape", lambda of, points: {"": points})
    assert judged(criterion(row(recorded="no figure")), found).notes == []


def test_a_verdict_on_a_record_is_explained_by_settings_and_load(monkeypatch):
    explained: list[str] = []
    for module in (tuning_variables, host_load):
        monkeypatch.setattr(
            module, "explain",
            lambda verdict, case, record, name=module.__name__: explained.append(name) or verdict,
        )  # fmt: skip
    judged(criterion(BELOW), None)
    assert explained == []
    judged(criterion(BELOW), record(*ranks(100, 90)))
    assert explained == ["fixtures.verdict.tuning_variables", "fixtures.verdict.host_load"]


# --- some of the nodes


def test_without_nodes_that_are_not_at_fault_nothing_is_to_be_repaired():
    """One node's job was preempted: the row over both of them needs another run."""
    case, whole = (
        made.case(criterion(BELOW, per="cluster"), TWO),
        made.verdict(outcome=Outcome.PASS),
    )

    def next_step(**line: str) -> str:
        found = record(*ranks(100, 100))
        found.job["without"] = {"worker1": {"why": "it has no record", **line}} if line else {}
        verdict = judging._void_if_reduced(whole, case, found)
        assert (verdict.cause, verdict.cause_nodes) == (Cause.OTHER_NODE, [])
        return verdict.next_step

    assert next_step(cause="interrupted") == NEXT_STEP[Cause.INTERRUPTED]
    assert next_step(cause="scheduler") == NEXT_STEP[Cause.SCHEDULER]
    for at_fault in ({}, {"cause": "node"}, {"follows_from": "gemm@worker1"}):
        assert next_step(**at_fault) == ""


def reduced(
    outcome: Outcome,
    void: Mapping[str, Void] | None = None,
    cause: Cause | None = None,
    **given: Any,
) -> Verdict:
    """A verdict over three nodes, of which one or two are in the record."""
    nodes = ("worker0", "worker1", "worker2")
    found = pair((100,), (100,)) if void is None else pair((100,), (100,)).without(void)
    case = made.case(criterion(BELOW, **given), nodes, 3)
    verdict = made.verdict(outcome=outcome, reason="", cause=cause)
    return judging._void_if_reduced(verdict, case, found)


def test_what_passes_on_some_of_the_nodes_is_not_measured():
    passed = reduced(Outcome.PASS, per="cluster")
    assert passed.outcome is Outcome.NOT_MEASURED
    assert passed.reason == "passes on 2 of 3 nodes; without worker2"
    assert (passed.cause, passed.cause_nodes) == (Cause.OTHER_NODE, [])
    assert reduced(Outcome.RECORDED, per="cluster").reason.startswith("measured on 2 of 3 nodes;")
    silent = reduced(Outcome.NOT_MEASURED, per="cluster", cause=Cause.SUITE)
    assert silent.reason == "measured on 2 of 3 nodes; without worker2", "it had no partner"
    assert silent.cause is Cause.OTHER_NODE
    torn = reduced(Outcome.NOT_MEASURED, per="cluster", cause=Cause.RECORD)
    assert (torn.reason, torn.cause) == ("measured on 2 of 3 nodes", Cause.RECORD)
    failed = reduced(Outcome.FAIL, per="cluster")
    assert (failed.outcome, failed.reason) == (Outcome.FAIL, "measured on 2 of 3 nodes")
    torn = reduced(Outcome.PASS, {"worker1": Void("worker1: torn")}, per="cluster")
    assert torn.reason == "passes on 1 of 3 nodes; without worker1, worker2; worker1: torn"
    assert (torn.cause, torn.cause_nodes) == (Cause.RECORD, ["worker1"])
    assert reduced(Outcome.PASS).outcome is Outcome.PASS, "of itself a node measured all"
    alone = made.case(criterion(BELOW), record_nodes=TWO)
    passed = judging._void_if_reduced(
        made.verdict(outcome=Outcome.PASS), alone, record(*ranks(100, 100))
    )
    assert passed.outcome is Outcome.NOT_MEASURED, "it was left alone"
    full = made.case(criterion(BELOW, per="pair"), TWO)
    whole = made.verdict(outcome=Outcome.PASS)
    assert judging._void_if_reduced(whole, full, pair((1,), (1,))) is whole


# --- waivers


def waiver(node: str, expires: date = TODAY) -> Waiver:
    return Waiver(criterion="own.rate", node=node, owner="A", reason="RMA", expires=expires)


def test_a_failure_is_waived_until_its_waiver_ends():
    slow = record(*ranks(100, 70))
    waived = judged(criterion(BELOW), slow, waivers=(waiver("worker0"),))
    assert waived.outcome is Outcome.WAIVED
    assert waived.reason == "waived by A, until 2030-03-15: RMA"
    expired = judged(criterion(BELOW), slow, waivers=(waiver("worker0", date(2030, 3, 14)),))
    assert expired.outcome is Outcome.FAIL
    assert expired.reason == "waiver expired (A, until 2030-03-14: RMA)"
    assert judged(criterion(BELOW), slow, waivers=(waiver("worker1"),)).reason == ""
    good = judged(criterion(BELOW), record(*ranks(100, 90)), waivers=(waiver("worker0"),))
    assert (good.outcome, good.reason) == (Outcome.PASS, "")


def test_a_nodes_waiver_covers_a_row_over_several_only_where_it_alone_is_at_fault():
    of = criterion(BELOW, per="pair")
    held = (waiver("worker1"),)
    one = judged(of, pair((100, 100), (100, 70)), TWO, 4, held)
    assert one.outcome is Outcome.WAIVED
    both = judged(of, pair((75, 100), (100, 70)), TWO, 4, held)
    assert both.outcome is Outcome.FAIL
    assert both.reason == (
        "worker1 is waived (A, until 2030-03-15: RMA), but the row fails without worker1 too"
    )
    other = judged(of, pair((70, 100), (100, 100)), TWO, 4, held)
    assert (other.outcome, other.reason) == (Outcome.FAIL, "")
    row_itself = judged(of, pair((75, 100), (100, 70)), TWO, 4, (waiver("worker0--worker1"),))
    assert row_itself.outcome is Outcome.WAIVED


def test_waivers_of_all_nodes_at_fault_cover_an_exact_row_and_of_some_take_these_out():
    nodes = ("worker0", "worker1", "worker2")
    of = criterion(row(fail_above=0), per="cluster", statistic="value", over="devices")
    found = record(
        *(rank(k, state(v), node=nodes[k // 2]) for k, v in enumerate((0, 3, 2, 0, 0, 0)))
    )
    for waived, outcome, at_fault, says in (
        ((), Outcome.FAIL, ["worker0", "worker1"], ""),
        (("worker2",), Outcome.FAIL, ["worker0", "worker1"], ""),
        (("worker1",), Outcome.FAIL, ["worker0"], "the row fails without worker1 too"),
        (("worker0",), Outcome.FAIL, ["worker1"], "the row fails without worker0 too"),
        (("worker0", "worker1"), Outcome.WAIVED, ["worker0", "worker1"], "waived by A"),
    ):
        verdict = judged(of, found, nodes, 6, tuple(map(waiver, waived)))
        assert (verdict.outcome, verdict.cause_nodes) == (outcome, at_fault), waived
        assert says in verdict.reason
        assert bool(verdict.reason) is bool(says)


def test_a_row_does_not_fail_without_a_node_where_nothing_is_left_to_judge():
    of = criterion(BELOW, per="pair")

    def fails(found: Record, nodes: tuple[str, ...] = TWO, without: str = "worker1") -> bool:
        case = made.case(of, nodes, 2 * len(nodes), facts=FACTS, record=found)
        return judging._fails_without([without], case, found, thresholds())

    assert fails(pair((70, 100), (100, 70))) is True
    assert fails(pair((90, 100), (100, 70))) is False
    assert fails(pair((70,), (100, 70))) is False, "one of two devices is not a measurement"
    assert fails(record(*ranks(70, 70)), ("worker0",), "worker0") is False
    silent = record(rank(0), *ranks(100, 70, node="worker1", first=1))
    assert fails(silent) is False
    of = criterion(BELOW, per="pair", measured_unit=None)
    assert fails(silent) is False
