"""A made-up fleet of 4 nodes of 4 H200, to be changed and judged: each change is one fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import support
from tests.tools.fleet_run import Fleet

NODES = tuple(f"gpu{k:04}" for k in range(1, 5))
GPUS = 4

Data = dict[str, Any]
Outcomes = dict[tuple[str, str], Data]


class FleetRun:
    """The run directory of a fleet, to be changed in place."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, node: str) -> list[str]:
        """Return the records in which a node took part."""
        return [
            path.name
            for path in sorted((self.root / "records").glob("*.json"))
            if path.name.partition("@")[0] != "slurm" and node in self.read(path.name)["nodes"]
        ]

    def read(self, name: str) -> Data:
        data: Data = json.loads((self.root / "records" / name).read_text(encoding="utf-8"))
        return data

    def write(self, name: str, data: Data) -> None:
        (self.root / "records" / name).write_text(json.dumps(data), encoding="utf-8")

    def change(self, name: str, change: Callable[[Data], None]) -> None:
        data = self.read(name)
        change(data)
        self.write(name, data)

    def change_run(self, **fields: Any) -> None:
        support.change(self.root / "run.json", **fields)

    def judged(self, into: Path) -> tuple[Data, Outcomes]:
        """Return verdict.json, and its rows by criterion and subject."""
        _, verdict = support.judged(self.root, into)
        return verdict, {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}


@pytest.fixture(scope="module")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fleet") / "run"
    Fleet(root, len(NODES), GPUS).write()
    return root


@pytest.fixture
def fleet(whole_fleet: Path, tmp_path: Path) -> FleetRun:
    return FleetRun(Path(shutil.copytree(whole_fleet, tmp_path / "fleet")))


def as_attempt(record: Data, attempt: int, *, seconds: float = 200.0) -> Data:
    """Return a record as a further attempt: later, and with samples of its own."""
    data: Data = json.loads(json.dumps(record))
    data["attempt"] = attempt
    later = seconds * (attempt - record["attempt"])
    for rank in data["ranks"]:
        rank["start"] += later
        rank["end"] += later
        for m in rank["measurements"]:
            if m.get("started") is not None:
                m["started"] += later
            if m.get("ended"):
                m["ended"] = [t + later for t in m["ended"]]
            if m.get("samples"):
                m["samples"] = [value * (1 + 1e-9 * attempt) for value in m["samples"]]
    return data


def names(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()
