"""verdict.json for other tools: results.csv, JSON, Parquet and Prometheus text (login side)."""

from __future__ import annotations

import csv
import functools
import importlib
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import in_real_folder, replace_file
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.thresholds.definitions import shipped
from reports.evidence.third_parties import Cleaned

NAME = "results.csv"
COLUMNS = (
    "area", "criterion", "title", "subject", "outcome", "value", "unit", "limit", "ceiling",
    "margin", "worst_node", "worst_gpu", "worst_uuid", "worst_part", "worst_value",
    "devices_planned", "devices_measured", "reason", "next_step", "record", "job", "attempt",
    "notes",
)  # fmt: skip

_SOURCES = [
    (name, group, key) if group in ("worst", "devices") else (name, "", "")
    for name in COLUMNS
    for group, _, key in [name.partition("_")]
]
"""Column, the field of a row that is an object, and the key in it; "" for a field of its own."""

_FORMULA = ("=", "+", "-", "@")
"""First characters of a cell that a spreadsheet takes for a formula."""


def write_results(directory: RunDirectory, verdict: Mapping[str, Any] | None = None) -> Path:
    """Write results.csv from verdict.json, one row per verdict."""
    verdict = read_verdict(directory) if verdict is None else verdict
    path = directory.root / NAME
    lines = (line.encode("utf-8", "replace") for line in _lines(verdict))
    replace_file(path, lines, durable=False)
    return path


def results(verdict: Mapping[str, Any]) -> str:
    """Return the text of results.csv."""
    return "".join(_lines(verdict))


class _Echo:
    """What the csv module writes to: writerow() returns what write() returns."""

    def write(self, line: str) -> str:
        return line


def _lines(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines by the csv module, which unlike pandas needs no list of all rows."""
    writer: Any = csv.writer(_Echo(), lineterminator="\n")
    yield writer.writerow(COLUMNS)
    for v in verdict["criteria"]:
        yield writer.writerow([escape_formula(cell) for cell in _cells(v)])


def data_frame(verdict: Mapping[str, Any]) -> Any:
    """Return the verdicts as a pandas DataFrame of COLUMNS, with all text unescaped."""
    # Importing pandas takes most of a second, and only exports need it.
    import pandas as pd  # type: ignore[import-untyped]

    return pd.DataFrame([_row(v) for v in verdict["criteria"]], columns=list(COLUMNS), dtype=object)


FORMATS = ("csv", "json", "parquet", "prometheus")


def write_for(
    cleaned: Cleaned, verdict: Mapping[str, Any], format_name: str, out: Path | None
) -> int:
    """Write a verdict for third parties, and beside it, or on stderr, what was removed from it."""
    status = write(cleaned(verdict), format_name, out)
    text = "".join(f"{line}\n" for line in cleaned.lines())
    if status == 0 and out is not None:
        beside = out.with_name(f"{out.name}.contents.txt")
        replace_file(in_real_folder(beside), (text.encode(),), durable=False)
    elif status == 0:
        sys.stderr.write(text)
    return status


def write(verdict: Mapping[str, Any], format_name: str, out: Path | None) -> int:
    """Write a verdict in a format of FORMATS; return 0, or 4 with one line on stderr."""
    if format_name == "parquet":
        if out is None:
            return _print_error("--parquet is binary: give --out FILE")
        try:
            # Before pandas imports it: pandas reports a missing part of pyarrow in its own words.
            importlib.import_module("pyarrow")
        except ImportError:
            return _print_error(
                "--parquet needs pyarrow: `pip install pyarrow`, or take --csv or --json"
            )
        table = data_frame(verdict)
        # A Parquet column has one type; these hold numbers and strings.
        mixed_columns = ["value", "worst_value", "worst_gpu", "job"]
        table[mixed_columns] = table[mixed_columns].astype("string")
        buffer = io.BytesIO()
        table.to_parquet(buffer, engine="pyarrow", index=False)
        replace_file(in_real_folder(out), (buffer.getvalue(),), durable=False)
        return 0
    text = {
        "csv": results,
        "json": lambda v: data_frame(v).to_json(orient="records", indent=1) + "\n",
        "prometheus": prometheus,
    }[format_name](verdict)
    if out is None:
        sys.stdout.write(text)
    else:
        # node_exporter may read during the write: it must see the old file or the new one.
        replace_file(in_real_folder(out), (text.encode("utf-8", "replace"),), durable=False)
    return 0


def _print_error(message: str) -> int:
    print(f"reports: {message}", file=sys.stderr)
    return 4


def prometheus(verdict: Mapping[str, Any]) -> str:
    """Return the verdicts in the text format that node_exporter's textfile collector reads."""
    lines = [
        "# HELP gpu_acceptance_pass 1 where the criterion passed, 0 where it failed.",
        "# TYPE gpu_acceptance_pass gauge",
        "# HELP gpu_acceptance_value What was measured, in the unit of the label.",
        "# TYPE gpu_acceptance_value gauge",
        "# HELP gpu_acceptance_margin Relative distance to the limit, positive on the good side.",
        "# TYPE gpu_acceptance_margin gauge",
        "# HELP gpu_acceptance_criteria Number of criteria by outcome.",
        "# TYPE gpu_acceptance_criteria gauge",
    ]
    samples: dict[str, list[str]] = {name: [] for name in ("pass", "value", "margin", "criteria")}
    for v in verdict["criteria"]:
        label_values = {name: v[name] for name in ("criterion", "subject", "unit")}
        labels = ",".join(f'{name}="{_escape_label(text)}"' for name, text in label_values.items())
        if v["outcome"] in ("PASS", "FAIL", "WAIVED"):
            samples["pass"].append(f"{{{labels}}} {int(v['outcome'] == 'PASS')}")
        for name in ("value", "margin"):
            if isinstance(v[name], (int, float)):
                samples[name].append(f"{{{labels}}} {float(v[name])!r}")
    for name, count in verdict["counts"].items():
        samples["criteria"].append(f'{{outcome="{_escape_label(name)}"}} {count}')
    text = []
    for k, name in enumerate(samples):
        metric = f"gpu_acceptance_{name}"
        text += [*lines[2 * k : 2 * k + 2], *(metric + sample for sample in samples[name])]
    return "\n".join(text) + "\n"


def _escape_label(text: Any) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def escape_formula(value: Any) -> Any:
    """Return text on one line that no spreadsheet takes for a formula; numbers stay numbers."""
    return _escaped(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    """Return escape_formula() of a text; a large run has few that differ."""
    # Spreadsheets skip a leading tab or line break.
    line = " ".join(value.split())
    return f"'{line}" if line.startswith(_FORMULA) else line


def _row(v: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS, _cells(v), strict=True))


def _cells(v: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a row's cells in the order of COLUMNS, without a dictionary for each row."""
    for name, group, key in _SOURCES:
        if group:
            yield (v.get(group) or {}).get(key)
        elif name == "area":
            yield shipped().area_of(str(v["criterion"]))
        elif name == "notes":
            yield "; ".join(str(note) for note in v.get("notes") or [])
        else:
            yield v.get(name)
