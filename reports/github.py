"""`python -m reports summary --github RUN`: job summary and annotations of GitHub Actions.

The summary (Markdown) goes to the file that GITHUB_STEP_SUMMARY names, else to stdout; annotations
are workflow commands on stdout. GitHub drops a summary above 1 MiB, and shows ten errors a step.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_json
from fixtures.records.run_directory import RunDirectory

SUMMARY_BYTES = 1 << 20
ANNOTATIONS = 10
RED = ("FAIL", "NOT_MEASURED")


def add_to(commands: Any) -> None:
    """The subcommand and its options."""
    summary = commands.add_parser("summary", help="what a CI service shows of RUN")
    summary.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    summary.add_argument("--github", action="store_true", required=True, help="GitHub Actions")


def main(options: argparse.Namespace) -> int:
    """0 whatever the verdict, which pytest's own step has said; 2 where there is none."""
    try:
        verdict = read_json(RunDirectory(options.run).verdict)
    except (OSError, RecordError) as error:
        print(_command("error", "INCOMPLETE", f"{options.run} has no verdict: {error}"))
        return 2
    text = markdown(verdict)
    into = os.environ.get("GITHUB_STEP_SUMMARY")
    if into:
        with Path(into).open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    print("\n".join(annotate(verdict)))
    return 0


def markdown(verdict: Mapping[str, Any], limit: int = SUMMARY_BYTES) -> str:
    """Verdict, counts, and a table of what is red, below GitHub's limit in bytes."""
    counts = ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in verdict["counts"].items())
    lines = [f"## {_text(verdict['verdict'])}", "", _text(counts), ""]
    lines += [f"* {_text(reason)}" for reason in verdict["reasons"]]
    red = sorted(_red(verdict), key=lambda c: RED.index(c["outcome"]))
    if red:
        lines += ["", "| outcome | subject | criterion | value | limit | reason |"]
        lines += ["|---|---|---|---|---|---|"]
    head = "\n".join(lines) + "\n"
    rows, size, rest = [], len(head.encode()), len(red)
    for criterion in red:
        row = _row(criterion)
        if size + len(row.encode()) > limit - 200:
            break
        rows.append(row)
        size += len(row.encode())
        rest -= 1
    more = f"\nand {rest} more: see verdict.json in the artifact\n" if rest else ""
    return head + "".join(rows) + more


def annotate(verdict: Mapping[str, Any]) -> list[str]:
    """One workflow command for each failure, the last one for those that GitHub would not show."""
    level = {0: "notice", 2: "warning"}.get(verdict["exit_status"], "error")
    red = [c for c in _red(verdict) if c["outcome"] == "FAIL"]
    shown = red if len(red) <= ANNOTATIONS else red[: ANNOTATIONS - 1]
    said = [_command("error", f"{c['subject']} {c['criterion']}", _of(c)) for c in shown]
    if len(red) > len(shown):
        text = f"and {len(red) - len(shown)} more: see the job summary"
        said.append(_command("error", "more failures", text))
    if not red:
        said.append(
            _command(level, verdict["verdict"], "; ".join(verdict["reasons"]) or "all of it")
        )
    return said


def _red(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [c for c in verdict["criteria"] if c["outcome"] in RED]


def _of(criterion: Mapping[str, Any]) -> str:
    value = criterion.get("value")
    measured = "" if value is None else f"{value:.6g} " if isinstance(value, float) else f"{value} "
    unit = f"{criterion.get('unit', '')}, " if measured else ""
    parts = (f"{measured}{unit}limit {criterion.get('limit')}", criterion.get("reason"),
             criterion.get("next_step"))  # fmt: skip
    return "; ".join(str(p) for p in parts if p)


def _row(criterion: Mapping[str, Any]) -> str:
    value = criterion.get("value")
    shown = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    cells = (
        criterion["outcome"].replace("_", " "), criterion["subject"], criterion["criterion"],
        f"{shown} {criterion.get('unit', '')}" if shown else "", criterion.get("limit") or "",
        criterion.get("reason") or "",
    )  # fmt: skip
    return "| " + " | ".join(_text(str(cell)) for cell in cells) + " |\n"


def _text(text: str) -> str:
    """What came from nodes stays text: no HTML, no Markdown, no second line or cell."""
    line = " ".join(_whole(text).split())
    return "".join(f"&#{ord(c)};" if c in "&|*_`[]<>\\#~!" else c for c in line)


def _whole(text: str) -> str:
    """Half a character (bytes that were no UTF-8) cannot be written, and must not cost the rest."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _command(level: str, title: str, text: str) -> str:
    """A workflow command; a line end or `::` in it would begin another."""

    def plain(value: str, more: Mapping[str, str]) -> str:
        value = _whole(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        for character, escaped in more.items():
            value = value.replace(character, escaped)
        return value

    named = plain(title, {":": "%3A", ",": "%2C"})
    return f"::{level} title={named}::{plain(text, {})}"
