"""`python -m reports summary --github RUN`: job summary and annotations of GitHub Actions.

The summary (Markdown) goes to the file that GITHUB_STEP_SUMMARY names, else to stdout; annotations
are workflow commands on stdout. GitHub drops a summary above 1 MiB, and shows ten errors per step.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fixtures.wording import quantity

MAX_SUMMARY_BYTES = 1 << 20
MAX_ANNOTATIONS = 10
PROBLEM_OUTCOMES = ("FAIL", "NOT_MEASURED")


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the subcommand and its options."""
    summary: argparse.ArgumentParser = commands.add_parser(
        "summary", help="summary of RUN for a CI service"
    )
    summary.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    summary.add_argument("--github", action="store_true", required=True, help="GitHub Actions")
    return summary


def show(verdict: Mapping[str, Any]) -> int:
    """Print the summary and the annotations; 0 for every verdict.

    The step that runs pytest already fails with the exit status of the verdict.
    """
    text = markdown(verdict)
    summary_path = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary_path:
        with Path(summary_path).open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    print("\n".join(annotate(verdict)))
    return 0


def print_error(title: str, text: str, status: int) -> int:
    """Print an annotation that says why there is no summary, and return the exit status."""
    print(_workflow_command("error", title, text))
    return status


def markdown(verdict: Mapping[str, Any], limit: int = MAX_SUMMARY_BYTES) -> str:
    """Return the verdict, counts, a table of failed and unmeasured criteria, and one of recorded.

    `limit` is GitHub's limit in bytes; rows above it are left out.
    """
    counts = ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in verdict["counts"].items())
    lines = [f"## {_escape_markdown(verdict['verdict'])}", "", _escape_markdown(counts), ""]
    lines += [f"* {_escape_markdown(reason)}" for reason in verdict["reasons"]]
    problems = sorted(_problems(verdict), key=lambda c: PROBLEM_OUTCOMES.index(c["outcome"]))
    if problems:
        lines += ["", "| outcome | subject | criterion | value | limit | reason |"]
        lines += ["|---|---|---|---|---|---|"]
    text = _with_rows("\n".join(lines) + "\n", map(_row, problems), limit)
    recorded = [c for c in verdict["criteria"] if c["outcome"] == "RECORDED"]
    if recorded and len(text.encode()) < limit // 2:
        text += f"\n### {len(recorded)} recorded, not judged\n\n"
        text += "| subject | criterion | value |\n|---|---|---|\n"
        rows = (_cells(c["subject"], c["criterion"], _measured(c)) for c in recorded)
        text = _with_rows(text, rows, limit)
    return text


def _with_rows(head: str, rows: Iterable[str], limit: int) -> str:
    """Return a text with as many rows below it as fit, and how many more there are."""
    shown, size, left_out = [head], len(head.encode()), 0
    for row in rows:
        size += len(row.encode())
        if size > limit - 200:
            left_out += 1
        else:
            shown.append(row)
    more = f"\nand {left_out} more: see verdict.json in the artifact\n" if left_out else ""
    return "".join(shown) + more


def annotate(verdict: Mapping[str, Any]) -> list[str]:
    """Return a workflow command for each failure, the last one for those GitHub does not show."""
    level = {0: "notice", 2: "warning"}.get(verdict["exit_status"], "error")
    failures = [c for c in _problems(verdict) if c["outcome"] == "FAIL"]
    shown = failures if len(failures) <= MAX_ANNOTATIONS else failures[: MAX_ANNOTATIONS - 1]
    commands = [
        _workflow_command("error", f"{c['subject']} {c['criterion']}", _annotation_text(c))
        for c in shown
    ]
    if len(failures) > len(shown):
        text = f"and {len(failures) - len(shown)} more: see the job summary"
        commands.append(_workflow_command("error", "more failures", text))
    if not failures:
        commands.append(
            _workflow_command(
                level, verdict["verdict"], "; ".join(verdict["reasons"]) or "all of it"
            )
        )
    return commands


def _problems(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [c for c in verdict["criteria"] if c["outcome"] in PROBLEM_OUTCOMES]


def _annotation_text(criterion: Mapping[str, Any]) -> str:
    value = criterion.get("value")
    measured = "" if value is None else f"{quantity(value, str(criterion.get('unit', '')))}, "
    parts = (f"{measured}limit {criterion.get('limit')}", criterion.get("reason"),
             criterion.get("next_step"))  # fmt: skip
    return "; ".join(str(p) for p in parts if p)


def _row(criterion: Mapping[str, Any]) -> str:
    return _cells(
        criterion["outcome"].replace("_", " "), criterion["subject"], criterion["criterion"],
        _measured(criterion), criterion.get("limit") or "", criterion.get("reason") or "",
    )  # fmt: skip


def _measured(criterion: Mapping[str, Any]) -> str:
    value = criterion.get("value")
    return "" if value is None else quantity(value, str(criterion.get("unit", "")))


def _cells(*cells: object) -> str:
    return "| " + " | ".join(_escape_markdown(str(cell)) for cell in cells) + " |\n"


_LINKED = re.compile(
    r"(?:(?:https?|ftp)://|(?:mailto|xmpp):|www\.)[^\s|`]+"
    r"|(?<![\w`])@\w[\w/-]*|[\w.+-]+@[\w-]+\.[\w.-]+", re.I,
)  # fmt: skip
"""What GitHub makes links of: addresses, people and teams, which it also notifies."""


def _escape_markdown(text: str) -> str:
    """Escape text from nodes: no HTML, no Markdown, no second line or table cell, no link."""
    line = " ".join(_replace_surrogates(text).split())
    parts, end = [], 0
    for found in _LINKED.finditer(line):
        parts += [_as_text(line[end : found.start()]), f"`{found[0]}`"]
        end = found.end()
    return "".join([*parts, _as_text(line[end:])])


def _as_text(text: str) -> str:
    return "".join(f"&#{ord(c)};" if c in "&|*_`[]<>\\#~!" else c for c in text)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates (from bytes that are not UTF-8), which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _workflow_command(level: str, title: str, text: str) -> str:
    """Return a workflow command, escaped: a line end or `::` in it would begin another one."""

    def escape(value: str, replacements: Mapping[str, str]) -> str:
        value = (
            _replace_surrogates(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        )
        for character, escaped in replacements.items():
            value = value.replace(character, escaped)
        return value

    escaped_title = escape(title, {":": "%3A", ",": "%2C"})
    return f"::{level} title={escaped_title}::{escape(text, {})}"
