"""Defects of ten kinds in one fleet: each is said at its place, nobody else is accused.

`make bench` does the same with 26 defects in 1,024 nodes of 8 GPUs (tests/tools/bench_fleet.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from tests.selftests import support
from tests.tools.fleet_faults import Planter, wrong
from tests.tools.fleet_run import Fleet

pytestmark = pytest.mark.cpu


def judged(tmp_path: Path, nodes: int, rack: int) -> tuple[Path, Planter]:
    Fleet(tmp_path / "source", nodes, 8).write()
    planter = Planter(tmp_path / "source")
    planter.plant(rack)
    status, _ = support.replay(
        tmp_path / "source", tmp_path / "run", "-m", "multinode", "-p", "tests.selftests.many"
    )
    assert status == 1
    return tmp_path / "run", planter


def test_defects_of_ten_kinds_are_each_named_at_their_place(tmp_path: Path) -> None:
    run, planter = judged(tmp_path, nodes=24, rack=3)
    assert len({fault.kind for fault in planter.faults}) == 10
    assert list(wrong(run, planter.faults)) == []
    assert read_verdict(RunDirectory(run))["verdict"] == "REJECTED"


@pytest.mark.slow
def test_in_a_thousand_nodes_26_defects_are_each_named_at_their_place(tmp_path: Path) -> None:
    run, planter = judged(tmp_path, nodes=1024, rack=16)
    assert len(planter.faults) == 26
    assert list(wrong(run, planter.faults)) == []
