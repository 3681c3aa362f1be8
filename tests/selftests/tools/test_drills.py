"""The table of `make drills`: what is written of a fault, and how the report shows it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.pages import drills as shown
from tests.selftests import faults
from tests.selftests.faults import Fault
from tests.selftests.support import DATA, replay, run_pytest
from tests.tools import drills

pytestmark = pytest.mark.cpu

FAULT = Fault(
    criterion="gemm.bf16", name="slow", where="clocks", culprit="worker1",
    inject=lambda sandbox: nullcontext(), select="gemm", also=("gemm.spread",),
)  # fmt: skip


def drilled(monkeypatch: pytest.MonkeyPatch, fault: Fault = FAULT, **found: Any) -> drills.Line:
    made = {"named": ("worker1",), "devices": (), "others": (), "lines": (), "rows": [], "said": ""}
    outcome = faults.Outcome(**{**made, **found})
    monkeypatch.setattr(faults, "drill", lambda *a, **k: outcome)
    nowhere: Any = None
    return drills.drill(nowhere, fault, Path("/nowhere"), area=True)


def test_a_fault_whose_culprit_is_named_and_nothing_else_is_right(monkeypatch):
    line = drilled(monkeypatch)
    assert (line.found, line.right, line.named, line.others) == (
        True, True, "worker1", "(gemm.spread)",
    )  # fmt: skip
    assert line.seconds >= 0


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        ({"named": ()}, False),
        ({"named": ("worker0",)}, True),
        ({"named": ("worker0", "worker1")}, True),
        ({"others": ("memory.copy worker0",)}, True),
    ],
)
def test_a_fault_is_not_right_without_its_culprit_or_with_anything_else_red(
    monkeypatch, found, seen
):
    line = drilled(monkeypatch, **found)
    assert (line.found, line.right) == (seen, False)


def test_a_drill_that_breaks_is_a_row_and_not_right(monkeypatch):
    def broken(*arguments: Any, **more: Any) -> Any:
        raise RuntimeError("no sandbox")

    monkeypatch.setattr(faults, "drill", broken)
    nowhere: Any = None
    line = drills.drill(nowhere, FAULT, Path("/nowhere"), area=True)
    assert (line.found, line.right) == (False, False)
    assert "no sandbox" in line.named


def table(**changed: Any) -> dict[str, Any]:
    line = drills.Line(
        criterion="gemm.bf16", fault="<b>slow</b>", where="clocks", culprit="worker1", found=True,
        named="worker1", others="none", seconds=12.4, right=True,
    )  # fmt: skip
    record = drills.Line(**{**vars(line), "criterion": "p2p.write", "planted": True})
    return {**drills.as_json([line, record]), **changed}


def write(tmp_path: Path, data: Any) -> RunDirectory:
    found = RunDirectory(tmp_path)
    found.drills.write_text(json.dumps(data), encoding="utf-8")
    return found


def test_the_report_shows_the_table_that_it_was_given(tmp_path):
    assert shown.section(RunDirectory(tmp_path / "none")) == ""
    html = " ".join(shown.section(write(tmp_path, table())).split())
    assert "Found: 2 of 2 faults" in html
    assert "They are about 2 criteria; for 1 of them a fault went in below the workload" in html
    assert "&lt;b&gt;slow&lt;/b&gt;" in html
    assert "clocks (planted)" in html
    assert "<td>12</td>" in html


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "not of schema"), ({"schema": 1}, "has no rows"),
        ({"schema": 1, "rows": [{"criterion": "a"}]}, "lacks fault"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_said_and_shown_as_no_proof(tmp_path, data, said):
    html = shown.section(write(tmp_path, data))
    assert said in html
    assert "were found" not in html


def test_a_run_keeps_the_table_and_so_does_its_replay(tmp_path):
    given = write(tmp_path, table()).drills
    replay(DATA / "h200-1x4", tmp_path / "run", f"--drills={given}")
    again = tmp_path / "again"
    replay(tmp_path / "run", again)
    for run in (tmp_path / "run", again):
        assert (run / "drills.json").read_bytes() == given.read_bytes()
        assert "Proof that the criteria can fail" in (run / "report.html").read_text()
    without, _ = tmp_path / "without", replay(DATA / "h200-1x4", tmp_path / "without")
    assert "Proof that the criteria can fail" not in (without / "report.html").read_text()


def test_a_table_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    done = run_pytest("--cluster=local", f"--drills={tmp_path}/none.json", "--collect-only")
    assert done.returncode == 4
    assert "is not a file; `make drills` writes one" in done.stdout + done.stderr
