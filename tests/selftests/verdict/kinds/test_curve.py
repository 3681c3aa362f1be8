"""Dips in curves that should rise from each size to the next."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.records.model import Measurement
from fixtures.verdict.causes import Cause
from fixtures.verdict.kinds import curve as curves
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import Invalid
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, resolved

pytestmark = pytest.mark.cpu

MIB = 2**20
RISING = {32: 100.0, 64: 200.0, 128: 300.0}


def curve(values: dict[int, float], metric: str = "rate", **given: Any) -> list[Measurement]:
    return [measured(metric, v, at={"size": mib * MIB}, **given) for mib, v in values.items()]


def dip(
    *curves_of_ranks: list[Measurement], limit: float = 5, sweep: Any = (None, None), **given: Any
) -> Verdict:
    ranks = [rank(k, *found) for k, found in enumerate(curves_of_ranks)]
    found = record(*ranks)
    case = made.case(criterion(statistic="dip", sweep=sweep, **given), devices=len(ranks))
    return curves.judge(made.sheet(case, found, resolved("above", limit)))


def refusal(*curves_of_ranks: list[Measurement], **given: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        dip(*curves_of_ranks, **given)
    return caught.value


def test_the_largest_fall_is_judged_and_its_sizes_are_named():
    good = dip(curve(RISING))
    assert (good.outcome, good.value, good.notes, good.worst) == (Outcome.PASS, 0, [], None)
    assert good.margin == pytest.approx(1.0)
    fallen = {**RISING, 256: 270.0, 512: 264.6}  # 10 %, then 2 %
    bad = dip(curve(fallen))
    assert (bad.outcome, bad.value) == (Outcome.FAIL, pytest.approx(10))
    assert bad.notes == ["from 300 GB/s at 128MiB to 270 at 256MiB"]
    assert bad.worst is not None
    assert bad.worst["gpu"] == 0
    assert bad.devices == {"planned": 1, "measured": 1}
    assert "records/own@worker0.json" in bad.next_step
    assert dip(curve(fallen), limit=11).ok


def test_times_of_ranks_are_averaged_and_the_slowest_is_named():
    found = dip(curve(RISING), curve({**RISING, 128: 100.0}))
    # The harmonic mean of 300 and 100 against 200.
    assert found.value == pytest.approx(25)
    assert found.worst is not None
    assert found.worst["gpu"] == 1
    us = {"unit": "us", "measured_unit": "us"}
    times = [curve(v, unit="us") for v in (RISING, {**RISING, 128: 60.0})]
    latency = dip(*times, **us)
    # The mean of 300 and 60 against 200.
    assert latency.value == pytest.approx(10)
    assert latency.worst is not None
    assert latency.worst["gpu"] == 0, "the longest time is the slowest"


def test_sizes_out_of_the_range_are_not_looked_at():
    fallen = {16: 500.0, **RISING, 256: 50.0}
    assert dip(curve(fallen)).value > 50
    assert dip(curve(fallen), sweep=(32 * MIB, 128 * MIB)).value == 0
    assert dip(curve(fallen), sweep=(32 * MIB, None)).value > 50
    assert dip(curve(fallen), sweep=(None, 128 * MIB)).value > 50
    assert "2 sizes, 3 needed" in str(refusal(curve(fallen), sweep=(64 * MIB, 128 * MIB)))


def test_a_fall_that_is_smaller_when_measured_again_counts_as_that():
    first = {**RISING, 256: 200.0}
    again = curve({128: 300.0, 256: 297.0}, "rate_again")
    found = dip(curve(first) + again)
    assert found.value == pytest.approx(1)
    one_end = curve({256: 297.0}, "rate_again")
    assert dip(curve(first) + one_end).value == pytest.approx(100 / 3)
    worse = curve({128: 300.0, 256: 100.0}, "rate_again")
    assert dip(curve(first) + worse).value == pytest.approx(100 / 3)
    assert dip(curve(first) + curve({128: 330.0, 256: 330.0}, "rate_again")).value == 0
    error = refusal(curve(first) + curve({128: 331.0, 256: 331.0}, "rate_again"))
    assert "gpu0: measured again at 128MiB, 331 GB/s is far above the whole curve" in str(error)


def test_what_was_measured_again_is_checked_as_the_rest():
    again = curve({128: 300.0, 256: 297.0}, "rate_again", unit="us")
    assert "measured in us" in str(refusal(curve(RISING) + again))
    short = curve({128: 300.0}, "rate_again", checks={"batches": 5})
    assert "1 sample of 5 batches" in str(refusal(curve(RISING) + short))
    missing = refusal(curve(RISING) + curve({128: 300.0}, "rate_again"), curve(RISING))
    assert "measured on 1 of 2 devices" in str(missing)


def test_only_the_own_node_s_second_curve_counts():
    ranks = [rank(0, *curve({**RISING, 256: 200.0})),
             rank(2, *curve({128: 900.0, 256: 900.0}, "rate_again"), node="other")]  # fmt: skip
    found = record(*ranks)
    case = made.case(criterion(statistic="dip"), devices=1)
    verdict = curves.judge(made.sheet(case, found, resolved("above", 5)))
    assert verdict.value == pytest.approx(100 / 3)
    pair = made.case(criterion(statistic="dip", per="pair"), ("worker0", "other"), devices=2)
    with pytest.raises(Invalid, match="measured on 1 of 2"):
        curves.judge(made.sheet(pair, found, resolved("above", 5)))


def test_a_curve_with_a_hole_is_not_judged():
    lacking = {k: v for k, v in RISING.items() if k != 64}
    assert "measured on 1 of 2 devices" in str(refusal(curve(RISING), curve(lacking)))
    error = refusal(curve(RISING, checks={"sizes": 4}))
    assert str(error) == "the curve has 3 of 4 sizes"
    assert error.cause is Cause.RECORD
    assert dip(curve(RISING, checks={"sizes": 3})).ok
    assert "2 sizes, 3 needed" in str(refusal(curve(lacking)))
