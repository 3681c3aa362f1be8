"""conclude(): the verdict on a whole run, its counts and its exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.conclusion.run_verdict import RunVerdict, conclude
from fixtures.verdict.model import Outcome, Verdict

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
    settled = {
        "whole_scope": True, "ordered": True, "origin": "cluster", "demonstration": False,
        **changed,
    }  # fmt: skip
    return conclude(list(found), planned=planned, **settled)


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
