"""The section of the report with the table of `make drills` (login side).

The table proves that each criterion can fail. `pytest --drills=FILE` copies it into the run
directory as drills.json. It is about the suite and not the cluster, so no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.records.files import RecordError, read_json
from fixtures.records.model import SCHEMA
from fixtures.records.run_directory import RunDirectory
from reports.pages.banner import render

COLUMNS = ("criterion", "fault", "where", "culprit", "named", "others", "seconds", "right")
"""Required keys of a row; `planted` marks a fault put into a record, not below a workload."""


def section(directory: RunDirectory) -> str:
    """Return the HTML of the run's drills.json, "" where it has none."""
    if not directory.drills.exists():
        return ""
    try:
        table = load(directory)
    except (OSError, RecordError) as error:
        return render("drills.jinja2", rows=[], about={}, broken=str(error), counts={})
    rows = table["rows"]
    not_planted = [row for row in rows if not row.get("planted")]
    counts = {
        "faults": len(rows),
        "criteria": len({row["criterion"] for row in rows}),
        "real": len({row["criterion"] for row in not_planted}),
        "right": sum(bool(row["right"]) for row in rows),
    }
    return render("drills.jinja2", rows=rows, about=table, broken="", counts=counts)


def load(directory: RunDirectory) -> Mapping[str, Any]:
    """Return drills.json, checked as far as the page relies on it.

    Raises RecordError where a part is missing or of another schema.
    """
    data = read_json(directory.drills)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise RecordError(f"drills.json is not of schema {SCHEMA}: make it with `make drills`")
    rows = data.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecordError("drills.json has no rows")
    for row in rows:
        if missing_keys := [name for name in COLUMNS if name not in row]:
            raise RecordError(f"a row of drills.json lacks {', '.join(missing_keys)}")
    return data
