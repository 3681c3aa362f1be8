"""verdict.json for spreadsheets: results.csv, one row a verdict (login side)."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import read_json, replace_file
from fixtures.records.run_directory import RunDirectory

COLUMNS = (
    "id", "criterion", "title", "subject", "outcome", "value", "unit", "limit", "ceiling", "margin",
    "worst_node", "worst_gpu", "worst_uuid", "worst_part", "worst_value", "devices_planned",
    "devices_measured", "reason", "next_step", "record", "job", "attempt", "notes",
)  # fmt: skip

_FORMULA = ("=", "+", "-", "@")
"""A cell that begins like this is a formula to a spreadsheet, whoever wrote it."""


def write_results(directory: RunDirectory, verdict: Mapping[str, Any] | None = None) -> Path:
    """Write results.csv from verdict.json, one row a verdict."""
    verdict = read_json(directory.verdict) if verdict is None else verdict
    path = directory.root / "results.csv"
    replace_file(path, (results(verdict).encode("utf-8", "replace"),), durable=False)
    return path


def results(verdict: Mapping[str, Any]) -> str:
    """The text of results.csv. By the csv of the standard library: it needs no list of all rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([harmless(cell) for cell in _row(v).values()] for v in verdict["criteria"])
    return text.getvalue()


def frame(verdict: Mapping[str, Any]) -> Any:
    """The verdicts as a pandas DataFrame of COLUMNS, for programs: text as it was said."""
    # It takes most of a second to import, and is needed by nothing but exports and comparisons.
    import pandas as pd  # type: ignore[import-untyped]

    return pd.DataFrame([_row(v) for v in verdict["criteria"]], columns=list(COLUMNS), dtype=object)


KINDS = ("csv", "json", "parquet", "prometheus")


def write(source: Path, kind: str, out: Path | None) -> int:
    """Write a run's verdicts for another tool; 0, or 4 with one line said."""
    try:
        verdict = read_json(RunDirectory(source).verdict)
    except FileNotFoundError:
        return _refuse(f"{source} has no verdict.json: `python -m reports render {source}`")
    if kind == "parquet":
        if out is None:
            return _refuse("--parquet is binary: give --out FILE")
        try:
            # First of all: with half of it loaded pandas fails in its own way.
            importlib.import_module("pyarrow")
        except ImportError:
            return _refuse(
                "--parquet needs pyarrow: `pip install pyarrow`, or take --csv or --json"
            )
        table = frame(verdict)
        # One column holds numbers and states: as text it has one type.
        mixed = ["value", "worst_value", "worst_gpu", "job"]
        table[mixed] = table[mixed].astype("string")
        made = io.BytesIO()
        table.to_parquet(made, engine="pyarrow", index=False)
        replace_file(out, (made.getvalue(),), durable=False)
        return 0
    text = {
        "csv": results,
        "json": lambda v: frame(v).to_json(orient="records", indent=1) + "\n",
        "prometheus": prometheus,
    }[kind](verdict)
    if out is None:
        sys.stdout.write(text)
    else:
        # node_exporter reads while we write: it must see the old file or the new one.
        replace_file(out, (text.encode("utf-8", "replace"),), durable=False)
    return 0


def _refuse(why: str) -> int:
    print(f"reports: {why}", file=sys.stderr)
    return 4


def prometheus(verdict: Mapping[str, Any]) -> str:
    """The verdicts in the text format that node_exporter's textfile collector reads."""
    lines = [
        "# HELP gpu_acceptance_pass 1 where the criterion passed, 0 where it failed.",
        "# TYPE gpu_acceptance_pass gauge",
        "# HELP gpu_acceptance_value What was measured, in the unit of the label.",
        "# TYPE gpu_acceptance_value gauge",
        "# HELP gpu_acceptance_margin Relative distance to the limit, positive on the good side.",
        "# TYPE gpu_acceptance_margin gauge",
        "# HELP gpu_acceptance_criteria Number of criteria by what became of them.",
        "# TYPE gpu_acceptance_criteria gauge",
    ]
    samples: dict[str, list[str]] = {name: [] for name in ("pass", "value", "margin", "criteria")}
    for v in verdict["criteria"]:
        given = {name: v[name] for name in ("criterion", "subject", "unit")}
        labels = ",".join(f'{name}="{_label(text)}"' for name, text in given.items())
        if v["outcome"] in ("PASS", "FAIL", "WAIVED"):
            samples["pass"].append(f"{{{labels}}} {int(v['outcome'] == 'PASS')}")
        for name in ("value", "margin"):
            if isinstance(v[name], (int, float)):
                samples[name].append(f"{{{labels}}} {float(v[name])!r}")
    for name, count in verdict["counts"].items():
        samples["criteria"].append(f'{{outcome="{_label(name)}"}} {count}')
    text = []
    for k, name in enumerate(samples):
        metric = f"gpu_acceptance_{name}"
        text += [*lines[2 * k : 2 * k + 2], *(metric + sample for sample in samples[name])]
    return "\n".join(text) + "\n"


def _label(text: Any) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def harmless(value: Any) -> Any:
    """Text on one line that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    # Spreadsheets also look behind a leading tab or line break.
    line = " ".join(value.split())
    return f"'{line}" if line.startswith(_FORMULA) else line


def _row(v: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: v.get(name) for name in COLUMNS}
    for group in ("worst", "devices"):
        for name, value in (v.get(group) or {}).items():
            flat[f"{group}_{name}"] = value
    flat["notes"] = "; ".join(str(note) for note in v.get("notes") or [])
    return {name: flat[name] for name in COLUMNS}
