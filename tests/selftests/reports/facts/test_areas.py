"""The areas of criteria, and the outcomes of each node in each of them."""

from __future__ import annotations

import pytest

from reports.facts import areas
from reports.facts.areas import Cell, Coverage
from tests.selftests.reports.pages.test_page import PLAN

pytestmark = pytest.mark.cpu


def test_every_subject_and_area_has_its_cell():
    criteria = [v.to_json() for v in PLAN]
    found = areas.coverage(criteria, ["worker0", "worker1", "worker2"])
    assert found.columns == ["Compute", "Collectives"]
    assert found.rows["worker1"]["Compute"].text == "1 failed"
    assert found.rows["worker2"]["Compute"].text == "1 not measured"
    assert found.rows[areas.WHOLE_CLUSTER]["Collectives"].worst == "NOT_MEASURED"
    assert found.not_passed == ["worker1", "worker2", areas.WHOLE_CLUSTER]


def test_a_criterion_that_is_not_the_suite_s_own_stands_under_other():
    known = areas.areas([{"criterion": "filesystem.append"}, {"criterion": "gemm.bf16"},
                         {"criterion": "alone"}])  # fmt: skip
    assert known == {"filesystem.append": "Filesystem", "gemm.bf16": "Compute", "alone": "Other"}
    assert areas.ordered(known.values()) == ["Filesystem", "Compute", "Other"]


def test_a_subject_that_is_no_node_counts_for_the_whole_cluster():
    def row(subject: str) -> dict[str, str]:
        return {"criterion": "gemm.bf16", "subject": subject, "outcome": "PASS"}

    rows = [row("n0"), row("n0--n1"), row("cluster"), row("rail0")]
    found = areas.coverage(rows, ["n1", "n0", "cluster"])
    assert {name: cells["Compute"].text for name, cells in found.rows.items()} == {
        "n0": "1 of 1", areas.WHOLE_CLUSTER: "3 of 3"
    }  # fmt: skip
    assert found.not_passed == []


def test_a_cell_says_its_most_urgent_outcome():
    for outcomes, worst, text in (
        ({"FAIL": 2, "NOT_MEASURED": 1, "PASS": 3}, "FAIL", "2 failed"),
        ({"NOT_MEASURED": 1, "WAIVED": 1, "PASS": 3}, "NOT_MEASURED", "1 not measured"),
        ({"WAIVED": 1, "PASS": 3, "RECORDED": 1}, "WAIVED", "4 of 4"),
        ({"RECORDED": 2, "NOT_APPLICABLE": 1}, "RECORDED", "2 recorded"),
        ({"NOT_APPLICABLE": 1}, "NOT_APPLICABLE", "n/a"), ({}, "", ""),
    ):  # fmt: skip
        cell = Cell()
        cell.outcomes.update(outcomes)
        assert (cell.worst, cell.text) == (worst, text)
        not_passed = Coverage(["Compute"], {"n0": {"Compute": cell}}).not_passed
        assert not_passed == (["n0"] if worst in ("FAIL", "NOT_MEASURED") else [])
