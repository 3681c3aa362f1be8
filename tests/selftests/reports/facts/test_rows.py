"""What the report is made of: cells, banner, notes and spreadsheet, and that they are escaped."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from fixtures.records.files import write_json
from fixtures.records.inert import inert
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports.exports import export
from reports.facts import rows

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
    assert "bf16 rate" in criterion
    assert "Every GPU reaches the agreed rate" not in criterion
    assert "Every GPU reaches the agreed rate" in rows.details(FAIL)
    assert "Every GPU reaches the agreed rate" in rows.cells(PASS, "Passed")[1]
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
        # A line end or a tab is shown as `\\n`, which begins no formula.
        assert row[name] == (f"'{text.strip()}" if text.isprintable() else inert(text))
    assert row["margin"] == "-0.106"


# --- each part of a row


def a_verdict(outcome: Outcome = Outcome.PASS, **more) -> Verdict:
    given = {"criterion": "gemm.bf16", "title": "Fast", "subject": "worker0", "unit": "TFLOPS"}
    return Verdict(outcome=outcome, **{**given, **more})


def test_the_last_line_of_each_attempt_at_a_row_counts(tmp_path):
    directory = RunDirectory(tmp_path)
    line = {"event": "verdict", "criterion": "x", "subject": "a"}
    lines = [
        {**line, "attempt": 1, "outcome": "FAIL"}, {**line, "attempt": 1, "outcome": "PASS"},
        {**line, "attempt": 2, "outcome": "FAIL"}, {**line, "event": "note", "attempt": 3},
        {**line, "criterion": "y", "attempt": 1, "outcome": "PASS"},
    ]  # fmt: skip
    directory.ledger.write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
    found = rows.attempts_of(directory)
    assert [entry["outcome"] for entry in found["x", "a"]] == ["PASS", "FAIL"]
    assert set(found) == {("x", "a"), ("y", "a")}
    assert set(rows.attempts_of(directory, {("y", "a")})) == {("y", "a")}


def test_the_head_can_be_sorted_by_what_is_text():
    assert [cell.count("sortable") for cell in rows.header()] == [1, 1, 1, 0, 0, 0, 1]
    assert len(rows.header()) == len(rows.COLUMNS)


def test_an_outcome_is_the_verdict_s_unless_its_test_says_worse():
    passed, failed, missing = (
        a_verdict(o) for o in (Outcome.PASS, Outcome.FAIL, Outcome.NOT_MEASURED)
    )
    for result, verdict, expected in (
        ("Passed", passed, Outcome.PASS), ("Skipped", None, None), ("XFailed", None, None),
        ("Failed", failed, Outcome.FAIL), ("Failed", passed, Outcome.FAIL),
        ("Failed", None, Outcome.NOT_MEASURED), ("Error", missing, Outcome.NOT_MEASURED),
        ("Error", passed, Outcome.NOT_MEASURED), ("Error", failed, Outcome.NOT_MEASURED),
    ):  # fmt: skip
        assert rows.shown_outcome(result, verdict) == expected, (result, verdict)


def test_a_row_without_a_verdict_has_the_name_of_its_test():
    made = rows.cells_without_verdict("t.py::test_x[gemm.bf16-a]", "lost\nworker", "Error")
    assert len(made) == len(rows.COLUMNS)
    assert "NOT MEASURED" in made[0]
    assert "<b>gemm.bf16-a</b><small>t.py::test_x[gemm.bf16-a]</small>" in made[1]
    assert "lost worker" in made[3]
    plain = rows.cells_without_verdict("t.py::test_x", "", "Passed")
    assert "<b>t.py::test_x</b></td>" in plain[1]
    assert "NO VERDICT" in plain[0]
    assert "no_verdict" in plain[0]
    assert rows.test_id("t.py::test_x") == ""


def test_what_passed_or_was_not_measured_is_summarised_by_node():
    missing = a_verdict(Outcome.NOT_MEASURED, reason="node lost")
    for verdict, key in (
        (a_verdict(), ("worker0", "")), (missing, ("worker0", "node lost")),
        (replace(missing, reason=""), ("worker0", "no reason given")),
        (a_verdict(reason="any"), ("worker0", "")), (a_verdict(Outcome.FAIL), None),
        (a_verdict(Outcome.WAIVED), None), (a_verdict(devices={}), ("worker0", "")),
        (a_verdict(devices={"planned": 16}), ("worker0", "")),
        (a_verdict(devices={"planned": 17}), None), (a_verdict(devices={"planned": 30}), None),
    ):  # fmt: skip
        assert rows.summary_key(verdict, summarise=True) == key
    assert rows.summary_key(a_verdict(), summarise=False) is None
    assert rows.MAX_SINGLE_ROWS == 3000  # about the verdicts of 20 nodes


def test_a_summary_counts_what_passed_and_names_what_was_closest_to_its_limit():
    near, far = a_verdict(criterion="near", margin=0.02), a_verdict(criterion="far", margin=0.5)
    recorded, absent = a_verdict(Outcome.RECORDED), a_verdict(Outcome.NOT_APPLICABLE)
    negative = a_verdict(Outcome.RECORDED, criterion="below", margin=-0.5)
    some = [far, near, recorded, absent, negative, a_verdict(criterion="no margin")]
    assert rows.summary_outcome(some) is Outcome.PASS
    text = " ".join(rows.summary_cells(("worker0", ""), some))
    for part in ("3 passed", "2 recorded, 1 not applicable", "closest: near", "+2.0 %",
                 "worker0"):  # fmt: skip
        assert part in text
    text = " ".join(rows.summary_cells(("worker0", ""), [a_verdict()]))
    assert "closest" not in text
    assert "class=why" not in text
    assert "0 recorded" not in text
    assert text.count("&ndash;") == 2


def test_a_summary_of_what_was_not_measured_says_why_and_what_to_do():
    missing = a_verdict(Outcome.NOT_MEASURED, reason="node lost", next_step="repair")
    assert rows.summary_outcome([missing, a_verdict()]) is Outcome.NOT_MEASURED
    made = " ".join(rows.summary_cells(("worker0", "node lost"), [missing] * 2))
    assert "2 not measured" in made
    assert "node lost" in made
    assert "Error" in made
    text = rows.summary_details([missing, replace(missing, criterion="x", next_step="")])
    assert "gemm.bf16, x; next: repair<" in text
    assert "results.csv" in rows.summary_details([a_verdict()])


def test_the_details_have_only_what_is_known():
    full = a_verdict(
        Outcome.FAIL, reason="slow", next_step="look", ceiling=989.0, attempt=2, notes=["a note"],
        devices={"planned": 8, "measured": 7}, job="42", record="gemm@w 0.json", value=541.0,
    )  # fmt: skip
    earlier = [{"attempt": 1, "outcome": "NOT_MEASURED", "value": None, "reason": "lost"},
               {"attempt": 1, "outcome": "FAIL", "value": 540.5, "unit": "TFLOPS"}]  # fmt: skip
    text = rows.details(full, earlier, red="a hot GPU", source="measured")
    for part in (
        "<dt>Usually</dt><dd>a hot GPU</dd>", "<dt>Next step</dt><dd>look</dd>",
        "<dt>Limit&#39;s source</dt><dd>measured</dd>", "7 of 8 measured", "989 TFLOPS",
        "<dt>Attempt</dt><dd>2</dd>", "attempt 1: NOT MEASURED; lost<", "<p class=\"line\">",
        "attempt 1: FAIL, 540.5 TFLOPS<", "job 42, <a href=\"records/gemm%40w%200.json\"",
        "<dt>Area</dt><dd>Compute</dd>",
    ):  # fmt: skip
        assert part in text, part
    assert "<dt>Why</dt>" not in text
    assert "<dt>Note</dt>" not in text
    bare = rows.details(a_verdict(reason="why", notes=["a note"]), red="a hot GPU")
    assert "<dt>Why</dt><dd>why</dd>" in bare
    assert "<dt>Note</dt><dd>a note</dd>" in bare
    for absent in ("Usually", "Ceiling", "Devices", "Attempt", "Evidence", 'class="line"'):
        assert absent not in bare
    for outcome in (Outcome.NOT_MEASURED, Outcome.WAIVED):
        assert 'class="line"' in rows.details(a_verdict(outcome, reason="why"))


def test_the_worst_device_is_named_with_its_node_where_that_is_another():
    name = rows._device_name
    for worst, expected in (
        (None, ""), ({"node": "worker0", "gpu": 3, "uuid": "GPU-1"}, "gpu3 GPU-1"),
        ({"node": "w9", "gpu": 0, "uuid": None}, "w9 gpu0"),
        ({"node": None, "part": "nic0"}, "nic0"),
    ):  # fmt: skip
        assert name(a_verdict(worst=worst)) == expected


def test_a_margin_is_green_from_0_on_and_a_multiple_from_10_times_on():
    for margin, expected in (
        (0.0, '<span class="good">+0.0 %</span>'), (-0.001, '<span class="bad">-0.1 %</span>'),
        (0.5, '<span class="good">+50.0 %</span>'), (9.99, '<span class="good">+999.0 %</span>'),
        (10.0, '<span class="good">11 x the limit</span>'), (None, "&ndash;"),
    ):  # fmt: skip
        assert str(rows._margin(a_verdict(margin=margin))) == expected


def test_what_was_measured_stands_with_its_reason():
    assert str(rows._measured(a_verdict(Outcome.NOT_APPLICABLE, reason="no NIC"))) == (
        "<span class=why>no NIC</span>"
    )
    assert "class=why" not in rows._measured(a_verdict(value=5.0))
    assert rows._measured(a_verdict(value=5.0, reason="why")).endswith("why</span>")


def test_rows_are_sorted_by_the_text_of_three_cells():
    keys = rows.sort_keys(rows.cells(a_verdict(limit=">= 5", value=6.0, margin=0.2), "Passed"))
    assert set(keys) == {"outcome", "criterion", "where"}
    assert keys["where"] == "<b>worker0</b>"


def test_a_line_is_one_line_and_a_loose_limit_says_why():
    assert rows.one_line("a\n b\tc") == "a b c"
    assert rows.one_line(5) == "5"
    assert rows.split_limit(">= 5 (loose: why)") == (">= 5", "why")
    assert rows.split_limit(">= 5") == (">= 5", "")
    assert rows.outcome_text("NOT_MEASURED") == "NOT MEASURED"
    for unit in ("us", "s", "peers", "errors", "elements"):
        assert rows.low_is_bad(unit) is False
    assert rows.low_is_bad("GB/s") is True


def test_the_most_urgent_rows_come_first():
    order = ["Failed", "Error", "XFailed", "Passed", rows.RECORDED_FILTER, "Skipped"]
    assert [rows.SORT_RANK[name] for name in order] == list(range(6))
