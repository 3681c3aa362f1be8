"""junit.xml: one test case per verdict, of a large run one per subject and area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from fixtures.verdict.model import Outcome, Verdict
from reports.exports import junit
from tests.selftests.reports.pages.test_page import measured, planned

pytestmark = pytest.mark.cpu

FAILED = measured("gemm.bf16", "worker1", Outcome.FAIL, 541.0, reason="slow\nvery")
PLAN = [
    measured("gemm.bf16", "worker0", Outcome.PASS, 641.2),
    FAILED,
    measured("gemm.fp16", "worker1", Outcome.WAIVED, 540.0, reason="waived by Kim"),
    planned("gemm.fp8", "worker1", Outcome.NOT_MEASURED, reason="node lost"),
    planned("gemm.fp8", "worker0", Outcome.NOT_APPLICABLE, reason="no such GPU"),
    measured("gemm.tf32", "worker0", Outcome.RECORDED, 5.0),
]


def suite(plan: Sequence[Verdict], tests: Sequence[Any] = (), **more: str) -> ElementTree.Element:
    verdict = {"verdict": "REJECTED", "criteria": [v.to_json() for v in plan]}
    text = junit.text(verdict, tests, **more)
    assert text.startswith("<?xml")
    found = ElementTree.fromstring(text).find("testsuite")
    assert found is not None
    return found


def told(case: ElementTree.Element) -> list[tuple[str, str | None]]:
    return [(part.tag, part.get("type")) for part in case if part.tag != "properties"]


def test_the_suite_has_the_verdict_and_counts_what_it_says():
    found = suite(PLAN, created="2026-11-20T12:00:00")
    assert {k: found.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6", "failures": "1", "errors": "1", "skipped": "2",
    }  # fmt: skip
    assert "REJECTED" in str(found.get("name"))
    assert found.get("timestamp") == "2026-11-20T12:00:00"
    assert suite(PLAN).get("timestamp") is None


def test_each_outcome_has_the_tag_that_programs_know():
    cases = suite(PLAN).findall("testcase")
    assert [told(case) for case in cases] == [
        [], [("failure", None)], [("skipped", "pytest.xfail")], [("error", None)],
        [("skipped", "pytest.skip")], [],
    ]  # fmt: skip
    assert cases[0].attrib == {
        "classname": "acceptance.Compute", "name": "gemm.bf16-worker0"
    }  # fmt: skip
    failure, skipped = cases[1].find("failure"), cases[2].find("skipped")
    assert failure is not None
    assert skipped is not None
    assert str(failure.text).splitlines()[0] == failure.get("message")
    assert "limit >= 605" in str(failure.get("message"))
    assert skipped.get("message") == "waived by Kim"


def test_only_what_is_recorded_has_a_property_that_says_so():
    names = [[p.get("name") for p in c.iter("property")] for c in suite(PLAN).iter("testcase")]
    assert names == [["verdict"]] * 5 + [["verdict", "recorded"]]


def test_of_a_large_run_a_case_is_the_worst_of_a_subject_and_area(monkeypatch):
    monkeypatch.setattr(junit, "MAX_CASES", len(PLAN) - 1)
    first, second = suite(PLAN).findall("testcase")
    assert (first.get("name"), told(first)) == ("area[worker0]", [])
    assert (second.get("name"), told(second)) == ("area[worker1]", [("failure", None)])
    (failure,) = second
    assert failure.text == FAILED.line
    only = [planned(f"gemm.x{k}", "worker0", Outcome.NOT_APPLICABLE, reason="no") for k in range(6)]
    (case,) = suite(only)
    assert told(case) == [("skipped", "pytest.skip")]
    monkeypatch.setattr(junit, "MAX_CASES", len(PLAN))
    assert len(suite(PLAN)) == len(PLAN)


def test_a_test_that_judges_nothing_is_a_case_of_its_own():
    tests = [
        {"test": "t1", "outcome": "failed", "text": "Traceback\nValueError: \x00 no\n"},
        {"test": "t2", "outcome": "error"}, {"test": "t3", "outcome": "passed", "text": "fine"},
    ]  # fmt: skip
    first, second, third = suite([], tests).findall("testcase")
    failure, error = first.find("failure"), second.find("error")
    assert failure is not None
    assert error is not None
    assert (failure.get("message"), failure.text) == (
        "ValueError: ? no", "Traceback\nValueError: ? no\n",
    )  # fmt: skip
    assert (error.get("message"), error.text) == ("", None)
    assert (third.get("classname"), told(third)) == ("acceptance.other tests", [])
