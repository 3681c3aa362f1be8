"""What recorded runs are judged to be, frozen: verdicts, figures, node lists, exit status.

    python -m tests.selftests.golden            print what differs from the frozen files
    python -m tests.selftests.golden --write    freeze what the suite says today

Each file under data/verdicts/ holds one run, or one run with one change (derive_runs.VARIANTS), as
text that can be reviewed: the head of verdict.json, the node lists, and a row for each verdict.
Prose (title, reason, next step, notes) and times are left out: they may be edited freely. A changed
run holds only the rows that differ from those of the run that it was derived from.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reports.exports import export
from tests.selftests import derive_runs, support
from tests.selftests.support import DATA

FROZEN = DATA / "verdicts"
RUNS = tuple(path.parent.name for path in sorted(DATA.glob("*/run.json")))
CHANGED = (
    ("sandbox-2x2-cpu", "slow-gpu-spread"),
    ("sandbox-2x2-cpu", "slow-network"),
    ("sandbox-2x2-cpu", "other-losses"),
    ("sandbox-2x2-cpu", "truncated"),
    ("sandbox-2x2-cpu", "lost-record"),
    ("h200-1x4", "corrupted-element"),
    ("h200-1x4", "lost-rank"),
    ("h200-1x4", "low-clock-work"),
    ("h200-2x2", "above-ceiling"),
    ("h200-2x2", "missing-node"),
)
"""(run, variant)"""
CASES = (*((run, "unchanged") for run in RUNS), *CHANGED)
AREA = "area"
"""The column that follows from the criterion."""
PROSE = ("title", "reason", "next_step", "notes")
ROWS = 4
"""Lines before the table: exit status, head, good and bad nodes."""
Judge = Callable[[Path, Path], support.Replayed]
"""Judges a source into a run directory."""
HEAD = ("verdict", "exit_status", "scope", "counts")


def file_of(run: str, variant: str) -> Path:
    return FROZEN / (f"{run}.txt" if variant == "unchanged" else f"{run}+{variant}.txt")


def frozen_text(run: str, variant: str, folder: Path, judge: Judge = support.judged) -> str:
    """What the suite says today of a recorded run, or of one with a change, in `folder`."""
    source = folder / "source"
    derive_runs.derive(DATA / run, source, variant)
    status, verdict = judge(source, folder / "run")
    rows = _rows(folder / "run", verdict)
    if variant != "unchanged":
        before = file_of(run, "unchanged").read_text(encoding="utf-8").splitlines()[ROWS:]
        known = set(before)
        of_run, of_variant = ([row.split(",")[:2] for row in table] for table in (before, rows))
        assert of_run == of_variant, "a change adds no row and leaves none out"
        rows = [rows[0], *(row for row in rows[1:] if row not in known)]
    lists = [
        f"{name}-nodes: {' '.join((folder / 'run' / f'{name}-nodes.txt').read_text().split())}"
        for name in ("good", "bad")
    ]
    head = json.dumps({name: verdict[name] for name in HEAD})
    return "\n".join([f"exit status {status}", head, *lists, *rows]) + "\n"


def _rows(directory: Path, verdict: Mapping[str, Any]) -> list[str]:
    """results.csv without its prose, which says the same as verdict.json."""
    text = (directory / "results.csv").read_text(encoding="utf-8")
    assert text == export.results(verdict), "results.csv is not made of verdict.json"
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    table = list(csv.reader(io.StringIO(text)))
    kept = [k for k, name in enumerate(table[0]) if name not in (AREA, *PROSE)]
    writer.writerows([row[k] for k in kept] for row in table)
    return made.getvalue().splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.selftests.golden")
    parser.add_argument("--write", action="store_true", help="freeze what the suite says today")
    parser.add_argument("--keep", type=Path, help="keep the judged runs, with their prose, here")
    options = parser.parse_args()
    differ = 0
    for run, variant in CASES:
        with tempfile.TemporaryDirectory() as folder:
            text = frozen_text(run, variant, Path(folder))
            if options.keep:
                kept = options.keep / f"{run}+{variant}"
                kept.mkdir(parents=True)
                for name in ("verdict.json", "results.csv"):
                    shutil.copy(Path(folder) / "run" / name, kept)
        path = file_of(run, variant)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if options.write:
            path.write_text(text, encoding="utf-8")
        lines = difflib.unified_diff(
            before.splitlines(), text.splitlines(), path.name, path.name, n=0, lineterm=""
        )
        for line in lines:
            print(line)
        differ += before != text
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
