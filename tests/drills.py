"""`make drills`: every fault of tests/selftests/faults_*.py, put in one by one, and who was named.

python -m tests.drills [--area] [--only TEXT] [--json FILE]

Each fault goes in below the workload of a real Slurm on this machine, then pytest runs the whole
suite (with --area the tests of the fault's own area), and its verdict.json is held against what
must be red. The exit status is 0 where every fault was named and nothing else was red.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fixtures.records import write_json
from fixtures.sandbox import Sandbox, SandboxError
from tests.selftests import faults
from tests.selftests.faults import Fault

FOLDER = Path(faults.__file__).parent
SHAPE: Mapping[str, Any] = {"nodes": 2, "gpus": 2}
SHAPES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("faults_hardware", "DRIFT_FAULTS"): {"nodes": 3, "gpus": 1},
    ("faults_scheduler", "BINDING_FAULTS"): {"nodes": 1, "gpus": 2},
    ("faults_scheduler", "GRES_FAULTS"): {"nodes": 2, "gpus": 2, "withheld": {"worker1": 1}},
}
"""The sandboxes of the lists that need another one than SHAPE."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    criterion: str
    fault: str
    where: str
    expected: str
    named: str
    others: str
    ok: bool


def lists() -> Iterator[tuple[Mapping[str, Any], list[Fault]]]:
    """Every list of faults, with the sandbox that it wants."""
    for path in sorted(FOLDER.glob("faults_*.py")):
        module = importlib.import_module(f"tests.selftests.{path.stem}")
        for name, rows in vars(module).items():
            if isinstance(rows, list) and rows and all(isinstance(r, Fault) for r in rows):
                yield SHAPES.get((path.stem, name), SHAPE), rows


def drill(sandbox: Sandbox, fault: Fault, into: Path, *, area: bool) -> Line:
    """One fault put in, and what became of it."""
    expected = " ".join(filter(None, (fault.culprit, fault.device)))
    about = {"criterion": fault.criterion, "fault": fault.name, "where": fault.where}
    try:
        found = faults.drill(sandbox, fault, into, whole=not area)
    except Exception as error:  # one drill that breaks must not hide the others
        return Line(**about, expected=expected, named=f"broken: {error}"[:200], others="", ok=False)
    named = " ".join((*found.named, *(found.devices if fault.device else ())))
    ok = found.named == tuple(fault.culprit.split()) and not found.others
    ok = ok and (not fault.device or fault.device in found.devices)
    also = [f"({key})" for key in fault.also]
    others = ", ".join([*found.others, *also]) or "none"
    return Line(**about, expected=expected, named=named or "nobody", others=others, ok=ok)


def show(lines: list[Line]) -> None:
    """The table; in brackets what the same fault is bound to break as well."""
    named = sum(one.ok for one in lines)
    table = Table(title=f"{named} of {len(lines)} faults named, and nothing else red")
    for name in ("criterion", "fault", "where it went in", "expected", "named", "other red rows"):
        table.add_column(name, overflow="fold")
    for one in lines:
        row = (one.criterion, one.fault, one.where, one.expected, one.named, one.others)
        table.add_row(*row, style=None if one.ok else "bold red")
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main() -> int:
    """Run all of them, or those that were chosen."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--area", action="store_true", help="only the tests of a fault's own area")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults and criteria with TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the table also as JSON")
    options = parser.parse_args()
    if refusal := Sandbox.refusal():
        print(refusal, file=sys.stderr)
        return 2
    chosen = [
        (shape, [f for f in rows if options.only in f"{f.criterion} {f.name}"])
        for shape, rows in lists()
    ]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-drills-") as folder, Progress() as progress:
        task = progress.add_task("drills", total=sum(len(rows) for _, rows in chosen))
        for shape, rows in chosen:
            if not rows:
                continue
            with Sandbox.up(**shape) as sandbox:
                for fault in rows:
                    progress.update(task, description=fault.name)
                    into = Path(folder) / str(len(lines))
                    lines.append(drill(sandbox, fault, into, area=options.area))
                    progress.advance(task)
    show(lines)
    if options.json:
        write_json(options.json, [asdict(one) for one in lines])
    return 0 if lines and all(one.ok for one in lines) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
