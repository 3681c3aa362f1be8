"""Rewrite recorded runs to today's schema of a run.

    python -m tests.tools.upgrade_records tests/selftests/data/NAME ...

Schema 1 to 2: run.json says what was installed (`population.installed`), which a judge had to guess
from what was measured; a rank says `not_offered` of a value that the driver does not give, which a
judge had to guess from the words of `not_measured`. Verdicts stay as they were: `python -m
tests.selftests.golden` compares. Evidence with a manifest is never rewritten.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixtures.paths import THRESHOLDS
from fixtures.records.files import read_json, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import RUN_SCHEMA
from fixtures.run import order, previous_runs
from fixtures.thresholds import loader

DRIVER_REFUSALS = (
    "NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "no NVML",
)  # fmt: skip
DRIVER_TEXTS = ("driver ", "nobody says ", "nobody knows ", "the driver does not say ")
"""How records of schema 1 say that the driver does not give a value."""


def upgrade(root: Path) -> list[Path]:
    """Rewrite a recorded run; return the files that changed."""
    directory = RunDirectory(root)
    run = read_json(directory.run_json)
    if run.get("schema") == RUN_SCHEMA:
        return []
    if run.get("schema") != 1:
        raise SystemExit(f"{root}: run.json has schema {run.get('schema')!r}, expected 1")
    if directory.manifest.exists():
        raise SystemExit(f"{root}: has a manifest.sha256: evidence is not rewritten")
    changed = [path for path in sorted(directory.records.glob("*.json")) if _upgrade_record(path)]
    run["schema"] = RUN_SCHEMA
    if run["origin"] != "by-hand" and run["population"].get("installed") is None:
        limits = loader.load_with_contract(THRESHOLDS, run.get("contract"))
        nonce = str(run["nonce"])
        started = previous_runs.started_records(directory, nonce)
        measured = order.workloads_of(directory, nonce, started)
        run["population"]["installed"] = list(order.installed_by(measured, limits))
    write_json(directory.run_json, run)
    return [*changed, directory.run_json]


def _upgrade_record(path: Path) -> bool:
    """Rewrite a record if a rank of it says less than it has to; whether it was."""
    record = read_json(path)
    divided = [_divide(rank["facts"]) for rank in record["ranks"]]
    if not any(divided):
        return False
    path.write_text(json.dumps(record, separators=(",", ":")), encoding="utf-8")
    return True


def _divide(facts: dict[str, Any]) -> bool:
    """Move what the driver does not give from `not_measured` to `not_offered`."""
    if "not_offered" in facts or "not_measured" not in facts:
        return False
    offered = dict(_refused_by_driver(facts["not_measured"]))
    facts["not_offered"] = offered
    facts["not_measured"] = {k: v for k, v in facts["not_measured"].items() if k not in offered}
    return True


def _refused_by_driver(reasons: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for metric, why in reasons.items():
        text = str(why)
        if text.partition("; ")[0] in DRIVER_REFUSALS or text.startswith(DRIVER_TEXTS):
            yield metric, text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.upgrade_records")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for run in parser.parse_args().runs:
        changed = upgrade(run)
        print(f"{run}: {len(changed)} files rewritten" if changed else f"{run}: is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
