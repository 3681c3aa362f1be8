"""What the report is made of: cells, banner, notes and spreadsheet, and that they are escaped."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from fixtures.records.files import write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports import export, rows

pytestmark = pytest.mark.cpu

HOSTILE = "<img src=x onerror=alert(1)>"
PASS = Verdict(
    criterion="gemm.bf16", title="Every GPU reaches the agreed rate", subject="worker1",
    outcome=Outcome.PASS, value=641.25, unit="TFLOPS", limit=">= 605", ceiling=989.0,
    margin=0.06, worst={"node": "worker1", "gpu": 3, "uuid": "GPU-1a2b", "value": 641.25},
    devices={"planned": 8, "measured": 8}, record="gemm@worker1.json", job="4242",
)  # fmt: skip
FAIL = replace(
    PASS, outcome=Outcome.FAIL, value=541.0, margin=-0.106, next_step="check the heat sink"
)
LOST = replace(
    PASS, outcome=Outcome.NOT_MEASURED, value=None, limit="", ceiling=None, margin=None,
    worst=None, reason="node lost: worker1 went down", next_step="repair it, then --resume",
    devices={"planned": 8, "measured": 0}, record=None,
)  # fmt: skip


def verdict_json(*verdicts: Verdict, name: str = "REJECTED", **more):
    tally = {o.value.lower(): sum(v.outcome is o for v in verdicts) for o in Outcome}
    return {
        "run_id": "20261120-141500-3fa2", "verdict": name, "exit_status": 1, "reasons": ["why"],
        "scope": {"tier": "standard", "whole": True, "origin": "cluster", "nodes": ["worker1"]},
        "counts": {"planned": len(verdicts), **tally},
        "criteria": [v.to_json() for v in verdicts], **more,
    }  # fmt: skip


def hostile(outcome: Outcome) -> Verdict:
    """A verdict with markup in every text that it has."""
    return Verdict(
        criterion=HOSTILE, title=HOSTILE, subject=HOSTILE, outcome=outcome,
        value=HOSTILE, unit=HOSTILE, limit=f"{HOSTILE} (loose: {HOSTILE})", ceiling=1.0,
        worst={"node": HOSTILE, "gpu": HOSTILE, "uuid": HOSTILE, "value": 1}, reason=HOSTILE,
        next_step=HOSTILE, record=f'"{HOSTILE}', job=HOSTILE, notes=[HOSTILE],
    )  # fmt: skip


# --- rows


def test_a_row_says_criterion_place_value_limit_and_margin():
    made = rows.cells(FAIL, "Failed")
    assert len(made) == len(rows.header()) == len(rows.COLUMNS)
    outcome, criterion, where, measured, limit, margin, result = made
    assert ">FAIL<" in outcome
    assert "gemm.bf16" in criterion
    assert "Every GPU reaches the agreed rate" in criterion
    assert "worker1" in where
    assert "gpu3 GPU-1a2b" in where
    assert "541 TFLOPS" in measured
    assert "&gt;= 605" in limit
    assert "-10.6 %" in margin
    # pytest-html reads the word out of this cell, with this very class.
    assert result == '<td class="col-result">Failed</td>'


def test_a_loose_limit_says_so_beside_it():
    cell = rows.cells(replace(PASS, limit=">= 0.01 (loose: demonstration)"), "Passed")[4]
    assert "&gt;= 0.01" in cell
    assert "loose: demonstration" in cell


@pytest.mark.parametrize(
    ("verdict", "result", "shown"),
    [
        (PASS, "Passed", "PASS"),
        (FAIL, "Failed", "FAIL"),
        (LOST, "Error", "NOT MEASURED"),
        (replace(PASS, outcome=Outcome.NOT_APPLICABLE), "Skipped", "NOT APPLICABLE"),
        (replace(PASS, outcome=Outcome.WAIVED), "XFailed", "WAIVED"),
        (PASS, "Failed", "FAIL"),
        (PASS, "Error", "NOT MEASURED"),
    ],
)
def test_a_row_never_looks_better_than_its_test(verdict, result, shown):
    assert f">{shown}<" in rows.cells(verdict, result)[0]


def test_a_test_without_verdict_never_shows_as_a_pass():
    nodeid = "tests/test_compute.py::test_rate[gemm.bf16-worker1]"
    for result in rows.SORT_RANK:
        made = rows.cells_without_verdict(nodeid, "worker 'gw0' crashed", result)
        assert len(made) == len(rows.COLUMNS)
        assert ">PASS<" not in made[0]
    assert "gemm.bf16-worker1" in made[1]
    assert "crashed" in made[3]


@pytest.mark.parametrize("outcome", Outcome)
def test_nothing_in_a_row_is_markup(outcome):
    verdict = hostile(outcome)
    earlier = [{"attempt": HOSTILE, "outcome": HOSTILE, "value": HOSTILE, "unit": HOSTILE}]
    made = [*rows.cells(verdict, rows.RESULT[outcome]), rows.details(verdict, earlier)]
    made += rows.cells_without_verdict(f"test.py::x[{HOSTILE}]", HOSTILE, "Error")
    assert "<img" not in "".join(made)
    assert "&lt;img" in "".join(made)


def test_a_row_is_sorted_by_the_same_text_whoever_made_it():
    made = rows.cells(PASS, "Passed")
    # pytest-html's own rule, in BaseReport._hydrate_data.
    assert rows.sort_keys(made)["criterion"] == made[1].split('">', 1)[1].removesuffix("</td>")


def test_details_name_evidence_next_step_and_earlier_attempts():
    earlier = [{"attempt": 1, "outcome": "NOT_MEASURED", "value": None, "reason": "rank died"}]
    text = rows.details(replace(FAIL, attempt=2, notes=["clocks at 1210 MHz"]), earlier)
    assert 'href="records/gemm%40worker1.json"' in text
    for said in ("job 4242", "check the heat sink", "8 of 8 measured", "989 TFLOPS",
                 "clocks at 1210 MHz", "attempt 1: NOT MEASURED; rank died"):  # fmt: skip
        assert said in text


# --- spreadsheet


def test_results_have_a_row_for_each_verdict(tmp_path):
    write_json(tmp_path / "verdict.json", verdict_json(PASS, LOST))
    export.write_results(RunDirectory(tmp_path))
    with (tmp_path / "results.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["criterion"], first["value"], first["worst_uuid"]) == (
        "gemm.bf16", "641.25", "GPU-1a2b",
    )  # fmt: skip
    assert (second["outcome"], second["value"], second["devices_planned"]) == (
        "NOT_MEASURED", "", "8",
    )  # fmt: skip


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " ="])
def test_no_cell_is_a_formula(tmp_path, first):
    text = f"{first}cmd|' /C calc'!A0"
    verdict = replace(FAIL, reason=text, subject=text, notes=[text], value=text)
    write_json(tmp_path / "verdict.json", verdict_json(verdict))
    export.write_results(RunDirectory(tmp_path))
    with (tmp_path / "results.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    for name in ("reason", "subject", "notes", "value"):
        assert row[name] == f"'{text.strip()}"
    assert row["margin"] == "-0.106"
