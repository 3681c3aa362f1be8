"""Exports of the verdicts, for programs and for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures.paths import version
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports import __main__ as command
from reports.evidence.findings import Findings
from reports.exports import export
from reports.handover import verify
from tests.selftests import judged_runs
from tests.selftests.reports.pages.test_page import PLAN, measured

pytestmark = pytest.mark.cpu

FORMULA = '=HYPERLINK("http://example.org","x")'


def written(root: Path, plan: Sequence[Verdict]) -> RunDirectory:
    """A run directory with these verdicts, and nothing measured."""
    directory = judged_runs.written(
        root, judged_runs.verdict_of(plan), suite_version=version(), contract={"nodes": 3}
    )
    directory.write_manifest()
    return directory


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    hostile = measured("gemm.bf16", FORMULA, Outcome.FAIL, 1.5, reason="\t+1+1", next_step="@x\n=1")
    # Nothing was measured; that a verdict follows from records is test_evidence_attacks.py's.
    monkeypatch.setattr(verify, "check_verdict", lambda *_: Findings())
    return written(tmp_path / "run", [*PLAN, hostile]).root


def test_no_cell_is_a_formula(run, capsys):
    assert command.main(["export", str(run), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len(PLAN) + 1
    cells = [cell for row in rows for cell in row.values() if isinstance(cell, str)]
    formulas = [cell for cell in cells if cell[:1] in "=+@" and cell]
    assert formulas == []
    assert {row["subject"] for row in rows} >= {f"'{FORMULA}"}
    assert rows[-1]["reason"] == r"\t+1+1", "a tab is shown"


def test_json_is_for_programs_and_says_all_that_can_be_shown(run, capsys):
    assert command.main(["export", str(run), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [rows[-1][name] for name in ("subject", "reason", "next_step")] == [
        FORMULA, r"\t+1+1", r"@x\n=1"
    ]  # fmt: skip


def test_prometheus_reads_it(run, capsys):
    assert command.main(["export", str(run), "--prometheus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'gpu_acceptance_criteria{outcome="fail"} 2' in lines
    value = 'gpu_acceptance_value{criterion="gemm.bf16",subject="worker1",unit="TFLOPS"} 541.0'
    assert value in lines
    assert any(r'subject="=HYPERLINK(\"http://example.org\",\"x\")"' in line for line in lines)
    samples = [line for line in lines if not line.startswith("#")]
    assert all(line.count("\n") == 0 and float(line.rpartition(" ")[2]) >= -1 for line in samples)
    # Each metric is announced once, before its first sample.
    names = [line.partition("{")[0] for line in samples]
    assert names == sorted(names, key=lambda n: lines.index(f"# TYPE {n} gauge"))


def test_parquet_holds_every_verdict_with_its_types(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="no pyarrow: not in the extra dev?")
    out = tmp_path / "verdicts.parquet"
    assert command.main(["export", str(run), "--parquet", "--out", str(out)]) == 0
    table = parquet.read_table(out)
    rows = table.to_pylist()
    said = json.loads((run / "verdict.json").read_text())["criteria"]
    assert [row["criterion"] for row in rows] == [v["criterion"] for v in said]
    assert [row["margin"] for row in rows] == [v["margin"] for v in said]
    assert str(table.schema.field("margin").type) == "double"
    # A column has one type, and this one holds states as well.
    texts = [None if v["value"] is None else str(v["value"]) for v in said]
    assert [row["value"] for row in rows] == texts
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_parquet_is_not_for_a_terminal(run, capsys):
    assert command.main(["export", str(run), "--parquet"]) == 4
    assert capsys.readouterr().err == "reports: --parquet is binary: give --out FILE\n"


def test_parquet_without_pyarrow_is_one_line(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert command.main(["export", str(run), "--parquet", "--out", str(tmp_path / "x")]) == 4
    said = capsys.readouterr().err
    assert "pip install pyarrow" in said
    assert said.count("\n") == 1


def test_a_run_without_a_verdict_has_nothing_to_export(run, capsys):
    (run / "verdict.json").unlink()
    assert command.main(["export", str(run), "--csv"]) == 4
    assert "python -m reports render" in capsys.readouterr().err


def test_results_csv_is_the_exported_one(run, capsys):
    export.write_results(RunDirectory(run))
    command.main(["export", str(run), "--csv"])
    assert capsys.readouterr().out == (run / "results.csv").read_text()


def test_a_cell_that_is_a_formula_is_text_and_a_number_stays_a_number():
    for value, expected in (
        ("=1", "'=1"), ("-x", "'-x"), ("\t@x", "'@x"), ("a\nb", "a b"), (5.0, 5.0), (None, None),
    ):  # fmt: skip
        assert export.escape_formula(value) == expected


def test_a_row_has_area_worst_device_and_notes_in_its_columns():
    verdict = {"criteria": [v.to_json() for v in PLAN]}
    (first, *_) = csv.DictReader(io.StringIO(export.results(verdict)))
    assert (first["area"], first["worst_gpu"], first["devices_planned"]) == ("compute", "3", "8")
    assert first["notes"] == "power limit lowered to 600 W"
    bare = {**verdict["criteria"][0], "worst": None, "notes": None}
    (row,) = csv.DictReader(io.StringIO(export.results({"criteria": [bare]})))
    assert (row["worst_gpu"], row["notes"], row["subject"]) == ("", "", "worker0")


def test_prometheus_has_a_sample_only_of_what_was_judged_or_is_a_number():
    rows = [
        {"criterion": "x", "subject": s, "unit": "u", "outcome": o, "value": v, "margin": m}
        for s, o, v, m in (("a", "PASS", 1, 0.5), ("b", "FAIL", "up", None),
                               ("c", "WAIVED", None, None), ('"\\', "RECORDED", 2, None))
    ]  # fmt: skip
    text = export.prometheus({"criteria": rows, "counts": {"pass": 1}})
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.replace('criterion="x",', "").replace(',unit="u"', "") for line in samples] == [
        'gpu_acceptance_pass{subject="a"} 1', 'gpu_acceptance_pass{subject="b"} 0',
        'gpu_acceptance_pass{subject="c"} 0', 'gpu_acceptance_value{subject="a"} 1.0',
        'gpu_acceptance_value{subject="\\"\\\\"} 2.0', 'gpu_acceptance_margin{subject="a"} 0.5',
        'gpu_acceptance_criteria{outcome="pass"} 1',
    ]  # fmt: skip
    assert text.endswith("\n")


def test_results_csv_is_written_of_the_verdict_that_is_given(run):
    path = export.write_results(RunDirectory(run), {"criteria": []})
    assert path == run / "results.csv"
    assert path.read_text() == ",".join(export.COLUMNS) + "\n"


def test_a_file_is_written_instead_of_the_screen(run, tmp_path, capsys):
    verdict = json.loads((run / "verdict.json").read_text())
    assert export.write(verdict, "json", tmp_path / "x.json") == 0
    assert capsys.readouterr().out == ""
    assert len(json.loads((tmp_path / "x.json").read_text())) == len(PLAN) + 1
    assert export.write(verdict, "csv", None) == 0
    assert capsys.readouterr().out == export.results(verdict)
