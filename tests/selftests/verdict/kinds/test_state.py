"""States and counts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.verdict.absence import explain
from fixtures.verdict.causes import Cause
from fixtures.verdict.kinds import state as states
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import Invalid
from tests.selftests.support import absent
from tests.selftests.verdict import made
from tests.selftests.verdict.made import points, rank, record, resolved, state

pytestmark = pytest.mark.cpu

EIGHT = resolved("equals", 8)
NONE = resolved("above", 0)
LEAST = resolved("below", 10)
STATE = resolved("equals", "default")
OPEN = resolved("recorded")
VALUE: dict[str, Any] = {"statistic": "value", "unit": "GPUs"}


def valued(
    limit: Any, *values: Any, ceiling: float | None = None, ranks: list[Any] | None = None,
    devices: int = 2, **given: Any,
) -> Verdict:  # fmt: skip
    """The verdict on the values of a node's ranks, one each; `...` for none."""
    if ranks is None:
        ranks = [rank(k, *([] if v is ... else [state(v)])) for k, v in enumerate(values)]
    found = record(*ranks)
    case = made.case(made.criterion(**VALUE | given), devices=devices)
    base = made.verdict(devices={"planned": devices, "measured": 0})
    told = explain(base, case, found, given=len(points(found)), recorded=False)
    sheet = made.sheet(case, found, limit, ceiling=ceiling, notes=["a note"], told=told)
    return states.judge(sheet)


def refusal(call: Any, *arguments: Any, **more: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        call(*arguments, **more)
    return caught.value


# --- one value for each rank

VALUES: list[tuple[Any, tuple[Any, ...], Outcome, Any, float | None]] = [
    # limit, values, outcome, the deciding value, margin
    (EIGHT, (8, 8), Outcome.PASS, 8, None),
    (EIGHT, (8, 7), Outcome.FAIL, 7, None),
    (EIGHT, (9, 8), Outcome.FAIL, 9, None),
    (STATE, ("default", "default"), Outcome.PASS, "default", None),
    (STATE, ("default", "lowered"), Outcome.FAIL, "lowered", None),
    (NONE, (0, 0), Outcome.PASS, 0, None),
    (NONE, (2, 3), Outcome.FAIL, 3, None),
    (LEAST, (12, 11), Outcome.PASS, 11, 0.1),
    (LEAST, (12, 9), Outcome.FAIL, 9, -0.1),
    (LEAST, (10, 10.0), Outcome.PASS, 10, 0.0),
    (resolved("above", 10), (9, 10), Outcome.PASS, 10, 0.0),
    (resolved("above", 10), (9, 11), Outcome.FAIL, 11, -0.1),
    (resolved("equals", True), (True, True), Outcome.PASS, True, None),
    (resolved("equals", True), (True, False), Outcome.FAIL, False, None),
    (resolved("equals", "H200 SXM"), ("NVIDIA H200",), Outcome.PASS, "H200 SXM", None),
    (resolved("equals", "H200 SXM"), ("NVIDIA X1",), Outcome.FAIL, "NVIDIA X1", None),
    (resolved("equals", "cpu"), ("cpu",), Outcome.PASS, "cpu", None),
    (OPEN, (3, 5), Outcome.RECORDED, 3, None),
]


def test_the_worst_value_of_all_ranks_is_judged():
    for limit, values, outcome, value, margin in VALUES:
        found = valued(limit, *values)
        assert (found.outcome, found.value) == (outcome, value), (limit, values)
        assert type(found.value) is type(value)
        assert found.margin == (None if margin is None else pytest.approx(margin)), (limit, values)
        assert (found.worst is None) is (outcome is not Outcome.FAIL)
        assert found.notes == ["a note"]
    assert valued(OPEN, 3, 5, unit="us").value == 5, "of times the longest is the worst"
    states = valued(OPEN, "b", "a", "b", unit="state")
    assert (states.outcome, states.value) == (Outcome.RECORDED, "a, b")
    assert valued(OPEN, True, -1, unit="state").value == "-1, True"


def test_what_cannot_be_counted_is_not_judged():
    for limit, values, ceiling, says in (
        (EIGHT, (8, math.inf), None, "gpu1: inf cannot be counted"),
        (EIGHT, (math.nan, 8), None, "nan cannot be counted"),
        (EIGHT, (-1,), None, "-1 cannot be counted"),
        (EIGHT, (True, 8), None, "True is not a number"),
        (resolved("equals", True), (1,), None, "1 is not a number"),
        (NONE, ("many",), None, "'many' is not a number"),
        (EIGHT, ("many",), None, "'many' is not a number"),
        (OPEN, ("many",), None, "'many' is not a number"),
        (LEAST, (101,), 100, "101 GPUs is above what is possible, 100"),
    ):
        error = refusal(valued, limit, *values, ceiling=ceiling)
        assert says in str(error), (limit, values)
        assert error.cause is Cause.MEASUREMENT
    assert valued(LEAST, 100, ceiling=100).ok
    assert valued(NONE, 0).ok


def test_a_value_that_is_missing_hides_no_failure_and_is_no_success():
    assert valued(EIGHT, 7, None).value == 7
    error = refusal(valued, EIGHT, 8, None)
    assert str(error) == "worker0 gpu1: no value"
    assert error.cause is Cause.MEASUREMENT
    assert "no value" in str(refusal(valued, EIGHT, None, None))


def test_a_lower_bound_can_only_fail():
    def bound(value: Any) -> list[Any]:
        return [rank(0, state(value), absent(Kind.LOWER_BOUND, "rate", "it was reset"))]

    for limit, value in ((NONE, 3), (EIGHT, 9)):
        assert valued(limit, ranks=bound(value)).outcome is Outcome.FAIL
    for limit, value in ((NONE, 0), (EIGHT, 8), (EIGHT, 7), (LEAST, 12), (STATE, "x")):
        found = valued(limit, ranks=bound(value))
        assert found.reason.startswith("worker0 gpu0: rate is a lower bound: it was reset")
        assert (found.outcome, found.cause_nodes) == (Outcome.NOT_MEASURED, ["worker0"])


def test_an_absence_hides_no_failure_of_another_rank():
    lost = rank(1, absent(Kind.FAULT, "rate", "GpuIsLost"))
    assert valued(EIGHT, ranks=[rank(0, state(7)), lost]).outcome is Outcome.FAIL
    found = valued(EIGHT, ranks=[rank(0, state(8)), lost])
    assert (found.outcome, found.cause) == (Outcome.NOT_MEASURED, Cause.NODE)
    assert found.reason.startswith("worker0 gpu1: no rate: GpuIsLost")


def test_how_many_measured_is_said_for_devices_and_nics():
    assert valued(EIGHT, 8, ..., devices=2).devices == {"planned": 2, "measured": 2}
    assert valued(EIGHT, 7, 8, over="devices", devices=2).devices["measured"] == 2
    assert valued(EIGHT, 7, ..., over="devices", devices=2).devices["measured"] == 1
    parts = [rank(0, *(state(7, at={"part": part}) for part in ("a", "b", "a")))]
    assert valued(EIGHT, ranks=parts, over="nics", devices=4).devices["measured"] == 2
    with pytest.raises(Invalid, match="measured on 1 of 2 devices"):
        valued(EIGHT, 8, ..., over="devices", devices=2)


def test_the_rank_with_the_worst_value_is_named():
    found = valued(EIGHT, 8, 7)
    assert found.worst == {"node": "worker0", "gpu": 1, "uuid": "GPU-worker0-1", "value": 7}
    assert found.next_step == "look at worker0"
    found = valued(EIGHT, 8, 7, over="devices")
    assert found.next_step.startswith("check GPU-worker0-1 on worker0")
    same = valued(EIGHT, 7, 7, synchronous=True)
    assert same.worst is not None
    assert (same.worst["part"], same.worst["gpu"]) == ("all GPUs", None)
    assert "no single rank is at fault" in same.next_step
    other = valued(EIGHT, 7, 6, synchronous=True)
    assert other.worst is not None
    assert other.worst["gpu"] == 0, "the first of several"
    parts = [rank(k, state(7, at={"part": f"mlx{k}"})) for k in range(2)]
    named = valued(EIGHT, ranks=parts, synchronous=True)
    assert named.worst is not None
    assert named.worst["part"] == "mlx0"


def test_of_several_nodes_all_whose_own_values_fail_are_at_fault_unless_all_fail():
    nodes = ("worker0", "worker1", "worker2")
    for values, at_fault, named in (
        ((8, 8, 8, 7, 8, 8), ["worker1"], "worker1"),
        ((8, 6, 8, 7, 8, 8), ["worker0", "worker1"], "worker0"),
        ((8, 8, 8, 8, 8, 8), [], ...),
        ((8, 6, 7, 8, 8, 5), [], None),
    ):
        ranks = [rank(k, state(v), node=nodes[k // 2]) for k, v in enumerate(values)]
        of = made.criterion(per="cluster", over="devices", **VALUE)
        sheet = made.sheet(made.case(of, nodes, 6), record(*ranks), EIGHT)
        found = states.judge(sheet)
        assert found.cause_nodes == at_fault, values
        assert (found.worst or {}).get("node", ...) == named, values
        assert ("all 3 nodes that report" in found.reason) is (named is None), values
        assert [*found.notes] == (
            ["2 nodes at fault: worker0, worker1"] if len(at_fault) > 1 else []
        )


def test_a_product_name_is_compared_as_the_model_that_it_is():
    assert states._canonical_model("NVIDIA H200", "H200 SXM") == "H200 SXM"
    assert states._canonical_model("NVIDIA H200", "default") == "NVIDIA H200"
    assert states._canonical_model("NVIDIA H200", "cpu") == "H200 SXM"
    assert states._canonical_model("never heard of", "cpu") == "never heard of"
