"""The row of a criterion in the certificate: its worst verdict, limits and outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from reports.facts.criterion_rows import CriterionRow

pytestmark = pytest.mark.cpu


def verdict(subject: str, outcome: str = "PASS", **more: Any) -> dict[str, Any]:
    return {"subject": subject, "outcome": outcome, "limit": ">= 605", "value": 641.0,
            "margin": 0.06, "unit": "TFLOPS", "worst": None, **more}  # fmt: skip


def row_of(*verdicts: dict[str, Any], unit: str = "TFLOPS") -> CriterionRow:
    row = CriterionRow("gemm.bf16", "Fast", "Compute", unit)
    for v in verdicts:
        row.add({**v, "unit": unit})
    return row


def worst_subject(*verdicts: dict[str, Any], unit: str = "TFLOPS") -> str:
    return row_of(*verdicts, unit=unit).subject


def test_an_empty_row_says_nothing():
    row = row_of()
    texts = (row.subject, row.limit, row.value, row.margin, row.worst_device, row.passed)
    assert texts == ("",) * 6
    assert (row.planned, row.outcome, row.result) == (0, "NOT_APPLICABLE", "recorded")


def test_failed_goes_before_waived_before_the_smallest_margin():
    first, second = verdict("n0", margin=0.02), verdict("n1", margin=0.01)
    waived, failed = verdict("n2", "WAIVED", margin=0.5), verdict("n3", "FAIL", margin=0.9)
    assert worst_subject(first, second) == worst_subject(second, first) == "n1"
    assert worst_subject(first, waived, second) == "n2"
    assert worst_subject(failed, first, waived) == "n3"
    assert worst_subject(first, verdict("n4", margin=0.02)) == "n0", "the first of two alike"
    assert worst_subject(verdict("n5", margin=None), first) == "n0"
    assert worst_subject(first, verdict("n5", margin=None)) == "n0"


def test_of_recorded_values_the_worst_is_shown_by_its_unit():
    low, high = (verdict(f"n{k}", "RECORDED", value=v, margin=None) for k, v in enumerate((1, 2.0)))
    assert worst_subject(high, low, unit="GB/s") == worst_subject(low, high, unit="GB/s") == "n0"
    assert worst_subject(high, low, unit="us") == worst_subject(low, high, unit="us") == "n1"
    states = [verdict(f"n{k}", "RECORDED", value=v, margin=None) for k, v in enumerate(("a", True))]
    assert worst_subject(*states) == "n0"
    assert worst_subject(*reversed(states)) == "n1"
    assert worst_subject(*states, verdict("n2", "RECORDED", value=5.0, margin=None), unit="us") == (
        "n2"
    )
    # One that is judged and has no margin is not ranked by its value.
    judged = [verdict(f"n{k}", value=v, margin=None) for k, v in enumerate((2.0, 1.0))]
    assert worst_subject(*judged, unit="GB/s") == "n0"


def test_a_row_without_a_value_is_never_the_worst():
    lost = verdict("n0", "NOT_MEASURED", value=None, margin=None)
    recorded = verdict("n2", "RECORDED", value=None, margin=None)
    assert row_of(lost).worst is None
    assert worst_subject(lost) == "n0", "its command is still known"
    assert worst_subject(lost, verdict("n1")) == "n1"
    assert worst_subject(recorded, verdict("n1"), lost) == "n1"
    assert row_of(lost).value == ""
    assert row_of(lost).margin == ""


def test_a_verdict_that_does_not_apply_is_only_counted():
    row = row_of(verdict("n0", "NOT_APPLICABLE"), verdict("n1"))
    assert (row.planned, row.subject, row.passed) == (1, "n1", "1 of 1")
    none = row_of(verdict("n0", "NOT_APPLICABLE"))
    assert (none.planned, none.subject, none.limit, none.outcome) == (0, "", "", "NOT_APPLICABLE")


def test_passed_is_of_those_to_be_judged():
    some = row_of(verdict("n0"), verdict("n1", "FAIL"), verdict("n2", "RECORDED"))
    assert (some.planned, some.passed) == (3, "1 of 2")
    assert row_of(verdict("n0", "RECORDED")).passed == ""


def test_the_most_common_limit_stands_for_the_others():
    same = [verdict(f"n{k}", limit=">= 605 (loose: a test)") for k in range(2)]
    assert row_of(*same).limit == ">= 605"
    assert row_of(verdict("n2", limit=">= 500"), *same).limit == ">= 605 (and 1 other)"
    assert row_of(verdict("n0", limit="")).limit == ""


def test_value_and_margin_have_their_units():
    row = row_of(verdict("n0", value=541.0, margin=-0.106))
    assert (row.value, row.margin) == ("541 TFLOPS", "-10.6 %")
    zero = row_of(verdict("n0", value=0, margin=0.0), unit="errors")
    assert (zero.value, zero.margin) == ("0 errors", "+0.0 %")
    state = row_of(verdict("n0", value="H200", margin=None), unit="model")
    assert (state.value, state.margin) == ("H200", "")


def test_the_worst_device_is_named_once_by_all_that_is_known_of_it():
    gpu = {"node": "n0", "gpu": 0, "uuid": "GPU-1", "value": 1}
    nic = {"node": None, "gpu": None, "part": "mlx5_0", "uuid": None}
    for subject, worst, text in (
        ("n0", gpu, "n0 gpu0 GPU-1"), ("n0--n1", gpu, "n0--n1 n0 gpu0 GPU-1"),
        ("n0", nic, "n0 mlx5_0"), ("n0", {**gpu, "part": "all GPUs", "uuid": None}, "n0 all GPUs"),
        ("n0", {"gpu": None}, "n0"), ("n0", None, "n0"),
    ):  # fmt: skip
        assert row_of(verdict(subject, worst=worst)).worst_device == text
    assert row_of(verdict("n0", value=None)).worst_device == ""


def test_the_result_names_what_did_not_pass():
    every = [verdict(f"n{k}", outcome) for k, outcome in
             enumerate(("PASS", "FAIL", "NOT_MEASURED", "WAIVED", "RECORDED"))]  # fmt: skip
    for verdicts, result, outcome in (
        (every, "1 failed, 1 not measured, 1 waived, 1 recorded", "FAIL"),
        (every[2:], "1 not measured, 1 waived, 1 recorded", "NOT_MEASURED"),
        (every[3:], "1 waived, 1 recorded", "WAIVED"),
        ((every[0], every[4]), "1 recorded", "PASS"),
        (every[:1], "passed", "PASS"), (every[4:], "recorded", "RECORDED"),
    ):  # fmt: skip
        row = row_of(*verdicts)
        assert (row.result, row.outcome) == (result, outcome)
