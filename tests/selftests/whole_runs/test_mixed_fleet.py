"""Defects of many kinds in one fleet: the node lists are exactly as planted, each for its reason.

`python -m tests.tools.mixed_fleet` does the same as real replays, with 512 nodes too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from reports.facts import blame
from reports.pages.cluster import Cluster
from tests.selftests import support
from tests.selftests.fleets import Data, FleetRun
from tests.tools.fleet_run import Fleet
from tests.tools.mixed_fleet import Planted, made, wrong

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


def judged(folder: Path, nodes: int) -> tuple[Path, Planted]:
    source, planted = made(folder, nodes)
    support.judged(source, folder / "run")
    return folder / "run", planted


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    return judged(tmp_path_factory.mktemp("mixed"), 16)


def test_each_node_is_in_the_list_that_was_planted(small: tuple[Path, Planted]) -> None:
    assert list(wrong(*small)) == []


def test_a_node_in_another_list_is_noticed(small: tuple[Path, Planted]) -> None:
    run, planted = small
    (first, *_), word = planted.bad, "something else"
    said = " ".join(wrong(run, Planted({**planted.bad, first: word}, planted.neither)))
    assert said.startswith(f"{first} bad, expected 'something else'")
    rest = {node: word for node, word in planted.bad.items() if node != first}
    assert f"bad-nodes.txt: ['{first}'] too many" in " ".join(
        wrong(run, Planted(rest, planted.neither))
    )


def test_the_headline_counts_the_gpus_of_all_inventories(tmp_path: Path) -> None:
    Fleet(tmp_path / "run", 16, 8).write()
    directory = RunDirectory(tmp_path / "run")
    run = read_json(directory.run_json)
    found = Cluster.of(directory, run, run["population"])
    assert "16 nodes, 128 x NVIDIA H200" in found.headline


@pytest.mark.parametrize("nodes", [32, 128])
def test_each_node_of_a_large_fleet_is_in_the_list_that_was_planted(
    nodes: int, tmp_path: Path
) -> None:
    assert list(wrong(*judged(tmp_path, nodes))) == []


def times(factor: Callable[[int], float]) -> Callable[[Data], None]:
    """A change of a record: all samples of its rates, by a factor of each rank."""

    def changed(data: Data) -> None:
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                m["samples"] = [factor(rank["rank"]) * s for s in m.get("samples", ())]
                if not m["samples"]:
                    del m["samples"]

    return changed


def fleet_of(folder: Path, slow: int, factor: float, *workloads: str) -> Path:
    """A judged fleet of 32, of which the first nodes are slower."""
    Fleet(folder / "source", 32, 8).write()
    fleet = FleetRun(folder / "source")
    for node in [f"gpu{k:04}" for k in range(1, slow + 1)]:
        for workload in workloads:
            fleet.change(f"{workload}@{node}.json", times(lambda _: factor))
    fleet.judged(folder / "run")
    return folder / "run"


def listed(run: Path, name: str) -> list[str]:
    return (run / f"{name}.txt").read_text(encoding="utf-8").split()


def test_a_fleet_that_is_slow_as_a_whole_is_said_first_and_not_excluded(tmp_path: Path) -> None:
    """4 % below what was recorded: some limits are within that, some cut through the fleet."""
    run = fleet_of(tmp_path, 32, 0.96, "gemm", "memory", "p2p", "reducescatter")
    assert (listed(run, "bad-nodes"), listed(run, "good-nodes")) == ([], [])
    reasons = (run / "node-reasons.txt").read_text(encoding="utf-8").splitlines()
    assert len(reasons) == 32
    assert all("neither: " in line and "as on all 32 nodes" in line for line in reasons)
    directory = RunDirectory(run)
    verdict = support.read_verdict(directory)
    lists = blame.lists_of(directory, verdict, read_json(directory.run_json))
    sentence = blame.blame(verdict, lists).sentence
    assert sentence.startswith("all 32 nodes fail ")
    assert "at fault" not in sentence


def test_of_nodes_that_are_alike_none_is_charged_where_a_limit_runs_through_them(
    tmp_path: Path,
) -> None:
    run = fleet_of(tmp_path, 13, 0.96, "memory")
    bad = listed(run, "bad-nodes")
    reasons = (run / "node-reasons.txt").read_text(encoding="utf-8")
    assert bad == []
    assert all(f"gpu{k:04} " not in reasons for k in range(14, 33))
