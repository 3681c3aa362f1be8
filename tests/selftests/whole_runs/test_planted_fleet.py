"""Defects of ten kinds in one fleet: each is said at its place, nobody else is accused.

`make bench` does the same with 26 defects in 1,024 nodes of 8 GPUs (tests/tools/bench_fleet.py).
"""

from __future__ import annotations

from dataclasses import replace
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planter]:
    return judged(tmp_path_factory.mktemp("planted"), nodes=24, rack=3)


def test_defects_of_ten_kinds_are_each_named_at_their_place(small: tuple[Path, Planter]) -> None:
    run, planter = small
    assert len({fault.kind for fault in planter.faults}) == 10
    assert list(wrong(run, planter.faults)) == []
    assert read_verdict(RunDirectory(run))["verdict"] == "REJECTED"


def test_a_defect_that_is_missed_or_put_elsewhere_is_noticed(small: tuple[Path, Planter]) -> None:
    run, planter = small
    port, *others = sorted(planter.faults, key=lambda fault: fault.kind != "NIC down")
    healthy = planter.nodes[-1]
    said = " ".join(wrong(run, [replace(port, node=healthy), *others]))
    assert f"accused ['{port.node}'], missed ['{healthy}']" in said
    assert f"NIC down on {healthy}: no row infiniband.state says it" in said
    assert f"infiniband.state {port.node} accuses {port.node}" in said
    said = " ".join(wrong(run, [replace(port, part="mlx5_4"), *others]))
    assert said == f"NIC down on {port.node}: no row infiniband.state says it"


@pytest.mark.slow
def test_in_a_thousand_nodes_26_defects_are_each_named_at_their_place(tmp_path: Path) -> None:
    run, planter = judged(tmp_path, nodes=1024, rack=16)
    assert len(planter.faults) == 26
    assert list(wrong(run, planter.faults)) == []
