"""Which series of samples are judged by their tail, and which verdicts it changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.thresholds.spread import Tail
from fixtures.verdict import tails
from fixtures.verdict.model import Outcome
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record

pytestmark = pytest.mark.cpu

TAIL = Tail(together=0.9, slow=0.8, share=0.1, source="x")
BURSTS = [10.0] * 16 + [5.0] * 4


def test_all_rounds_together_are_a_series_and_each_of_several_by_itself():
    m = measured("rate", 1, 2, rounds=[[3.0, 4.0]], ended=[7.0, 8.0])
    whole, first, second = tails.series_of(criterion(unit="us"), [(rank(0), m)])
    assert [s.samples for s in (whole, first, second)] == [[1, 2, 3, 4], [1, 2], [3, 4]]
    assert [s.which for s in (whole, first, second)] == ["", " in round 1 of 2", " in round 2 of 2"]
    assert [list(s.ended) for s in (whole, first, second)] == [[], [7, 8], []]
    assert (whole.is_time, whole.of is m) == (True, True)
    (only,) = tails.series_of(criterion(), [(rank(0), replace(m, rounds=[]))])
    assert (only.samples, list(only.ended), only.is_time) == ([1, 2], [7, 8], False)


def ruled(
    outcome: Outcome = Outcome.PASS, tail: Tail = TAIL, model: str = "L40S", checks: Any = None,
    links: bool = False, of_class: str | None = "own", **given: Any,
) -> Any:  # fmt: skip
    """The verdict before and after the rule on two devices, of which the second has bursts."""
    of = criterion(tail=of_class, **given)
    at = [{"to": 1}, {"to": 0}] if links else [{}, {}]
    found = record(*(
        rank(k, measured("rate", *samples, checks=checks or {}, at=at[k]))
        for k, samples in enumerate(([10.0] * 20, BURSTS))
    ))  # fmt: skip
    limits: Any = SimpleNamespace(tails={"own": tail})
    before = made.verdict(outcome=outcome, reason="", margin=1.0)
    sheet = made.sheet(made.case(of), found, facts={"model": model}, thresholds=limits)
    return before, tails.apply_tail_rule(before, sheet)


def test_what_comes_and_goes_turns_a_pass_into_a_failure_of_the_device():
    _, after = ruled()
    assert (after.outcome, after.margin, after.worst["gpu"]) == (Outcome.FAIL, None, 1)
    assert after.value == pytest.approx(20 / 2.4) == after.worst["value"]
    assert after.reason.startswith("comes and goes: 4 of 20 batches are slower than 0.8 x the 10")
    assert "4 of 20 steps" in ruled(checks={"steps": 20.0})[1].reason
    _, link = ruled(over="links", links=True)
    assert link.outcome is Outcome.FAIL
    assert "only the link between gpu0 and gpu1 is slow" in link.next_step
    assert "link" not in after.next_step


def test_the_rule_is_for_passing_medians_of_a_class_on_gpus():
    for given in (
        {"outcome": Outcome.FAIL}, {"outcome": Outcome.RECORDED}, {"of_class": None},
        {"model": "cpu"},
    ):  # fmt: skip
        before, after = ruled(**given)
        assert after is before, given
    # Of what devices share, four of twenty at half the median are too many too.
    before, after = ruled(tail=TAIL.model_copy(update={"shared": True}))
    assert "of the median" in after.reason
    before, after = ruled(tail=Tail(together=0.5, slow=0.5, share=0.2, source="x"))
    assert after is before
