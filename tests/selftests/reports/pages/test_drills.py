"""The section of the report with the table of `make drills`: counts, and what is not a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import RecordError
from fixtures.records.model import SCHEMA
from fixtures.records.run_directory import RunDirectory
from reports.pages import drills

pytestmark = pytest.mark.cpu


def row(criterion: str, **more: Any) -> dict[str, Any]:
    values = dict.fromkeys(drills.COLUMNS, "text")
    return {**values, "criterion": criterion, "seconds": 3.0, "right": True, "found": True,
            "planted": False, **more}  # fmt: skip


def written(tmp_path: Path, data: Any) -> RunDirectory:
    directory = RunDirectory(tmp_path)
    directory.drills.write_text(data if isinstance(data, str) else json.dumps(data))
    return directory


def test_a_run_without_a_table_has_no_section(tmp_path):
    assert drills.section(RunDirectory(tmp_path)) == ""


def test_the_section_counts_faults_criteria_and_those_below_the_workload(tmp_path):
    rows = [row("gemm.bf16"), row("gemm.bf16", right=False), row("p2p.write", planted=True)]
    about = {"commit": "6a4fe2a", "thresholds_sha256": "fe2a", "created": "2026-11-20"}
    table = {"schema": SCHEMA, "rows": rows, **about}
    directory = written(tmp_path, table)
    assert drills.load(directory) == table
    html = " ".join(drills.section(directory).split())
    assert "Found: 2 of 3 faults" in html
    assert "about 2 criteria; for 1 of them a fault went in below the workload" in html
    assert "Suite commit 6a4fe2a" in html


def test_what_is_no_table_is_refused_and_said(tmp_path):
    lacking = {name: value for name, value in row("a").items() if name not in ("fault", "right")}
    for data, said in (
        ([], "not of schema"), ({"schema": SCHEMA + 1, "rows": [row("a")]}, "not of schema"),
        ({"schema": SCHEMA}, "has no rows"), ({"schema": SCHEMA, "rows": {"a": 1}}, "has no rows"),
        ({"schema": SCHEMA, "rows": [row("a"), 1]}, "has no rows"),
        ({"schema": SCHEMA, "rows": [row("a"), lacking]}, "lacks fault, right"),
    ):  # fmt: skip
        directory = written(tmp_path, data)
        with pytest.raises(RecordError, match=said):
            drills.load(directory)
        html = drills.section(directory)
        assert said in html
        assert "Found:" not in html
    assert "Found:" not in drills.section(written(tmp_path, "{"))
