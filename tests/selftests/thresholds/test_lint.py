"""Checks of limits: what is impossible, too lenient or in the wrong unit is refused."""

# Length: its tables have a line for each side of each check.

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from fixtures import entry
from fixtures.thresholds import lint
from fixtures.thresholds.kinds import KINDS, SPANS
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.strict_yaml import Problem
from tests.selftests.verdict.made import row

pytestmark = pytest.mark.cpu

RATE = {"expect": 660, "fail_below": 605}


def body(**given: Any) -> Any:
    """A criterion's fields as the file of limits has them."""
    fields: dict[str, Any] = {
        "measure": None, "unit": "GB/s", "ceiling": None, "spread": None,
        "tail": None, "limits": [], "valid": {}, "loose": None,
    }  # fmt: skip
    kind = KINDS[given.pop("statistic", "median"), "slowest"]
    return SimpleNamespace(**fields | given, kind=kind)


def refusal(check: Callable[..., None], *arguments: Any) -> tuple[Any, str] | None:
    """Where in the criterion a check finds a problem, and what it says; None without one."""
    try:
        check(*arguments)
    except Problem as problem:
        return problem.location[2:], str(problem)
    return None


# --- names and units

UP = [row(expect=5, fail_above=9)]

REFERENCES: list[tuple[str, dict[str, Any], tuple[Any, ...] | None, str]] = [
    # key, fields, where, what it says
    ("own.rate", {}, None, ""),
    ("own/rate", {}, (), "letters, digits"),
    ("rate", {}, ("measure",), "WORKLOAD.METRIC"),
    ("rate", {"measure": "own.rate"}, None, ""),
    ("own.rate", {"measure": "rate"}, ("measure",), "WORKLOAD.METRIC"),
    ("own.rate", {"spread": "gemm"}, None, ""),
    ("own.rate", {"spread": "gem"}, ("spread",), "no class 'gem' in spread:"),
    ("own.rate", {"tail": "steady"}, None, ""),
    ("own.rate", {"tail": "stead"}, ("tail",), "no class 'stead' in tails:"),
    # the outlier rule is for rates
    ("own.rate", {"spread": "gemm", "unit": "TFLOPS"}, None, ""),
    ("own.rate", {"spread": "gemm", "unit": "TFLOPS/GHz"}, None, ""),
    ("own.rate", {"spread": "gemm", "unit": "W"}, ("spread",), "rates only"),
    ("own.rate", {"spread": "gemm", "limits": UP}, ("spread",), "rates only"),
    ("own.rate", {"spread": "gemm", "ceiling": "latency"}, ("spread",), "rates only"),
    ("own.rate", {"unit": "W", "limits": UP}, None, ""),
    # ceilings
    ("own.rate", {"ceiling": "hbm"}, None, ""),
    ("own.rate", {"ceiling": "hbn"}, ("ceiling",), "did you mean 'hbm'"),
    ("own.rate", {"ceiling": "gemm"}, ("unit",), "gemm is in TFLOPS, not GB/s"),
    ("own.rate", {"ceiling": 50.0, "unit": "W"}, None, ""),
    # the workload's own metrics and units
    ("gemm.bf16", {"unit": "TFLOPS"}, None, ""),
    ("gemm.bf61", {"unit": "TFLOPS"}, ("measure",), "does not measure 'bf61'"),
    ("gemm.bf16", {"unit": "GB/s"}, ("unit",), "in TFLOPS, not in GB/s"),
    ("gemm.bf16", {"unit": "GB/s", "statistic": "value"}, ("unit",), "in TFLOPS, not in GB/s"),
    ("gemm.bf16", {"unit": "GB/s", "statistic": "alike"}, None, ""),
    ("gemm.bf16", {"unit": "%", "statistic": "spread"}, None, ""),
    ("gemm.bf16", {"unit": "TFLOPS", "statistic": "spread"}, ("unit",), "in %, not in TFLOPS"),
    ("own.rate", {"unit": "%", "statistic": "dip"}, None, ""),
    ("own.rate", {"unit": "GB/s", "statistic": "dip"}, ("unit",), "in %, not in GB/s"),
]  # fmt: skip


def test_a_name_or_unit_that_does_not_fit_is_refused_where_it_stands():
    for key, fields, where, says in REFERENCES:
        found = refusal(lint.check_references, key, body(**fields), ["gemm"], ["steady"])
        assert (found and found[0]) == where, (key, fields, found)
        assert says in (found[1] if found else ""), (key, fields, found)


def test_a_workload_that_cannot_be_read_is_named(monkeypatch):
    assert lint.described_workload(("criteria", "x"), "no-such-workload") is None
    gemm = lint.described_workload(("criteria", "x"), "gemm")
    assert gemm is not None
    assert gemm.metrics["bf16"] == "TFLOPS"

    def broken(name: str) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(entry, "known", broken)
    found = refusal(lint.check_references, "own.rate", body(), [], [])
    assert found is not None
    assert found[0] == ("measure",)
    assert "workload own cannot be read: RuntimeError: no compiler" in found[1]


# --- what is asked of measurements

HBM: dict[str, Any] = {"batches": (5, None), "wrong": (None, 0)}

VALIDITY: list[tuple[dict[str, Any], str]] = [
    # fields, what is refused
    ({"ceiling": "hbm", "valid": HBM}, ""),
    ({"ceiling": "hbm"}, "needs samples"),
    ({"ceiling": "hbm", "valid": {**HBM, "batches": (4, None)}}, "needs samples"),
    ({"ceiling": "hbm", "valid": {**HBM, "batches": (None, 9)}}, "needs samples"),
    ({"ceiling": "hbm", "valid": {"steps": (5, None), "wrong": (None, 0)}}, ""),
    ({"ceiling": "hbm", "valid": {"batches": (1, None), **HBM, "steps": (1, None)}}, ""),
    ({"ceiling": "hbm", "valid": {"batches": (5, None)}}, "may be a wrong one"),
    ({"ceiling": "hbm", "valid": {**HBM, "wrong": (0, None)}}, "may be a wrong one"),
    ({"ceiling": "gemm", "valid": HBM}, "valid: {relative_error:"),
    ({"ceiling": "training", "valid": {"steps": (5, None)}}, ""),
    ({"ceiling": "training"}, "needs samples"),
    ({"ceiling": "latency"}, "needs samples"),
    ({"ceiling": "all_reduce"}, "needs samples"),
    ({"ceiling": "all_reduce", "valid": {"batches": (5, None)}}, ""),
    ({"ceiling": "hbm", "loose": "a demonstration"}, ""),
    ({"ceiling": "hbm", "statistic": "value"}, ""),
    ({"ceiling": None}, ""),
]


def test_a_rate_needs_five_samples_and_a_check_of_its_result():
    for fields, says in VALIDITY:
        found = refusal(lint.check_validity, "own.rate", body(**fields))
        assert bool(found) == bool(says), (fields, found)
        assert says in (found[1] if found else ""), fields


LEAST, MOST = (0.8, None), (None, 5.0)
ROW_BOUNDS: list[tuple[Any, list[float | None], bool]] = [
    # the criterion's bounds, the row's, whether the row asks for less
    (LEAST, [0.8, None], False),
    (LEAST, [0.9, None], False),
    (LEAST, [0.7, None], True),
    (LEAST, [None, 1.0], True),
    (MOST, [None, 5.0], False),
    (MOST, [None, 4.0], False),
    (MOST, [None, 6.0], True),
    (MOST, [0.0, None], True),
    (None, [None, 6.0], False),
    (None, [0.1, None], False),
]


def test_a_row_may_ask_for_more_than_its_criterion_and_not_for_less():
    for own, asked, refused in ROW_BOUNDS:
        valid = {} if own is None else {"overlap": own}
        rows = [row(**RATE), row(**RATE, valid={"overlap": asked})]
        found = refusal(lint.check_validity, "own.rate", body(valid=valid, limits=rows))
        assert (found is not None) is refused, (own, asked, found)
        assert found is None or found[0] == ("limits", 1, "valid")
    less = {"valid": {"overlap": [0.1, None]}, **RATE}
    for excused in ({"loose": "x"}, {"model": "cpu"}):
        rows = [row(**less, **excused)]
        own = body(valid={"overlap": LEAST}, limits=rows)
        assert refusal(lint.check_validity, "own.rate", own) is None
    for strict in ({"model": ["cpu", "L40S"]}, {"model": "L40S"}):
        rows = [row(**less, **strict)]
        own = body(valid={"overlap": LEAST}, limits=rows)
        assert refusal(lint.check_validity, "own.rate", own) is not None


# --- rows beside each other


def point(*rows: Limit, **given: Any) -> Any:
    """A criterion as check_rows() gets it."""
    span = SPANS[given.pop("per", "node")]
    fields: dict[str, Any] = {"ceiling": None, "metric": "bf16", "at": {}}
    return SimpleNamespace(limits=rows, span=span, **fields | given)


def refused_rows(*rows: Limit, points: list[Any] | None = None, **fields: Any) -> Any:
    expanded = [point(*rows, ceiling=fields.get("ceiling"))] if points is None else points
    return refusal(lint.check_rows, "own.rate", body(limits=[*rows], **fields), expanded)


def test_each_row_is_checked_at_its_points():
    fine, odd = row(**RATE), row(expect=10, fail_below=11, model="L40S")
    assert refused_rows(fine) is None
    says = "impossible: fail_below 11 is above expect 10"
    assert refused_rows(fine, odd) == (("limits", 1), says)
    found = refused_rows(fine, odd, points=[point(fine)])
    assert found[0] == ("limits", 1)
    assert "at none of the criterion's points" in found[1]
    high = row(expect=660, fail_below=605, model="H200 SXM")
    assert refused_rows(high, points=[point(high), point(high, ceiling=700.0)]) is None
    found = refused_rows(high, points=[point(high), point(high, ceiling=650.0)])
    assert "impossible: expect 660 is above the physical ceiling 650" in found[1]


def test_equals_is_for_values_and_an_upper_limit_can_be_exceeded():
    same = row(equals="default")
    assert refused_rows(same, statistic="value") is None
    assert "equals needs" in refused_rows(same, statistic="median")[1]
    for above, fields, refused in (
        (100, {"statistic": "dip"}, True),
        (99, {"statistic": "dip"}, False),
        (200, {"statistic": "value"}, False),
        (50, {"statistic": "value", "ceiling": 50.0}, True),
        (49, {"statistic": "value", "ceiling": 50.0}, False),
        (200, {"statistic": "value", "ceiling": "latency"}, False),
    ):
        found = refused_rows(row(expect=above, fail_above=above), **fields)
        assert (found is not None) is refused, (above, fields, found)
        assert found is None or "toothless: nothing is above" in found[1]
    # A limit from below may lie above a dip's 100 %: nothing is compared with it.
    assert refused_rows(row(expect=150, fail_below=120), statistic="dip") is None


SAME: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    # conditions of two rows, whether both may hold for the same facts alone
    ({}, {}, True),
    ({"model": "L40S"}, {"model": "L40S"}, True),
    ({"model": ["L40S", "L40"]}, {"model": ["A40", "L40"]}, True),
    ({"model": "L40S"}, {"model": "L40"}, False),
    ({"model": "L40S"}, {}, False),
    ({}, {"model": "L40S"}, False),
    ({"when": {"gpus": 4}}, {"when": {"gpus": 4}}, True),
    ({"when": {"gpus": 4}}, {"when": {"gpus": 8}}, False),
    ({"model": "L40S", "when": {"gpus": 4}}, {"model": "L40S"}, False),
]


def test_two_rows_with_the_same_conditions_are_refused_at_the_second():
    for first, second, same in SAME:
        found = refused_rows(row(**RATE, **first), row(**RATE, **second))
        assert (found is not None) is same, (first, second, found)
        assert found is None or found[0] == ("limits", 1)
        assert found is None or "same conditions" in found[1]
    ordered, fixed = row(equals="cluster.nodes"), row(equals=4)
    assert refused_rows(ordered, fixed, statistic="value") is None
    assert "same conditions" in refused_rows(ordered, ordered, statistic="value")[1]


# --- the facts that a row describes

H200 = {"model": "H200 SXM", "metric": "bf16"}
OF_EIGHT = {"gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400}


def facts(per: str, when: Mapping[str, Any], model: Any = "H200 SXM", **at: Any) -> list[Any]:
    limit = row(**RATE, model=model, when=when) if model else row(**RATE, when=when)
    return list(lint._facts_of_row(point(limit, per=per, at=at), limit))


def test_a_row_describes_each_model_and_both_ends_of_each_range():
    one_node = {"nodes": 1, "domains": 1}
    assert facts("node", {}, size=1024) == [H200 | {"size": 1024}]
    assert facts("node", {"gpus": 4}) == [H200 | one_node | {"gpus": 4, "gpus_per_domain": 4}]
    assert facts("node", {"gpus": {"min": 2, "max": 8}, "size": {"min": "1GiB"}}) == [
        H200 | one_node | {"gpus": k, "gpus_per_domain": k} for k in (2, 8)
    ]
    assert facts("node", {"gpus": {"min": 2}}) == [
        H200 | one_node | {"gpus": 2, "gpus_per_domain": 2}
    ]
    assert [f["model"] for f in facts("node", {}, ["L40", "A40"])] == ["L40", "A40"]
    assert facts("node", {}, None) == []
    node = H200 | OF_EIGHT
    assert facts("pair", OF_EIGHT) == [
        node | {"gpus": 16, "nodes": 2, "domains": 2, "gpus_per_domain": 8}
    ]
    assert facts("cluster", OF_EIGHT | {"nodes": {"max": 4}}) == [
        node | {"gpus": 32, "nodes": 4, "domains": 4, "gpus_per_domain": 8}
    ]
    assert facts("rail", OF_EIGHT | {"nodes": 4}) == [
        node | {"gpus": 4, "nodes": 4, "domains": 4, "gpus_per_domain": 1}
    ]
    assert facts("cluster", OF_EIGHT) == [], "any number of nodes"
    assert facts("pair", {}) == [], "any number of GPUs"
    assert facts("pair", OF_EIGHT, "GB200") == [], "domains of a rack do not follow from nodes"


def test_the_ceilings_of_a_row_are_those_of_the_datasheets():
    limit = row(**RATE, model=["H200 SXM", "L40S"])

    def ceilings(ceiling: Any) -> list[float]:
        return lint._ceilings(point(limit, ceiling=ceiling), limit)

    assert ceilings(None) == []
    assert ceilings(650.0) == [650.0]
    found = ceilings("gemm")
    assert len(found) == 2
    assert found[0] == pytest.approx(1071, abs=1)  # 132 SMs x 4096 flop x 1.98 GHz
    assert ceilings("all_reduce") == [], "how many GPUs is not known"


# --- the numbers of a row

LATENCY, GEMM = "latency", "gemm"
NUMBERS: list[tuple[dict[str, Any], list[float], Any, str]] = [
    # row, ceilings, kind of ceiling, what is wrong
    ({"calibrate": True}, [10], GEMM, ""),
    # from above
    ({"fail_above": 10, "expect": 8}, [], None, ""),
    ({"fail_above": "0.5 of ceiling"}, [10], GEMM, "plain numbers"),
    ({"fail_above": 10, "expect": "0.5 of ceiling"}, [10], GEMM, "plain numbers"),
    ({"fail_above": -1}, [], None, "is negative"),
    ({"fail_above": 0}, [], None, ""),
    ({"fail_above": 0.5, "expect": 0.4}, [], None, ""),
    ({"fail_above": 1}, [], None, "missing key 'expect'"),
    ({"fail_above": 1, "loose": "x"}, [], None, ""),
    ({"fail_above": 3, "expect": 1.9}, [2], LATENCY, "1.9 is below the physical floor 2"),
    ({"fail_above": 3, "expect": 2}, [2], LATENCY, ""),
    ({"fail_above": 1.5, "loose": "x"}, [2], LATENCY, "1.5 is below the physical floor 2"),
    ({"fail_above": 3, "expect": 1.9}, [2], None, ""),
    ({"fail_above": 10, "expect": 10}, [], None, ""),
    ({"fail_above": 9, "expect": 10}, [], None, "is below expect 10"),
    ({"fail_above": 9, "expect": 10, "loose": "x"}, [], None, "is below expect 10"),
    ({"fail_above": 20, "expect": 10}, [], None, ""),
    ({"fail_above": 21, "expect": 10}, [], None, "over 2 x expect 10"),
    ({"fail_above": 21, "expect": 10, "loose": "x"}, [], None, ""),
    # from below: it can fail
    ({"fail_below": 0.6, "expect": 0.7}, [], None, ""),
    ({"fail_below": 0}, [], None, "cannot fail"),
    ({"fail_below": 0, "loose": "x"}, [], None, "cannot fail"),
    ({"fail_below": 0, "expect": 1}, [], None, "cannot fail"),
    ({"fail_below": 1, "expect": 0}, [], None, "cannot fail"),
    # what it is a fraction of
    ({"fail_below": "0.5 of ceiling"}, [], None, "needs the criterion's 'ceiling:'"),
    ({"fail_below": "0.5 of ceiling"}, [], LATENCY, "needs the criterion's 'ceiling:'"),
    ({"fail_below": 1, "expect": "0.5 of ceiling"}, [], None, "needs the criterion's 'ceiling:'"),
    ({"fail_below": "0.5 of ceiling"}, [], GEMM, ""),
    ({"fail_below": "0.5 of ceiling", "expect": "0.6 of ceiling"}, [200], GEMM, ""),
    ({"fail_below": "0.8 of model"}, [], GEMM, "needs the ceiling of a collective"),
    ({"fail_below": "0.8 of model", "expect": "0.9 of model"}, [], "all_reduce", ""),
    ({"fail_below": "0.8 of model", "expect": "0.9 of ceiling"}, [], "all_reduce", "of the same"),
    ({"fail_below": 0.5, "expect": "0.6 of ceiling"}, [], GEMM, "of the same"),
    ({"fail_below": "0.5 of cluster.shared_tb", "expect": 0.6}, [], None, "of the same"),
    # physics
    ({"fail_below": "1 of ceiling"}, [], GEMM, ""),
    ({"fail_below": "1.1 of ceiling"}, [], GEMM, "is above 1"),
    ({"fail_below": "0.9 of ceiling", "expect": "1.1 of ceiling"}, [], GEMM, "is above 1"),
    ({"fail_below": 100, "expect": 100}, [100], GEMM, ""),
    ({"fail_below": 90, "expect": 101}, [100], GEMM, "above the physical ceiling 100"),
    ({"fail_below": 101, "loose": "x"}, [100], GEMM, "above the physical ceiling 100"),
    ({"fail_below": 90, "expect": 101}, [2], LATENCY, ""),
    ({"fail_below": 91, "expect": 90}, [], None, "above expect 90"),
    ({"fail_below": 91, "expect": 90, "loose": "x"}, [], None, "above expect 90"),
    # teeth
    ({"fail_below": 50, "expect": 100}, [], None, ""),
    ({"fail_below": 49, "expect": 100}, [], None, "under half of expect 100"),
    ({"fail_below": 49, "expect": 100, "loose": "x"}, [], None, ""),
    ({"fail_below": 60, "expect": 60}, [200], GEMM, ""),
    ({"fail_below": 59, "expect": 60}, [200], GEMM, "under 0.3 of the physical ceiling 200"),
    ({"fail_below": 59, "expect": 60}, [100, 200], GEMM, "of the physical ceiling 200"),
    ({"fail_below": 59, "expect": 60}, [200], 200.0, ""),
    ({"fail_below": 59, "expect": 60}, [200], LATENCY, ""),
    ({"fail_below": "0.30 of ceiling"}, [], GEMM, ""),
    ({"fail_below": "0.29 of ceiling"}, [], GEMM, "under 0.3"),
    ({"fail_below": "0.29 of ceiling", "expect": "0.4 of ceiling"}, [], GEMM, ""),
    ({"fail_below": 60}, [], GEMM, "missing key 'expect'"),
    ({"fail_below": 60, "loose": "x"}, [], GEMM, ""),
]


def test_the_numbers_of_a_row_are_possible_and_have_teeth():
    for given, ceilings, kind, says in NUMBERS:
        found = lint.lint_row(row(**given), ceilings, kind)
        assert (found is None) == (says == ""), (given, ceilings, kind, found)
        assert says in (found or ""), (given, ceilings, kind)


ANY_NUMBER = st.floats(0.01, 2000, allow_nan=False)


@drawn(ANY_NUMBER, st.none() | ANY_NUMBER, ANY_NUMBER)
def test_what_the_lint_lets_in_is_possible_and_has_teeth(below, expect, ceiling):
    row = Limit.model_validate(
        {"fail_below": below, "source": "x"} | ({"expect": expect} if expect else {})
    )
    if lint.lint_row(row, [ceiling], "gemm") is None:
        assert 0 < 0.5 * expect <= below <= expect <= ceiling


@drawn(ANY_NUMBER, st.none() | ANY_NUMBER, ANY_NUMBER)
def test_nor_is_an_upper_limit_below_the_floor_or_out_of_reach(above, expect, floor):
    row = Limit.model_validate(
        {"fail_above": above, "source": "x"} | ({"expect": expect} if expect else {})
    )
    if lint.lint_row(row, [floor], "latency") is None:
        assert floor <= expect <= above <= 2 * expect


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"fail_below": "1.2 of cluster.shared_tb"}, "impossible"),
        ({"fail_below": "0.1 of cluster.shared_tb"}, "toothless"),
        ({"fail_above": "1 of cluster.shared_tb"}, "plain numbers"),
        ({"fail_below": "0.5 of cluster.shared_tb", "expect": 0.6}, "of the same"),
    ],
)
def test_fraction_of_the_order_is_checked_as_others_are(given, says: str):
    assert says in (lint.lint_row(row(**given), [], None) or "")
