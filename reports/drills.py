"""The table of `make drills` in the report: the proof that each criterion can fail (login side).

`pytest --drills=FILE` puts the table into the run directory as drills.json; it is about the suite
and not about the cluster, so no verdict hangs on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.records.files import RecordError, read_json
from fixtures.records.model import SCHEMA
from fixtures.records.run_directory import RunDirectory
from reports.banner import render

COLUMNS = ("criterion", "fault", "where", "culprit", "named", "others", "seconds", "right")
"""What a row must have; `planted` marks those whose fault is in a record, not below a workload."""


def section(directory: RunDirectory) -> str:
    """The table that the run was given; "" where it was given none."""
    if not directory.drills.exists():
        return ""
    try:
        table = load(directory)
    except (OSError, RecordError) as error:
        return render("drills.jinja2", rows=[], about={}, broken=str(error), counts={})
    rows = table["rows"]
    real = [row for row in rows if not row.get("planted")]
    counts = {
        "faults": len(rows),
        "criteria": len({row["criterion"] for row in rows}),
        "real": len({row["criterion"] for row in real}),
        "right": sum(bool(row["right"]) for row in rows),
    }
    return render("drills.jinja2", rows=rows, about=table, broken="", counts=counts)


def load(directory: RunDirectory) -> Mapping[str, Any]:
    """drills.json, checked as far as the page relies on it; RecordError says what is wrong."""
    data = read_json(directory.drills)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise RecordError(f"drills.json is not of schema {SCHEMA}: make it with `make drills`")
    rows = data.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecordError("drills.json has no rows")
    for row in rows:
        if lacking := [name for name in COLUMNS if name not in row]:
            raise RecordError(f"a row of drills.json lacks {', '.join(lacking)}")
    return data
