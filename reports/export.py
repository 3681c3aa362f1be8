"""verdict.json for spreadsheets: results.csv, one row a verdict (login side)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.records import RunDirectory, read_json

COLUMNS = (
    "id", "criterion", "title", "subject", "outcome", "value", "unit", "limit", "ceiling", "margin",
    "worst_node", "worst_gpu", "worst_uuid", "worst_value", "devices_planned", "devices_measured",
    "reason", "next_step", "record", "job", "attempt", "notes",
)  # fmt: skip

_FORMULA = ("=", "+", "-", "@")
"""A cell that begins like this is a formula to a spreadsheet, whoever wrote it."""


def write_results(directory: RunDirectory) -> Path:
    """Write results.csv from verdict.json, one row a verdict."""
    # pandas takes most of a second to import, and is needed by nothing but this.
    import pandas as pd  # type: ignore[import-untyped]

    rows = [_row(v) for v in read_json(directory.verdict)["criteria"]]
    path = directory.root / "results.csv"
    text = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object).to_csv(index=False)
    replace_file(path, text.encode("utf-8", "replace"))
    return path


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def harmless(value: Any) -> Any:
    """Text on one line that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    # Spreadsheets also look behind a leading tab or line break, and pandas quotes no lone CR.
    line = " ".join(value.split())
    return f"'{line}" if line.startswith(_FORMULA) else line


def _row(v: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: v.get(name) for name in COLUMNS}
    for group in ("worst", "devices"):
        for name, value in (v.get(group) or {}).items():
            flat[f"{group}_{name}"] = value
    flat["notes"] = "; ".join(str(note) for note in v.get("notes") or [])
    return {name: harmless(flat[name]) for name in COLUMNS}
