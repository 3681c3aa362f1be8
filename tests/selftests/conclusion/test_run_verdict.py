"""conclude(): the verdict on a whole run, its counts and its exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.conclusion.run_verdict import (
    RunVerdict,
    conclude,
    demonstration_note,
    demonstration_text,
    judged_of,
    taken_away_lines,
)
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import judged_runs

pytestmark = pytest.mark.cpu
quick = settings(deadline=None, max_examples=60)


# --- the whole run


def verdicts(**outcomes: int) -> list[Verdict]:
    return [
        Verdict(criterion="c", title="t", subject=f"{name}{k}", outcome=Outcome(name))
        for name, count in outcomes.items()
        for k in range(count)
    ]


def concluded(planned: int, /, *found: Verdict, **changed: Any) -> RunVerdict:
    return judged_runs.concluded(found, planned=planned, **changed)


def test_a_run_in_which_everything_passed_is_accepted():
    last = concluded(4, *verdicts(PASS=1, WAIVED=1, NOT_APPLICABLE=1, RECORDED=1))
    assert (last.verdict, last.exit_status) == ("ACCEPTED", 0)
    assert last.counts == {
        "planned": 4, "pass": 1, "fail": 0, "not_measured": 0, "not_applicable": 1, "waived": 1,
        "recorded": 1,
    }  # fmt: skip


SHADES: list[tuple[str, int, dict[str, Any]]] = [
    ("REJECTED", 1, {"fail": True}),
    ("INCOMPLETE", 2, {"unmeasured": True}),
    ("DEMONSTRATION", 0, {"demonstration": True}),
    ("PARTIAL", 0, {"whole_scope": False}),
    ("ACCEPTED", 0, {}),
]


@pytest.mark.parametrize("first", range(len(SHADES)))
def test_the_verdict_is_the_first_that_holds_of_rejected_to_accepted(first):
    name, status, _ = SHADES[first]
    changed: dict[str, Any] = {}
    for _, _, more in SHADES[first:]:
        changed |= more
    found = verdicts(
        PASS=2, FAIL=int(changed.pop("fail", False)),
        NOT_MEASURED=int(changed.pop("unmeasured", False)),
    )  # fmt: skip
    last = concluded(len(found), *found, **changed)
    assert (last.verdict, last.exit_status) == (name, status)


def test_a_planned_verdict_that_never_fell_is_not_measured():
    last = concluded(3, *verdicts(PASS=2))
    assert (last.verdict, last.exit_status) == ("INCOMPLETE", 2)
    assert last.counts["not_measured"] == 1
    assert "2 of 3 judged" in last.reasons


def test_a_cluster_without_a_contract_is_incomplete():
    last = concluded(1, *verdicts(PASS=1), ordered=False)
    assert last.verdict == "INCOMPLETE"
    assert "fill in `cluster:`" in last.reasons[0]


def test_local_without_a_contract_is_partial_at_most():
    last = concluded(1, *verdicts(PASS=1), ordered=False, origin="local")
    assert (last.verdict, last.exit_status) == ("PARTIAL", 0)


def test_records_by_hand_are_partial_at_most():
    assert concluded(1, *verdicts(PASS=1), origin="by-hand").verdict == "PARTIAL"


@pytest.mark.parametrize("found", [[], verdicts(NOT_APPLICABLE=2)])
def test_a_run_that_measured_nothing_is_incomplete(found):
    last = concluded(len(found), *found)
    assert (last.verdict, last.exit_status) == ("INCOMPLETE", 2)
    assert "nothing was measured" in last.reasons


def test_an_interrupted_run_is_incomplete_or_rejected():
    assert concluded(1, *verdicts(PASS=1), interrupted="SIGTERM").verdict == "INCOMPLETE"
    assert concluded(1, *verdicts(FAIL=1), interrupted="SIGTERM").verdict == "REJECTED"


@quick
@given(
    outcomes=st.lists(st.sampled_from(Outcome), max_size=6), never=st.integers(0, 2),
    whole=st.booleans(), ordered=st.booleans(), demonstration=st.booleans(),
    origin=st.sampled_from(["cluster", "sandbox", "local", "by-hand"]),
)  # fmt: skip
def test_only_a_whole_measured_run_without_failures_exits_with_0(
    outcomes, never, whole, ordered, demonstration, origin
):
    found = [v for outcome in outcomes for v in verdicts(**{outcome.value: 1})]
    last = conclude(
        found, planned=len(found) + never, whole_scope=whole, ordered=ordered, origin=origin,
        demonstration=demonstration,
    )  # fmt: skip
    counts = last.counts
    assert sum(counts.values()) - counts["planned"] == counts["planned"]
    good = not never and not {Outcome.FAIL, Outcome.NOT_MEASURED} & set(outcomes)
    assert last.exit_status != 0 or (good and {Outcome.PASS, Outcome.WAIVED} & set(outcomes))
    if last.verdict == "ACCEPTED":
        assert whole
        assert ordered
        assert not demonstration


def test_a_verdict_survives_json():
    verdict = verdicts(FAIL=1)[0]
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_why_a_run_is_only_a_part_is_said():
    (row,) = verdicts(PASS=1)
    for changed, why in (
        ({"origin": "by-hand", "whole_scope": False}, "by-hand records"),
        ({"missing_nodes": "n3 is missing", "whole_scope": False}, "n3 is missing"),
        ({"whole_scope": False}, "a sub-selection of the criteria"),
        ({"origin": "local", "ordered": False}, "no contract"),
    ):
        last = concluded(1, row, **changed)
        assert (last.verdict, last.reasons) == ("PARTIAL", [f"{why}; everything in it passed"])


def test_a_run_that_only_records_says_so():
    last = concluded(2, *verdicts(RECORDED=2))
    assert last.verdict == "INCOMPLETE"
    assert "recorded only" in last.reasons[0]


# --- demonstrations


def test_a_demonstration_says_what_it_ran_on():
    for origin, on in (("sandbox", "virtual nodes"), ("local", "a CPU or emulated devices")):
        text = demonstration_text(origin)
        assert text.startswith(f"Demonstration on {on}")
        assert len(text) <= 80
        assert concluded(1, *verdicts(PASS=1), demonstration=True, origin=origin).reasons == [text]


def test_a_demonstration_that_failed_is_still_noted_as_one():
    basis = {"demonstration": True, "origin": "sandbox"}
    text = demonstration_text("sandbox")
    for verdict, note in (
        ({"basis": basis, "reasons": ["1 of 2 checks failed"]}, text),
        ({"basis": basis, "reasons": [text]}, ""), ({"basis": basis, "reasons": None}, text),
        ({"basis": {**basis, "demonstration": False}}, ""), ({"basis": None}, ""),
    ):  # fmt: skip
        assert demonstration_note(verdict) == note


# --- an ordered MTBF


def test_the_plan_of_a_burn_in_accepts_goes_on_or_rejects():
    def burnt_in(decision: str, *found: Verdict) -> RunVerdict:
        mtbf = {"decision": decision, "ordered_days": 30, "sentence": "2 failures in 3 days"}
        return concluded(len(found), *found, mtbf=mtbf)

    passed, failed = verdicts(PASS=1), verdicts(PASS=1, FAIL=1)
    text = "ordered is an MTBF of 30 days; 2 failures in 3 days"
    for decision, found, verdict, reasons in (
        ("accept", passed, ("ACCEPTED", 0), []),
        ("go on", passed, ("INCOMPLETE", 2), [f"{text}: the burn-in goes on"]),
        ("reject", passed, ("REJECTED", 1), [f"{text}: rejected"]),
        ("reject", failed, ("REJECTED", 1), ["1 of 2 checks failed", f"{text}: rejected"]),
    ):
        last = burnt_in(decision, *found)
        assert ((last.verdict, last.exit_status), last.reasons) == (verdict, reasons)
        assert last.basis["mtbf"]["decision"] == decision
    assert "mtbf" not in concluded(1, *passed).basis


# --- what was not measured


def lost(reason: str, *nodes: str, cause: str = Cause.NODE.value) -> Verdict:
    return Verdict(
        criterion="c", title="t", subject="s", outcome=Outcome.NOT_MEASURED, reason=reason,
        cause=cause, cause_nodes=list(nodes),
    )  # fmt: skip


def test_judged_are_rows_that_passed_failed_or_are_waived():
    counts = {"pass": 1, "fail": 2, "waived": 4, "recorded": 8, "not_applicable": 16}
    assert judged_of(counts) == (7, 7)
    assert judged_of({**counts, "not_measured": 32}) == (7, 39)


def test_rows_lost_to_one_node_or_cause_are_one_line_the_largest_first():
    rows = [
        lost("no driver", "n0", "n1"), lost("went down", "n0"), lost("went down", "n0"),
        lost("hung", "n0"), lost("no limit", "n2", cause=Cause.LIMIT.value), lost("why", cause=""),
        *verdicts(PASS=1, FAIL=1),
    ]  # fmt: skip
    assert concluded(len(rows), *rows).reasons[1:] == [
        "2 of 8 judged", "n0: 3 not measured: went down", "node: 1 not measured: no driver",
        "limit: 1 not measured: no limit", "other: 1 not measured: why",
    ]  # fmt: skip


def test_an_interruption_explains_the_rows_that_it_cost():
    rows = [lost("stopped", cause=""), lost("stopped", cause=Cause.INTERRUPTED.value),
            lost("went down", "n0"), *verdicts(PASS=1)]  # fmt: skip
    found = concluded(4, *rows, interrupted="SIGTERM").reasons
    assert found == ["SIGTERM", "1 of 4 judged", "n0: 1 not measured: went down"]
    assert len(concluded(4, *rows).reasons) == 4, "without it they need a line each"


def test_six_causes_are_named_and_long_reasons_cut():
    for count, more in ((6, []), (7, ["and 1 more causes, see node-reasons.txt"])):
        rows = [lost("down", f"n{k}") for k in range(count)]
        lines = concluded(count, *rows).reasons[1:]
        assert [line for line in lines if line.endswith("not measured: down")] == lines[:6]
        assert [line for line in lines[6:] if "causes" in line] == more
    for length, shown in ((160, "x" * 160), (161, "x" * 157 + "...")):
        assert concluded(1, lost("x" * length, "n0")).reasons[1] == f"n0: 1 not measured: {shown}"


def test_a_run_that_differs_from_its_order_is_not_accepted():
    differs = ["run.json states another order"]
    for rows, expected in ((verdicts(PASS=1), "INCOMPLETE"), (verdicts(FAIL=1), "REJECTED")):
        found = concluded(1, *rows, order=differs)
        assert (found.verdict, found.basis["order"]) == (expected, differs)
        assert differs[0] in found.reasons
    assert "order" not in concluded(1, *verdicts(PASS=1)).basis


def test_what_a_layer_of_the_limits_takes_away_is_said_and_decides_nothing():
    said = {"allreduce.node": "not judged"}
    rows = [*verdicts(PASS=1), *verdicts(RECORDED=1)]
    assert taken_away_lines(rows, said) == []
    rows[1] = replace(rows[1], criterion="allreduce.node.1GiB")
    assert taken_away_lines(rows, said) == ["not judged"]
    rows[1] = replace(rows[1], outcome=Outcome.NOT_APPLICABLE)
    assert taken_away_lines(rows, said) == ["not judged"]
    assert taken_away_lines(rows, {}) == []
    found = concluded(2, *rows, taken_away=["not judged"])
    assert (found.verdict, found.reasons) == ("ACCEPTED", ["not judged"])
    assert found.basis["taken_away"] == ["not judged"]
    assert "taken_away" not in concluded(1, *verdicts(PASS=1)).basis
