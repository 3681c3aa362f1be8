"""Notes on results of another tool that contradict the suite's own rows on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fixtures.conclusion.contradictions import with_contradictions
from fixtures.verdict.model import Verdict
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu

Notes = dict[str, list[str]]


def row(criterion: str, outcome: str = "PASS", subject: str = "n0", *notes: str) -> Verdict:
    return row_on(subject, outcome, criterion=criterion, notes=list(notes))


GUEST = row("guests.dcgmi")


def notes(*rows: Verdict, versions: Mapping[str, Any] | None = None, **tools: Any) -> Notes:
    """The notes that rows on n0 get, by criterion."""
    found = with_contradictions(rows, {"n0": (tools, versions or {})})
    return {v.criterion: v.notes for v in found}


def test_both_rows_get_a_note_on_the_other():
    copies = row("hostcopy.h2d", "FAIL")
    assert notes(
        GUEST, row("memory.copy"), copies, dcgmi={"memory": "fail", "pcie": "pass"},
        versions={"dcgmi": "4.5"},
    ) == {
        "guests.dcgmi": ["contradicted on memory: ours pass: memory.copy",
                         "contradicted on pcie: ours fail: hostcopy.h2d"],
        "memory.copy": ["contradicted: dcgmi diag 4.5 fails on memory"],
        "hostcopy.h2d": ["contradicted: dcgmi diag 4.5 passes on pcie"],
    }  # fmt: skip


def test_what_agrees_or_is_not_judged_is_not_contradicted():
    for outcome, status in (("PASS", "pass"), ("FAIL", "fail"), ("NOT_MEASURED", "fail"),
                            ("WAIVED", "pass"), ("RECORDED", "pass")):  # fmt: skip
        assert notes(GUEST, row("memory.copy", outcome), dcgmi={"memory": status}) == {}
    assert notes(GUEST, row("gemm.bf16"), dcgmi={"memory": "fail"}) == {}


def test_a_tool_without_a_row_or_of_another_node_contradicts_nothing():
    assert notes(row("memory.copy"), dcgmi={"memory": "fail"}) == {}
    elsewhere = [row("guests.dcgmi", "PASS", "n1"), row("memory.copy", "PASS", "n1")]
    assert notes(*elsewhere, dcgmi={"memory": "fail"}) == {}
    assert notes(*elsewhere, GUEST, row("memory.copy"), dcgmi={"memory": "fail"}).keys() == {
        "guests.dcgmi", "memory.copy"
    }  # fmt: skip


def test_only_known_families_that_passed_or_failed_are_looked_at():
    rows = [GUEST, row("memory.copy"), row("gemm.bf16")]
    assert notes(*rows, dcgmi={"memory": "skip", "other": "fail", "compute": "fail"}) == {
        "guests.dcgmi": ["contradicted on compute: ours pass: gemm.bf16"],
        "gemm.bf16": ["contradicted: dcgmi diag fails on compute"],
    }  # fmt: skip
    for nothing in (None, "fail", ["memory"]):
        assert notes(*rows, dcgmi=nothing) == {}


def test_four_criteria_are_named_and_the_others_counted():
    for count, more in ((4, ""), (5, " and 1 more")):
        rows = [row(f"memory.{k}") for k in range(count)]
        (note,) = notes(GUEST, *rows, dcgmi={"memory": "fail"})["guests.dcgmi"]
        assert note == (
            f"contradicted on memory: ours pass: memory.0, memory.1, memory.2, memory.3{more}"
        )


def test_a_note_is_added_once():
    old = "contradicted: dcgmi diag fails on memory"
    said = row("guests.dcgmi", "PASS", "n0", "contradicted on memory: ours pass: memory.copy")
    assert (
        notes(said, row("memory.copy", "PASS", "n0", "clean", old), dcgmi={"memory": "fail"}) == {}
    )
    assert notes(said, row("memory.copy", "PASS", "n0", "clean"), dcgmi={"memory": "fail"}) == {
        "memory.copy": ["clean", old]
    }
