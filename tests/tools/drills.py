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
from tests.selftests import faults, faults_hardware, faults_wiring, planted, training_faults
from tests.selftests.faults import Fault
from tests.selftests.support import SHIPPED

FOLDER = Path(faults.__file__).parent
TABLE = RUNS / "drills.json"
DEFAULT_SHAPE: Mapping[str, Any] = {"nodes": 2, "gpus": 2}
SHAPES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("faults_hardware", "DRIFT_FAULTS"): {"nodes": 3, "gpus": 1},
    ("faults_hardware", "ROCE_FAULTS"): {"nodes": 2, "platform": faults_hardware.ROCE},
    ("faults_hardware", "EFA_FAULTS"): {"nodes": 2, "platform": faults_hardware.EFA},
    ("faults_host", "DRIFT_FAULTS"): {"nodes": 3, "gpus": 1},
    ("faults_host", "ALONE_FAULTS"): {"nodes": 1, "gpus": 2},
    ("faults_scheduler", "BINDING_FAULTS"): {"nodes": 1, "gpus": 2},
    ("faults_scheduler", "GRES_FAULTS"): {"nodes": 2, "gpus": 2, "withheld": {"worker1": 1}},
    ("faults_wiring", "WIRING_FAULTS"): faults_wiring.SHAPE,
    ("faults_wiring", "RAIL_FAULTS"): faults_wiring.RAIL_SHAPE,
    ("faults_wiring", "PORT_FAULTS"): faults_wiring.PORT_SHAPE,
}
"""(module, list of faults) -> options of its sandbox, where not DEFAULT_SHAPE."""
BELOW_TRAINING = "below a training of two ranks"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    criterion: str
    fault: str
    where: str
    culprit: str
    """The node, and device if any, that must be named."""
    found: bool
    """Whether the criterion was red at all."""
    named: str
    others: str
    """Other red criteria; in brackets those that the same fault necessarily breaks."""
    seconds: float
    right: bool
    planted: bool = False


def fault_lists() -> Iterator[tuple[Mapping[str, Any], list[Fault]]]:
    """Yield every list of faults with the options of its sandbox."""
    for path in sorted(FOLDER.glob("faults_*.py")):
        module = importlib.import_module(f"tests.selftests.{path.stem}")
        for name, rows in vars(module).items():
            if isinstance(rows, list) and rows and all(isinstance(r, Fault) for r in rows):
                yield SHAPES.get((path.stem, name), DEFAULT_SHAPE), rows


def fault_locations() -> dict[str, str]:
    """Return criterion -> where its fault is injected: in a record only where nowhere else."""
    criteria = loader.load(SHIPPED).criteria
    locations = {k: planted.WHERE for k, c in criteria.items() if not planted.never_judged(c)}
    for keys in training_faults.RED.values():
        locations |= dict.fromkeys(keys, BELOW_TRAINING)
    for _, rows in fault_lists():
        for fault in rows:
            locations |= dict.fromkeys(fault.also, fault.where)
    for _, rows in fault_lists():
        locations |= {fault.criterion: fault.where for fault in rows}
    return locations


def drill(sandbox: Sandbox, fault: Fault, into: Path, *, area: bool, training: bool = True) -> Line:
    """Inject one fault and return the row with the outcome."""
    expected = " ".join(filter(None, (fault.culprit, fault.device)))
    common = {"criterion": fault.criterion, "fault": fault.name, "where": fault.where}
    began = time.monotonic()
    try:
        found = faults.drill(sandbox, fault, into, whole=not area, training=training)
    except Exception as error:  # a drill that fails must not end the others
        return Line(
            **common, culprit=expected, found=False, named=f"broken: {error}"[:200], others="",
            seconds=time.monotonic() - began, right=False,
        )  # fmt: skip
    named = " ".join((*found.named, *(found.devices if fault.device else ())))
    right = found.named == tuple(fault.culprit.split()) and not found.others
    right = right and (not fault.device or fault.device in found.devices)
    also = [f"({key})" for key in fault.also]
    return Line(
        **common, culprit=expected, found=bool(found.named), named=named or "nobody",
        others=", ".join([*found.others, *also]) or "none", seconds=time.monotonic() - began,
        right=right,
    )  # fmt: skip


def training_drills(folder: Path, names: Iterable[str]) -> Iterator[Line]:
    """Run the faults of training_faults.py in one torchrun; judge each with a replay."""
    names = [name for name in training_faults.RED if name in set(names)]
    if not names:
        return
    began = time.monotonic()
    training_faults.start(folder, names)
    seconds_per_fault = (time.monotonic() - began) / len(names)
    for name in names:
        began = time.monotonic()
        red = training_faults.red(folder / name, folder / f"{name}.replay")
        expected_red = training_faults.RED[name]
        device = "gpu1" if name in training_faults.NAMED else ""
        seconds = seconds_per_fault + time.monotonic() - began
        for key in sorted(expected_red):
            also = [f"({other})" for other in sorted(expected_red - {key})]
            yield Line(
                criterion=key, fault=name.replace("_", " "), where=BELOW_TRAINING, culprit=device,
                found=key in red, named=device and f"gpu{red.get(key)}", seconds=seconds,
                others=", ".join([*sorted(set(red) - expected_red), *also]) or "none",
                right=set(red) == expected_red and (not device or red[key] == 1),
            )  # fmt: skip


def record_drills(keys: Iterable[str]) -> Iterator[Line]:
    """Plant faults in records, for criteria that no other fault covers."""
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
    """Print the table; rows planted in records that are right are only counted."""
    named = sum(line.right for line in lines)
    table = Table(title=f"{named} of {len(lines)} faults named, and nothing else red")
    columns = ("criterion", "fault", "where it went in", "expected", "named", "other red rows", "s")
    for name in columns:
        table.add_column(name, overflow="fold")
    for line in lines:
        if line.planted and line.right:
            continue
        row = (line.criterion, line.fault, line.where, line.culprit, line.named, line.others)
        table.add_row(*row, f"{line.seconds:.0f}", style=None if line.right else "bold red")
    table.caption = f"and {sum(line.planted and line.right for line in lines)} planted in records"
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main() -> int:
    """Run all drills, or the selected ones; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.drills", description=__doc__)
    subset_options = parser.add_mutually_exclusive_group()
    subset_options.add_argument(
        "--area", action="store_true", help="only the tests of a fault's own area"
    )
    subset_options.add_argument(
        "--no-training",
        action="store_true",
        help="everything but the training: half the time",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults and criteria with TEXT")
    parser.add_argument(
        "--json", type=Path, default=TABLE, metavar="FILE", help=f"the table (default: {TABLE})"
    )
    options = parser.parse_args()
    if refusal := Sandbox.refusal():
        print(refusal, file=sys.stderr)
        return 2
    selected = [
        (shape, [f for f in rows if options.only in f"{f.criterion} {f.name}"])
        for shape, rows in fault_lists()
    ]
    training_names = [
        name
        for name, keys in training_faults.RED.items()
        if any(options.only in f"{key} {name}" for key in keys)
    ]
    record_keys = [
        key
        for key, where in fault_locations().items()
        if where == planted.WHERE and options.only in f"{key} planted"
    ]
    if not (training_names or record_keys or any(rows for _, rows in selected)):
        print(f"no fault or criterion has {options.only!r} in its name", file=sys.stderr)
        return 4
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-drills-") as folder, Progress() as progress:
        total = sum(len(rows) for _, rows in selected) + bool(training_names) + bool(record_keys)
        task = progress.add_task("drills", total=total)
        for shape, rows in selected:
            if not rows:
                continue
            with Sandbox.up(**shape) as sandbox:
                for fault in rows:
                    progress.update(task, description=fault.name)
                    into = Path(folder) / str(len(lines))
                    options_of_drill = {
                        "area": options.area,
                        "training": not options.no_training,
                    }
                    lines.append(drill(sandbox, fault, into, **options_of_drill))
                    write_json(options.json, as_json(lines))
                    progress.advance(task)
        progress.update(task, description=BELOW_TRAINING)
        lines += training_drills(Path(folder) / "training", training_names)
        progress.update(task, description=planted.WHERE)
        lines += record_drills(record_keys)
    show(lines)
    write_json(options.json, as_json(lines))
    print(f"the table: {options.json}; `pytest --drills={options.json}` shows it in the report")
    return 0 if lines and all(line.right for line in lines) else 1


def as_json(lines: Iterable[Line]) -> dict[str, Any]:
    """Return the table in the format that reports/pages/drills.py reads."""
    return {
        "schema": SCHEMA,
        "commit": commit(),
        "thresholds_sha256": loader.load(SHIPPED).sha256,
        "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "rows": [asdict(line) for line in lines],
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
