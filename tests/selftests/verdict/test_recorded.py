"""RECORDED: measured as completely as anything else, shown with its value, judged by nobody."""

from __future__ import annotations

import csv
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.node_lists import RowNodes, node_lists
from fixtures.conclusion.run_verdict import judged_of
from fixtures.records.absence import Kind
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from reports import __main__ as command
from reports.exports import compare, github, tables
from reports.pages import certificate
from tests.selftests import derive_runs, support
from tests.selftests.judged_runs import concluded
from tests.selftests.judging import judged
from tests.selftests.support import (
    DATA,
    absent,
    bf16,
    case,
    latency,
    load,
    node_record,
    rank,
    record,
)

pytestmark = pytest.mark.cpu

L40S = {"model": "L40S"}
"""The model for which support.LIMITS only records gemm.bf16."""
STORAGE = ("filesystem.write.alone", "worker0")


def found(limits: loader.Thresholds, measured: Record | None, **more: Any) -> Verdict:
    facts = {**L40S, **more.pop("facts", {})}
    return judged(limits, "gemm.bf16", measured, facts=facts, recorded=True, **more)


# --- the judge


def test_the_worst_device_is_shown_with_value_and_unit(limits):
    verdict = found(limits, node_record(300, 280))
    assert (verdict.outcome, verdict.value, verdict.unit) == (Outcome.RECORDED, 280, "TFLOPS")
    assert verdict.worst is not None
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker0", 1)
    assert verdict.devices == {"planned": 2, "measured": 2}
    assert (verdict.margin, verdict.next_step, verdict.ok) == (None, "", False)
    assert "280 TFLOPS, recorded, not judged; nobody has published a figure" in verdict.line


def test_of_a_time_the_longest_is_shown(tmp_path):
    text = support.LIMITS.replace(
        "{model: B200, calibrate: true}", "{model: B200, recorded: nobody asked}"
    )
    limits = load(tmp_path, text)
    ranks = [rank(k, "worker0", latency(*[us] * 5)) for k, us in enumerate((40.0, 90.0))]
    verdict = judged(
        limits, "allreduce.latency", record(*ranks, workload="allreduce"), facts={"model": "B200"}
    )
    assert (verdict.outcome, verdict.value) == (Outcome.RECORDED, 90.0)


def without_a_rank() -> Record:
    whole = node_record(300, 280)
    return replace(whole, ranks=whole.ranks[:1])


INCOMPLETE = {
    "no record": (None, "not run"),
    "a rank is missing": (without_a_rank(), "measured on 1 of 2 devices"),
    "not a number": (node_record(300, math.nan), "not finite"),
    "a check is not met": (
        record(*(rank(k, "worker0", bf16(checks={"overlap": 0.2})) for k in range(2))),
        "overlap is 0.2",
    ),
    "another unit": (
        record(*(rank(k, "worker0", bf16(unit="GFLOPS")) for k in range(2))), "measured in GFLOPS",
    ),
    "above what is possible": (node_record(300, 9000), "above the physical ceiling"),
    "nothing of it": (record(*(rank(k, "worker0") for k in range(2))), "holds no bf16"),
    "on another node": (
        node_record(300, 280, node="worker7"), "not measured on worker0, only on worker7"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INCOMPLETE)
def test_what_is_missing_or_broken_is_not_measured_as_for_any_row(limits, name):
    measured, why = INCOMPLETE[name]
    verdict = found(limits, measured)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert why in verdict.reason
    assert verdict.next_step
    run = concluded([verdict])
    assert (run.verdict, run.exit_status) == ("INCOMPLETE", 2)


def test_without_one_of_several_nodes_it_is_not_measured(tmp_path):
    text = support.LIMITS.replace(
        "{expect: 100, fail_below: 80, source: measured}", "{recorded: nobody asked}"
    )
    limits = load(tmp_path, text)
    measured = record(
        *(rank(k, "worker0", support.busbw(90, 90, 90)) for k in range(2)), workload="allreduce"
    )
    pair = ("worker0", "worker1")
    verdict = judged(limits, "allreduce.pair", measured, nodes=pair)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "measured on 1 of 2 nodes; without worker1" in verdict.reason


@pytest.mark.parametrize(
    ("kind", "said", "outcome"),
    [
        (Kind.NOT_THERE, "no best shape was published for this device", Outcome.NOT_APPLICABLE),
        (Kind.FAULT, "GpuIsLost", Outcome.NOT_MEASURED),
    ],
)
def test_what_the_hardware_does_not_have_is_not_owed(limits, kind, said, outcome):
    gap = [absent(kind, "bf16", said)]
    silent = [replace(rank(k, "worker0"), absent=gap) for k in range(2)]
    verdict = found(limits, record(*silent))
    assert verdict.outcome is outcome
    assert said in verdict.reason
    # Where another device has it, that one's value stands, and the note says how many have none.
    measured = record(rank(0, "worker0", bf16()), silent[1])
    verdict = found(limits, measured)
    if outcome is Outcome.NOT_APPLICABLE:
        assert (verdict.outcome, verdict.value) == (Outcome.RECORDED, 650)
        assert f"1 of 2 devices has none: {said}" in verdict.notes
    else:
        assert verdict.outcome is Outcome.NOT_MEASURED


def test_it_never_accuses(limits):
    slow = found(limits, node_record(300, 3), siblings=(300.0,) * 15 + (3.0,))
    assert slow.outcome is Outcome.RECORDED
    healthy = replace(slow, criterion="gemm.fp32", outcome=Outcome.PASS)
    nodes = RowNodes(("worker0",), {})
    lists = node_lists([slow, healthy], nodes)
    assert (lists.good, lists.bad) == (["worker0"], [])
    alone = node_lists([slow], nodes)
    assert (alone.good, alone.bad) == ([], [])


def test_a_run_of_which_all_is_recorded_accepts_nothing(limits):
    verdict = found(limits, node_record(300, 280))
    run = concluded([verdict])
    assert (run.verdict, run.exit_status) == ("INCOMPLETE", 2)
    assert run.reasons == ["everything measured is recorded only: no limit applies to it"]
    assert judged_of(run.counts) == (0, 0)


def test_the_same_case_is_judged_where_there_is_a_limit(limits):
    verdict = judge(case(limits, "gemm.bf16", node_record(650, 650)), limits)
    assert verdict.outcome is Outcome.PASS


# --- a recorded run, replayed by the acceptance tests


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("recorded") / "run"
    status, verdict = support.replay(DATA / "h200-2x2", root)
    assert status == 0
    return root, verdict


def rows(verdict: dict[str, Any], outcome: str = "RECORDED") -> dict[tuple[str, str], Any]:
    criteria = verdict["criteria"]
    return {(v["criterion"], v["subject"]): v for v in criteria if v["outcome"] == outcome}


def test_all_that_was_measured_without_a_limit_has_a_value(replayed):
    _, verdict = replayed
    recorded = rows(verdict)
    assert len(recorded) == verdict["counts"]["recorded"] == 30
    for key, row in recorded.items():
        assert isinstance(row["value"], (int, float)), key
        assert math.isfinite(row["value"]), key
        assert row["unit"], key
        assert row["reason"], key
        assert row["devices"]["measured"] == row["devices"]["planned"] > 0, key
    assert recorded[STORAGE]["value"] == pytest.approx(0.998, abs=1e-3)
    assert recorded["filesystem.read.alone", "worker0"]["value"] == pytest.approx(1.317, abs=1e-3)


def test_nothing_that_was_measured_is_called_not_applicable(replayed):
    root, verdict = replayed
    criteria = loader.load(support.SHIPPED).criteria
    records = tables.records_of(RunDirectory(root))
    for key, subject in rows(verdict, "NOT_APPLICABLE"):
        c = criteria[key]
        for found in (r for r in records if r.workload == c.workload):
            of_it = found.placement == subject if c.per == "node" else len(found.nodes) > 1
            assert not of_it or not found.points(c.metric, c.at), key


def test_counts_hold_it_apart(replayed):
    _, verdict = replayed
    counts = verdict["counts"]
    assert (verdict["schema"], verdict["verdict"]) == (2, "DEMONSTRATION")
    parts = ("pass", "fail", "not_measured", "not_applicable", "waived", "recorded")
    assert sum(counts[name] for name in parts) == counts["planned"]
    assert judged_of(counts) == (235, 235)


def test_its_test_passes_and_says_so_in_a_property(replayed):
    root, _ = replayed
    cases = {case.get("name", ""): case for case in ET.parse(root / "junit.xml").iter("testcase")}
    (name,) = [n for n in cases if "filesystem.write.alone-worker0" in n]
    properties = {p.get("name"): p.get("value") for p in cases[name].iter("property")}
    assert properties["recorded"] == "RECORDED 0.9984 GB/s"
    assert [child.tag for child in cases[name] if child.tag != "properties"] == []
    judged_case = next(c for n, c in cases.items() if "gemm.bf16-" in n)
    assert "recorded" not in {p.get("name") for p in judged_case.iter("property")}


def test_the_report_shows_it_with_value_filter_count_and_legend(replayed):
    root, verdict = replayed
    text = (root / "report.html").read_text(encoding="utf-8")
    blob = re.search(r'data-jsonblob="([^"]*)"', text)
    assert blob is not None
    tests = json.loads(blob[1].replace("&#34;", '"').replace("&amp;", "&").replace("&lt;", "<")
                       .replace("&gt;", ">").replace("&#39;", "'"))["tests"]  # fmt: skip
    shown = [row for found in tests.values() for row in found if row["result"] == "XPassed"]
    assert len(shown) == len(rows(verdict))
    (row,) = [r for r in shown if '["filesystem.write.alone", "worker0"]' in
              r["resultsTableRow"][2].replace("&#34;", '"')]  # fmt: skip
    assert ">RECORDED<" in row["resultsTableRow"][0]
    assert "<b>0.9984 GB/s</b>" in row["resultsTableRow"][3]
    assert row["resultsTableRow"][6] == '<td class="col-result">Passed</td>'
    words = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert "30 recorded" in words
    assert "RECORDED measured and shown with its value, but not judged" in words
    assert "235 of 235 judged" in words
    assert re.search(r'<span class="xpassed">30 Recorded', text)


def test_every_other_output_shows_value_and_unit(replayed, capsys):
    root, verdict = replayed
    with (root / "results.csv").open(newline="") as file:
        (line,) = [r for r in csv.DictReader(file) if (r["criterion"], r["subject"]) == STORAGE]
    assert (line["outcome"], line["unit"], line["margin"]) == ("RECORDED", "GB/s", "")
    assert float(line["value"]) == pytest.approx(0.998, abs=1e-3)
    assert command.main(["tables", str(root)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"filesystem\.write\.alone +worker0 +0\.9984 GB/s", printed)
    assert command.main(["compare", str(root), str(root)]) == 0
    (line_of_it,) = [n for n in capsys.readouterr().out.splitlines() if "filesystem.write.al" in n]
    assert "GB/s" in line_of_it
    assert line_of_it.rstrip().endswith("recorded")
    summary = github.markdown(verdict)
    assert "recorded 30" in summary
    assert "| worker0 | filesystem.write.alone | 0.9984 GB/s |" in summary
    page = certificate.page(RunDirectory(root), verdict).replace("<wbr>", "")
    page = re.sub("<[^>]*>", " ", page)
    words = " ".join(page.split())
    assert "235 of 235 verdicts were reached" in words
    assert "30 recorded with their values" in words
    row = words.partition("filesystem.write.alone recorded ")[2].partition("filesystem.")[0]
    assert "recorded, not judged recorded worker0: 0.9984 GB/s" in row


def test_a_change_of_what_nobody_judges_is_no_regression(replayed, tmp_path, capsys):
    root, verdict = replayed
    before, after = tmp_path / "before", tmp_path / "after"
    derive_runs.derive(root, before, "unchanged")
    derive_runs.derive(root, after, "unchanged")
    with support.edited(after / "records" / "gemm@worker0.json") as data:
        for measurement in (m for r in data["ranks"] for m in r["measurements"]):
            if measurement["metric"] == "bf16_best":
                measurement["samples"] = [x / 2 for x in measurement["samples"]]
    limits = loader.load(support.SHIPPED)
    changed = compare.changes(RunDirectory(before), RunDirectory(after), limits)
    significant = [c for c in changed if c.significant]
    assert {c.criterion for c in significant} == {"gemm.bf16_best"}
    assert not any(c.worse for c in significant)
    for run in (before, after):
        (run / "verdict.json").write_text(json.dumps(verdict))
    assert compare.show(before, after, support.SHIPPED, include_unchanged=False) == 0
    assert "worse" not in capsys.readouterr().out
