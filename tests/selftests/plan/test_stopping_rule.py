"""Near which value a workload measures further rounds, and where it is told of none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.plan.stopping_rule import reference
from fixtures.thresholds.loader import Thresholds
from tests.selftests import support
from tests.selftests.small_thresholds import SMALL

pytestmark = pytest.mark.cpu

FACTS = {"model": "H200 SXM", "nodes": 1, "gpus": 2, "gpus_per_node": 2, "dtype": "bf16"}


def told(limits: Thresholds, key: str = "gemm.bf16", **more: Any) -> dict[str, Any] | None:
    given = {k: more.pop(k) for k in list(more) if k in ("spread", "statistic", "at", "limits")}
    criterion = replace(limits.criteria[key], **given)
    facts = {k: v for k, v in {**FACTS, **more}.items() if v is not None}
    return reference(criterion, facts, limits)


def test_a_rate_has_its_limit_and_the_spread_of_its_class(limits):
    assert told(limits) == {
        "metric": "bf16", "at": {}, "limit": 605.0, "sigma": 0.003, "delta": 0.08,
    }  # fmt: skip


def test_without_a_model_a_spread_or_a_median_there_is_none(limits):
    assert told(limits, model=None) is None
    assert told(limits, spread=None) is None
    assert told(limits, statistic="value") is None


def test_without_a_number_that_a_value_may_fall_below_there_is_none(limits):
    assert told(limits, model="B200") is None  # still to be calibrated
    assert told(limits, model="L40S") is None  # only recorded
    assert told(limits, model="unheard of") is None
    assert told(limits, "allreduce.latency", spread="gemm") is None  # fails above


def test_where_the_record_decides_which_limit_holds_there_is_none(limits):
    assert told(limits, "allreduce.nvls", spread="gemm") is None
    known = told(limits, "allreduce.nvls", spread="gemm", nvls=True)
    assert known is not None
    assert (known["limit"], known["at"]) == (80.0, dict(limits.criteria["allreduce.nvls"].at))


def test_a_share_of_the_ceiling_is_a_number(tmp_path):
    text = SMALL.replace(
        "expect: 660, fail_below: 605", "expect: 0.6 of ceiling, fail_below: 0.5 of ceiling"
    )
    found = told(support.load(tmp_path, text))
    assert found is not None
    assert found["limit"] == pytest.approx(0.5 * 1070, rel=0.001)  # support.H200
