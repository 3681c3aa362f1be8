"""`make drills`: every fault of tests/selftests/faults_*.py, put in one by one, and who was named.

python -m tests.tools.drills [--area | --no-training] [--only TEXT] [--json FILE]

Each fault goes in below the workload of a real Slurm on this machine, then pytest runs the whole
suite (with --area the tests of the fault's own area), and its verdict.json is held against what
must be red. Without the training, which none of these faults is about, that takes half the time.
Then come the faults below a training of two ranks, and, for criteria under which nothing can be
broken here, those planted in a record: marked so. The table is written as JSON, after each fault;
`pytest --drills=FILE` shows it in the report. The exit status is 0 where every fault was named and
nothing else was red.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fixtures.paths import RUNS, commit
from fixtures.records.files import write_json
from fixtures.records.model import SCHEMA
from fixtures.sandbox import Sandbox, SandboxError
from fixtures.thresholds import loader
from tests.selftests import faults, planted, training_faults
from tests.selftests.faults import Fault
from tests.selftests.support import SHIPPED

FOLDER = Path(faults.__file__).parent
TABLE = RUNS / "drills.json"
SHAPE: Mapping[str, Any] = {"nodes": 2, "gpus": 2}
SHAPES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("faults_hardware", "DRIFT_FAULTS"): {"nodes": 3, "gpus": 1},
    ("faults_scheduler", "BINDING_FAULTS"): {"nodes": 1, "gpus": 2},
    ("faults_scheduler", "GRES_FAULTS"): {"nodes": 2, "gpus": 2, "withheld": {"worker1": 1}},
}
"""The sandboxes of the lists that need another one than SHAPE."""
BELOW_TRAINING = "below a training of two ranks"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    criterion: str
    fault: str
    where: str
    culprit: str
    """Who must be named."""
    found: bool
    """Whether the criterion was red at all."""
    named: str
    others: str
    """What else was red; in brackets what the same fault is bound to break as well."""
    seconds: float
    right: bool
    planted: bool = False


def lists() -> Iterator[tuple[Mapping[str, Any], list[Fault]]]:
    """Every list of faults, with the sandbox that it wants."""
    for path in sorted(FOLDER.glob("faults_*.py")):
        module = importlib.import_module(f"tests.selftests.{path.stem}")
        for name, rows in vars(module).items():
            if isinstance(rows, list) and rows and all(isinstance(r, Fault) for r in rows):
                yield SHAPES.get((path.stem, name), SHAPE), rows


def in_the_table() -> dict[str, str]:
    """Every criterion, and where its fault goes in: in a record only where nowhere else."""
    criteria = loader.load(SHIPPED).criteria
    found = {k: planted.WHERE for k, c in criteria.items() if not planted.never_judged(c)}
    for keys in training_faults.RED.values():
        found |= dict.fromkeys(keys, BELOW_TRAINING)
    for _, rows in lists():
        for fault in rows:
            found |= dict.fromkeys(fault.also, fault.where)
    for _, rows in lists():
        found |= {fault.criterion: fault.where for fault in rows}
    return found


def drill(sandbox: Sandbox, fault: Fault, into: Path, *, area: bool, training: bool = True) -> Line:
    """One fault put in, and what became of it."""
    expected = " ".join(filter(None, (fault.culprit, fault.device)))
    about = {"criterion": fault.criterion, "fault": fault.name, "where": fault.where}
    began = time.monotonic()
    try:
        found = faults.drill(sandbox, fault, into, whole=not area, training=training)
    except Exception as error:  # one drill that breaks must not hide the others
        return Line(
            **about, culprit=expected, found=False, named=f"broken: {error}"[:200], others="",
            seconds=time.monotonic() - began, right=False,
        )  # fmt: skip
    named = " ".join((*found.named, *(found.devices if fault.device else ())))
    right = found.named == tuple(fault.culprit.split()) and not found.others
    right = right and (not fault.device or fault.device in found.devices)
    also = [f"({key})" for key in fault.also]
    return Line(
        **about, culprit=expected, found=bool(found.named), named=named or "nobody",
        others=", ".join([*found.others, *also]) or "none", seconds=time.monotonic() - began,
        right=right,
    )  # fmt: skip


def below_training(folder: Path, names: Iterable[str]) -> Iterator[Line]:
    """The faults of training_faults.py, in one torchrun, each judged by a replay."""
    names = [name for name in training_faults.RED if name in set(names)]
    if not names:
        return
    began = time.monotonic()
    training_faults.start(folder, names)
    each = (time.monotonic() - began) / len(names)
    for name in names:
        began = time.monotonic()
        red = training_faults.red(folder / name, folder / f"{name}.replay")
        must = training_faults.RED[name]
        device = "gpu1" if name in training_faults.NAMED else ""
        seconds = each + time.monotonic() - began
        for key in sorted(must):
            also = [f"({other})" for other in sorted(must - {key})]
            yield Line(
                criterion=key, fault=name.replace("_", " "), where=BELOW_TRAINING, culprit=device,
                found=key in red, named=device and f"gpu{red.get(key)}", seconds=seconds,
                others=", ".join([*sorted(set(red) - must), *also]) or "none",
                right=set(red) == must and (not device or red[key] == 1),
            )  # fmt: skip


def in_records(keys: Iterable[str]) -> Iterator[Line]:
    """Faults planted in records, for criteria that no other fault is about."""
    for key in keys:
        began = time.monotonic()
        try:
            found = planted.plant(key)
        except LookupError as error:
            yield Line(
                criterion=key, fault="figure of a node made bad", where=planted.WHERE, culprit="",
                found=False, named=f"broken: {error}", others="", seconds=0.0, right=False,
                planted=True,
            )  # fmt: skip
            continue
        yield Line(
            criterion=key, fault="figure of a node made bad", where=found.where,
            culprit=found.culprit, found=True, named=found.named, others="none",
            seconds=time.monotonic() - began, right=found.right, planted=True,
        )  # fmt: skip


def show(lines: list[Line]) -> None:
    """The table, without what was planted, which is counted."""
    named = sum(one.right for one in lines)
    table = Table(title=f"{named} of {len(lines)} faults named, and nothing else red")
    columns = ("criterion", "fault", "where it went in", "expected", "named", "other red rows", "s")
    for name in columns:
        table.add_column(name, overflow="fold")
    for one in lines:
        if one.planted and one.right:
            continue
        row = (one.criterion, one.fault, one.where, one.culprit, one.named, one.others)
        table.add_row(*row, f"{one.seconds:.0f}", style=None if one.right else "bold red")
    table.caption = f"and {sum(one.planted and one.right for one in lines)} planted in records"
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main() -> int:
    """Run all of them, or those that were chosen."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.drills", description=__doc__)
    smaller = parser.add_mutually_exclusive_group()
    smaller.add_argument("--area", action="store_true", help="only the tests of a fault's own area")
    smaller.add_argument(
        "--no-training", action="store_true", help="everything but the training: half the time"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults and criteria with TEXT")
    parser.add_argument(
        "--json", type=Path, default=TABLE, metavar="FILE", help=f"the table (default: {TABLE})"
    )
    options = parser.parse_args()
    if refusal := Sandbox.refusal():
        print(refusal, file=sys.stderr)
        return 2
    chosen = [
        (shape, [f for f in rows if options.only in f"{f.criterion} {f.name}"])
        for shape, rows in lists()
    ]
    training = [
        name
        for name, keys in training_faults.RED.items()
        if any(options.only in f"{key} {name}" for key in keys)
    ]
    in_record = [
        key
        for key, where in in_the_table().items()
        if where == planted.WHERE and options.only in f"{key} planted"
    ]
    if not (training or in_record or any(rows for _, rows in chosen)):
        print(f"no fault or criterion has {options.only!r} in its name", file=sys.stderr)
        return 4
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-drills-") as folder, Progress() as progress:
        total = sum(len(rows) for _, rows in chosen) + bool(training) + bool(in_record)
        task = progress.add_task("drills", total=total)
        for shape, rows in chosen:
            if not rows:
                continue
            with Sandbox.up(**shape) as sandbox:
                for fault in rows:
                    progress.update(task, description=fault.name)
                    into = Path(folder) / str(len(lines))
                    less = {"area": options.area, "training": not options.no_training}
                    lines.append(drill(sandbox, fault, into, **less))
                    write_json(options.json, as_json(lines))
                    progress.advance(task)
        progress.update(task, description=BELOW_TRAINING)
        lines += below_training(Path(folder) / "training", training)
        progress.update(task, description=planted.WHERE)
        lines += in_records(in_record)
    show(lines)
    write_json(options.json, as_json(lines))
    print(f"the table: {options.json}; `pytest --drills={options.json}` shows it in the report")
    return 0 if lines and all(one.right for one in lines) else 1


def as_json(lines: Iterable[Line]) -> dict[str, Any]:
    """The table as reports/drills.py reads it."""
    return {
        "schema": SCHEMA,
        "commit": commit(),
        "thresholds_sha256": loader.load(SHIPPED).sha256,
        "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "rows": [asdict(one) for one in lines],
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
