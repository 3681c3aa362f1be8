"""Each kind of absence has the outcome, the cause and the accused of the table, wherever it is."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.absence import JobKind, Kind
from fixtures.records.model import Record, Void
from fixtures.run.judge_item import judge_item
from fixtures.verdict.absence import (
    TABLE,
    Accused,
    Told,
    explain,
    next_step_of,
    of_missing,
    took_no_part,
    without_record,
)
from fixtures.verdict.causes import IN_NODE, Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import planted
from tests.selftests.support import absent
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, resolved, state

pytestmark = pytest.mark.cpu

TWO = ("worker0", "worker1")
GREEN = (Outcome.PASS, Outcome.RECORDED)


def told(
    *ranks: Any, nodes: tuple[str, ...] = ("worker0",), given: int = 0, recorded: bool = False,
    devices: int = 2, **of: Any,
) -> Told:  # fmt: skip
    case = made.case(criterion(**of), nodes, devices)
    return explain(made.verdict(cause=""), case, record(*ranks), given=given, recorded=recorded)


def said(*ranks: Any, **more: Any) -> Verdict:
    found = told(*ranks, **more).verdict
    assert found is not None
    return found


# --- the table


def test_the_table_has_a_row_for_every_kind_and_no_node_can_release_itself():
    assert set(TABLE) == {*Kind, *JobKind}
    for kind, ruling in TABLE.items():
        assert next_step_of(kind)
        assert not ruling.releases, "the word of a node takes nothing out of the order"
        assert (ruling.accused is Accused.NO_NODE) or ruling.cause in IN_NODE
        assert ruling.outcome is Outcome.NOT_MEASURED
    lacking = [kind for kind, row in TABLE.items() if row.not_owed is not Outcome.NOT_MEASURED]
    assert lacking == [Kind.NOT_THERE]


# --- what is said


def test_without_a_value_and_a_reason_the_record_holds_nothing():
    one = said(rank(0))
    assert (one.reason, one.cause, one.cause_nodes) == (
        "the record holds no rate", Cause.NODE, ["worker0"],
    )  # fmt: skip
    several = said(rank(0), rank(2, node="worker1"), nodes=TWO, at={"size": 1024})
    assert (several.reason, several.cause_nodes) == ("the record holds no rate at size=1024", [])
    assert told(rank(0), given=1) == Told(None, told(rank(0), given=1).case)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.FAULT, "worker0 gpu0: no rate at size=8: why"),
        (Kind.LOWER_BOUND, "worker0 gpu0: rate at size=8 is a lower bound: why"),
        (Kind.SILENT, "worker0 gpu0: no rate at size=8: why"),
        (Kind.NO_TIME, "rate at size=8: why"),
        (Kind.GUEST, "why"),
        (Kind.UNKNOWN, "worker0 gpu0: no rate at size=8: why"),
        (Kind.NOT_OFFERED, "the driver or platform does not give rate at size=8: why"),
        (Kind.NOT_THERE, "worker0 gpu0 has no rate at size=8: why"),
    ],
)
def test_the_reason_names_what_is_missing_and_where(kind, text):
    assert said(rank(0, absent(kind, "rate", size=8)), at={"size": 8}).reason == text


def test_the_driver_is_named_and_the_values_that_there_are_counted():
    found = record(rank(0, absent(Kind.NOT_OFFERED, "rate")))
    found.provenance["driver"] = "580.1"
    case = made.case(criterion())
    one = explain(made.verdict(), case, found, given=1, recorded=False).verdict
    assert one is not None
    assert one.reason == "driver 580.1 does not give rate: why; measured 1 value of 2 devices"
    assert "not_applicable" in one.next_step


def test_what_accuses_a_node_is_said_before_what_accuses_nobody():
    found = said(
        rank(0, absent(Kind.NOT_OFFERED, "rate")), rank(1, absent(Kind.FAULT, "rate", "GpuIsLost"))
    )
    assert found.reason == "worker0 gpu1: no rate: GpuIsLost"
    assert (found.cause, found.cause_nodes) == (Cause.NODE, ["worker0"])


def test_only_ranks_of_the_subject_are_asked():
    gap = absent(Kind.FAULT, "rate")
    other = rank(2, gap, node="other")
    assert said(rank(0), other).reason == "the record holds no rate"
    rail = made.case(criterion(per="rail"), subject="rail0")
    found = record(rank(0), rank(1, gap))
    unsaid = explain(made.verdict(), rail, found, given=0, recorded=False).verdict
    assert unsaid is not None
    assert unsaid.reason == "the record holds no rate", "rank 1 is of rail1"
    assert said(rank(0), rank(1, absent(Kind.FAULT, "other"))).reason == "the record holds no rate"
    voided = record(rank(0), other).without({"other": Void("torn")})
    assert voided.absences == {}


def test_a_value_that_all_ranks_lack_is_not_owed_where_no_order_asks_for_it():
    both = rank(0, absent(Kind.NOT_THERE, "rate")), rank(1, absent(Kind.NOT_THERE, "rate"))
    assert said(*both, recorded=True).reason == "not available here: why"
    assert said(*both, recorded=True).outcome is Outcome.NOT_APPLICABLE
    assert said(*both).cause is Cause.DRIVER, "an order asks for it"
    half = said(both[0], rank(1), recorded=True)
    assert (half.outcome, half.cause) == (Outcome.NOT_MEASURED, Cause.DRIVER)
    assert said(*both, nodes=TWO, recorded=True).outcome is Outcome.NOT_MEASURED
    # Of NICs only the first rank of a node speaks.
    assert (
        said(both[0], rank(1), statistic="value", over="nics", recorded=True).outcome
        is Outcome.NOT_APPLICABLE
    )


def test_a_node_may_lack_a_value_where_each_node_of_the_row_says_so():
    here = rank(0, absent(Kind.NOT_THERE, "rate", "no such file"))
    there = rank(1, absent(Kind.NOT_THERE, "rate", "only for root"), node="worker1")
    assert said(here, rank(1), may_lack=True).reason == "no such file"
    assert said(there, here, may_lack=True, nodes=TWO).reason == "no such file"
    silent = said(here, rank(1, node="worker1"), may_lack=True, nodes=TWO)
    assert silent.outcome is Outcome.NOT_MEASURED


def test_devices_that_have_no_value_are_not_counted_and_noted():
    silent = rank(1, absent(Kind.NOT_THERE, "rate", "no such port"))
    found = told(rank(0), silent, given=1, recorded=True)
    assert (found.verdict, found.case.devices) == (None, 1)
    assert found.notes == ["1 of 2 devices has none: no such port"]
    missing = told(rank(0), silent, given=1, recorded=True, devices=3)
    assert missing.case.devices == 3, "a rank is missing"
    assert missing.verdict is not None
    judged = told(rank(0), silent, given=1).verdict
    assert judged is not None
    assert (judged.outcome, judged.cause) == (Outcome.NOT_MEASURED, Cause.DRIVER)


def test_of_a_lower_bound_only_one_that_fails_already_is_judged():
    bound, exact = state(3), state(2)
    ranks = rank(0, bound, absent(Kind.LOWER_BOUND, "rate")), rank(1, exact)
    points = [(ranks[0], bound), (ranks[1], exact)]
    found = told(*ranks, given=2)
    assert found.exact(points, resolved("above", 2)) == points
    for limit in (resolved("above", 3), resolved("below", 9), resolved("equals", "x")):
        assert found.exact(points, limit) == points[1:]
    assert found.exact([(ranks[0], state("x"))], resolved("above", 2)) == []
    for kind in (Kind.NOT_THERE, Kind.SILENT):
        lacking = rank(0, bound, absent(kind, "rate"))
        assert found.exact([(lacking, bound)], resolved("above", 3)) == [(lacking, bound)]


def test_nothing_reported_counts_only_where_a_value_is_missing():
    silent = rank(1, absent(Kind.SILENT, "rate"))
    found = told(rank(0, measured("rate", 1)), silent, given=1)
    assert found.verdict is None
    assert found.silent is not None
    assert (found.silent.cause, found.silent.cause_nodes) == (Cause.SUITE, [])
    assert said(silent).cause is Cause.SUITE


def test_a_missing_record_has_the_words_and_the_job_of_its_line():
    line = {"kind": "rank died", "reason": "exit 1", "job": "7", "attempt": 2, "next_step": "look",
            "first_error": "boom"}  # fmt: skip
    found = without_record(made.verdict(), made.case(criterion(), missing=line))
    assert (found.reason, found.cause, found.cause_nodes) == (
        "rank died: exit 1", Cause.NODE, ["worker0"],
    )  # fmt: skip
    assert (found.job, found.attempt, found.next_step) == ("7", 2, "look")
    assert found.notes == ["first error: boom"]
    nothing = without_record(made.verdict(), made.case(criterion()))
    assert (nothing.reason, nothing.cause) == ("not run: no record", Cause.INTERRUPTED)


@pytest.mark.parametrize("kind", JobKind)
def test_a_missing_record_accuses_whom_the_table_says(kind):
    ruling = TABLE[kind]
    of_node = (ruling.cause, [] if ruling.accused is Accused.NO_NODE else ["worker0"])
    named = ruling.accused is Accused.NAMED_NODE
    of_one_of_two = (ruling.cause, ["worker1"]) if named else (Cause.OTHER_NODE, [])
    nobody = (Cause.OTHER_NODE, [])
    if ruling.accused is Accused.NO_NODE:
        of_one_of_two = nobody = (ruling.cause, [])
    assert of_missing({"kind": kind}, ["worker0"]) == of_node
    assert of_missing({"kind": kind, "placement": "worker0"}, ["worker0"]) == of_node
    assert of_missing({"kind": kind, "node": "worker1"}, TWO) == of_one_of_two
    for line in ({"node": "worker7"}, {"node": None}, {}):
        assert of_missing({"kind": kind, **line}, TWO) == nobody
    # A row of one node in a job over several.
    assert of_missing({"kind": kind, "placement": "cluster"}, ["worker0"]) == nobody
    assert of_missing({"kind": kind, "cause": "node", "cause_nodes": ["worker0"]}, TWO) == (
        Cause.NODE, ["worker0"],
    )  # fmt: skip


def test_a_row_carries_its_absence_and_what_it_follows_from():
    assert said(rank(0, absent(Kind.FAULT, "rate"))).absence == {"kind": "fault of the node"}
    line = {"kind": "rank died", "follows_from": "gemm@worker0"}
    found = without_record(made.verdict(), made.case(criterion(), missing=line))
    assert found.absence == line
    assert found.to_json()["absence"] == line
    assert "absence" not in made.verdict().to_json()
    for verdict in (found, made.verdict()):
        assert Verdict.from_json(verdict.to_json()) == verdict
        assert Verdict.of_row(verdict.to_json()) == verdict
        assert pickle.loads(pickle.dumps(verdict)) == verdict


def test_a_node_that_was_left_out_took_no_part_as_a_consequence():
    case = made.case(criterion(), ("worker1",))
    found = record(rank(0))
    alone = took_no_part(made.verdict(), case, found, "worker0")
    assert (alone.reason, alone.absence) == ("not measured on worker1, only on worker0", None)
    assert alone.cause_nodes == ["worker1"]
    found.job["without"] = {"worker1": {"why": "it is ill", "follows_from": "gemm@worker1"}}
    out = took_no_part(made.verdict(), case, found, "worker0")
    assert out.reason == "not measured on worker1, only on worker0; left out: it is ill"
    assert out.absence == {"kind": "left out", "follows_from": "gemm@worker1"}
    assert (out.cause, out.cause_nodes) == (Cause.NODE, ["worker1"])
    found.job["without"] = {"worker1": "torn"}
    assert took_no_part(made.verdict(), case, found, "worker0").absence is None


# --- every criterion


def healthy(key: str) -> tuple[planted.Case, Verdict] | None:
    """A record of a criterion on which all is well, with the verdict on it."""
    for case in itertools.chain(planted._made_up(key), planted._recorded(key)):
        limits, people, item, found = case
        verdict = judge_item(item, found, thresholds=limits, population=people)
        if verdict.outcome in GREEN:
            return case, verdict
    return None


def without(case: planted.Case, kinds: dict[int, Kind], *, said: bool = True) -> Record:
    """The record whose ranks lack the criterion's metric, each in its own way, and say so."""
    limits, _, item, found = case
    of = limits.criteria[item.criterion]
    ranks = []
    for r in found.ranks:
        kind = kinds.get(r.rank)
        left = [
            m for m in r.measurements
            if kind in (None, Kind.LOWER_BOUND) or m.metric != of.metric
            or any(m.at.get(name) != value for name, value in of.at.items())
        ]  # fmt: skip
        gap = [absent(kind, of.metric, **of.at)] if kind and said else []
        ranks.append(replace(r, measurements=left, absent=[*r.absent, *gap]))
    fields = {name: getattr(found, name) for name in Record.__dataclass_fields__}
    return Record(**{**fields, "ranks": ranks})


def reporting(case: planted.Case) -> list[Any]:
    """The ranks that report the criterion's metric for the row's subject."""
    limits, _, item, found = case
    of = limits.criteria[item.criterion]
    points = planted.points_of(of, found, item.nodes, item.subject)
    numbers = {r.rank for r, _ in points}
    return [r for r in found.ranks if r.rank in numbers]


def places(case: planted.Case) -> Iterator[tuple[str, list[Any]]]:
    ranks = reporting(case)
    yield "one rank", ranks[-1:]
    yield "all ranks", ranks
    nodes = {r.node for r in ranks}
    if len(nodes) > 1:
        yield "one node", [r for r in ranks if r.node == ranks[-1].node]


@pytest.fixture(scope="module")
def cases() -> dict[str, planted.Case]:
    found = {key: healthy(key) for key in planted.shipped().criteria}
    return {key: case for key, (case, _) in ((k, v) for k, v in found.items() if v is not None)}


def wrong(case: planted.Case, kinds: dict[int, Kind]) -> str:
    """What the table does not give of a record with these absences; "" for nothing."""
    limits, people, item, found = case
    verdict = judge_item(item, without(case, kinds), thresholds=limits, population=people)
    nodes = {r.rank: r.node for r in found.ranks}
    accused = {nodes[k] for k, v in kinds.items() if TABLE[v].accused is not Accused.NO_NODE}
    if not set(verdict.cause_nodes) <= accused:
        return f"accuses {verdict.cause_nodes}, the table {sorted(accused)}"
    if verdict.outcome in GREEN:
        of = limits.criteria[item.criterion]
        # What a rank did not report was not owed if without it nothing is missing.
        unsaid = without(case, kinds, said=False)
        owed_by_others = judge_item(item, unsaid, thresholds=limits, population=people)
        may_be = {Kind.SILENT} if owed_by_others.outcome in GREEN else set()
        may_be |= {Kind.NOT_THERE} if verdict.outcome is Outcome.RECORDED or of.may_lack else set()
        return "" if set(kinds.values()) <= may_be else f"{verdict.outcome} with {kinds}"
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        # Where a node may lack it, one of its ranks says so for the node.
        of_node = {Kind.SILENT} if limits.criteria[item.criterion].may_lack else set()
        named = set(kinds.values()) - of_node
        return "" if named == {Kind.NOT_THERE} else f"not applicable with {kinds}"
    causes = {TABLE[kind].cause for kind in kinds.values()}
    if verdict.outcome is not Outcome.NOT_MEASURED or verdict.cause not in causes:
        return f"{verdict.outcome} {verdict.cause}: {verdict.reason}"
    rulings = [TABLE[kind] for kind in kinds.values() if TABLE[kind].cause is verdict.cause]
    expected = accused if verdict.cause in IN_NODE else set()
    if set(verdict.cause_nodes) != expected or verdict.outcome is not rulings[0].outcome:
        return f"{verdict.cause} accuses {verdict.cause_nodes}, expected {sorted(expected)}"
    return ""


def test_each_kind_on_each_place_is_judged_by_the_table_for_every_criterion(cases):
    assert len(cases) > 250, len(cases)
    errors = [
        f"{key}: {kind} on {place}: {error}"
        for key, case in cases.items()
        for place, ranks in places(case)
        for kind in Kind
        if (error := wrong(case, {r.rank: kind for r in ranks}))
    ]
    assert errors == []


def test_no_mixture_of_values_and_absences_is_green_or_accuses_beyond_the_table(cases):
    rng = random.Random(24)
    errors = []
    for key, case in cases.items():
        ranks = reporting(case)
        for _ in range(3):
            chosen = rng.sample(ranks, rng.randint(1, len(ranks)))
            kinds = {r.rank: rng.choice(list(Kind)) for r in chosen}
            if error := wrong(case, kinds):
                errors.append(f"{key}: {kinds}: {error}")
    assert errors == []
