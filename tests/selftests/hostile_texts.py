"""Texts that a node may write in the place of a name, a note or a serial number, and their traces.

Each would be a command, or look like one of the suite's, where a person copies a line into a shell.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from reports.console import terminal
from reports.pages import dossier, page
from reports.pages.artefacts import Artefacts
from tests.selftests.planted import shipped

HARMLESS = "a word"
"""In the place of a hostile text: what a person may copy must be the same with both."""
TEXTS = {
    "substitution": "$(reboot)", "old substitution": "`reboot`", "end of a command": "; reboot",
    "and": "&& reboot", "or": "|| reboot", "pipe": "| sh", "background": "& reboot &",
    "single quote": "'; reboot; '", "double quote": '"; reboot; "', "both quotes": "'\";reboot;\"'",
    "redirection": "> /etc/passwd", "here document": "<<E\nreboot\nE", "line": "x\nreboot\n",
    "carriage return": "x\rreboot", "option": "-rf", "option of Slurm": "--uid=0",
    "home": "~root/.profile", "glob": "/etc/*", "brace": "{reboot,now}", "variable": "${IFS}reboot",
    "comment": "# scontrol reboot ALL", "assignment": "LD_PRELOAD=/tmp/x",
    "history": "!!", "escape": "\\`reboot\\`", "next step": "next: `reboot`",
    "next line": "x\n  next: `reboot`", "drain": "to drain     scontrol update NodeName=ALL "
    "State=DOWN", "drain in a line": "\nto drain     scontrol update NodeName=ALL State=DOWN",
    "host list": "gpu[0-99999999]", "code": "</code><code>reboot</code>",
    "tag": '<img src=x onerror="alert(1)">', "a step": "</span><span class=next>Next: reboot",
    "terminal": "\x1b[2J\x1b[1;1Hreboot", "direction": "\u202etoober", "wide": "\u2028reboot",
    "retest": "then `pytest -m multinode --retest=/etc -k x`", "formula": "=cmd|' /C reboot'!A0",
    "long": "`reboot` " * 600,
}  # fmt: skip

FIXED = ("schema", "nonce", "run_id", "workload", "placement", "node", "nodes", "metric", "unit",
         "at", "conditions", "kind", "checks", "redop", "host", "created", "id",
         "attempt")  # fmt: skip
"""Names of fields without which a record is not one: those of the suite's own form."""


def filled(data: Any, text: str, share: int, where: str = "") -> Any:
    """Return a record with the text in one of `share` of its strings, each a little different."""
    if isinstance(data, dict):
        return {
            name: value if name in FIXED else filled(value, text, share, f"{where}.{name}")
            for name, value in data.items()
        }
    if isinstance(data, list):
        return [filled(value, text, share, f"{where}.{k}") for k, value in enumerate(data)]
    number = zlib.crc32(where.encode())
    return f"{text}{number % 97}" if isinstance(data, str) and number % share == 0 else data


def fill(run: Path, text_of: Callable[[int], str], share: int) -> None:
    """Put texts into the records of a run, and into why some of them are missing."""
    for k, path in enumerate(sorted((run / "records").glob("*.json"))):
        data = filled(json.loads(path.read_text(encoding="utf-8")), text_of(k), share, path.name)
        path.write_text(json.dumps(data), encoding="utf-8")
    missing = run / "jobs" / "missing.jsonl"
    if missing.exists():
        lines = [json.loads(line) for line in missing.read_text(encoding="utf-8").splitlines()]
        for k, line in enumerate(lines):
            line["reason"] = f"{line['reason']}: {text_of(k)}"
        missing.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


class _Code(HTMLParser):
    """What a page shows as code, as a next step, or between backticks."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("wbr", "br", "img", "meta", "link", "input", "col", "hr"):
            return
        marked = tag == "code" or dict(attrs).get("class") in ("next", "red", "todo")
        self._open.append((tag, marked))
        if marked:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(tag in ("script", "style") for tag, _ in self._open):
            return
        if any(marked for _, marked in self._open):
            self.found[-1] += data
        self.found += _marked(data)


_MARKS = re.compile(r"`[^`]*`|\b(?:next|Next):.*|to drain\s.*|\bscontrol update.*")


def _marked(text: str) -> list[str]:
    return _MARKS.findall(text)


def commands(artefacts: Artefacts) -> Iterator[tuple[str, str]]:
    """Yield all that a person may copy into a shell, with the place where it stands."""
    for line in terminal.summary(artefacts, 80):
        yield from (("terminal", found) for found in _marked(line))
    html = page.page(artefacts.directory, artefacts.verdict)
    yield from (("report.html", found) for found in _Code(html).found)
    for line in artefacts.lists.reasons:
        yield from (("node-reasons.txt", found) for found in _marked(line))
    for node in artefacts.verdict["scope"]["nodes"]:
        made = dossier.of(artefacts.directory.root, artefacts.verdict, shipped(), node)
        html, _ = dossier.fitted(made)
        yield from (("dossier", found) for found in _Code(html).found)
        yield from (("dossier", found) for line in made["first_lines"] for found in _marked(line))
    for row in artefacts.verdict["criteria"]:
        yield "verdict.json", str(row["next_step"])
        yield from (("verdict.json", found) for text in (row["reason"], *row["notes"])
                    for found in _marked(str(text)))  # fmt: skip
