"""Groups of a fleet that differ: said with size and place, and nobody is accused for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fixtures.paths import THRESHOLDS
from fixtures.statistics.fleet_rule import FleetRule
from fixtures.statistics.fleet_slots import like, slot_shares
from fixtures.thresholds import loader
from fixtures.verdict.fleet_groups import Difference, differences
from reports import groups
from reports.second_judge import samples as second
from tests.selftests import support
from tests.tools import fleet_run

pytestmark = pytest.mark.cpu
LIMITS = loader.load(THRESHOLDS)
Fleet = NDArray[np.float64]


def rule_of(name: str) -> FleetRule:
    return FleetRule.of(LIMITS.spread[name].for_model("H200 SXM"), LIMITS.compared_criteria)


def fleet(name: str, nodes: int, per_node: int = 8, *, seed: int = 1, heavy: bool = False) -> Fleet:
    """Healthy nodes of a class of rates: what lasts and the noise of a round."""
    rng, rule = np.random.default_rng(seed), rule_of(name)
    shape = nodes, per_node
    noise = rng.standard_t(3, shape) if heavy else rng.normal(size=shape)
    return 100 * (1 + rng.normal(0, rule.device_sigma, shape)) * (1 + rule.run_sigma * noise)


def found(name: str, values: Fleet) -> list[Difference]:
    by_node = {f"n{k:04}": list(map(float, row)) for k, row in enumerate(values)}
    return differences("key", by_node, rule_of(name))


def accused(name: str, values: Fleet) -> int:
    """How many devices are below the wall of three rounds, slot by slot where slots differ."""
    rule = rule_of(name)
    pairs = [(slot, float(v)) for row in values for slot, v in enumerate(row)]
    compared = np.array(like(pairs, rule).values)
    return int((compared < rule.walls(compared, 3)).sum())


def slow_rack(values: Fleet) -> Fleet:
    values[32:48] *= 0.96
    return values


def slow_half(values: Fleet) -> Fleet:
    values[::2] *= 0.97
    return values


@pytest.mark.parametrize(
    ("name", "per_node", "change", "kind", "nodes", "slower"),
    [("gemm", 8, slow_rack, "place", 16, 0.04), ("hbm", 8, slow_half, "part", 64, 0.03),
     ("collective", 1, slow_half, "part", 64, 0.03),
     ("collective", 1, slow_rack, "place", 16, 0.04)],
)  # fmt: skip
def test_a_group_within_delta_is_said_with_size_and_place(
    name: str, per_node: int, change: Callable[[Fleet], Fleet], kind: str, nodes: int, slower: float
) -> None:
    (difference,) = found(name, change(fleet(name, 128, per_node)))
    assert (difference.kind, difference.nodes) == (kind, nodes)
    assert difference.slower == pytest.approx(slower, abs=0.01)
    if kind == "place":
        assert "n[0032-0047]" in difference.where


@pytest.mark.parametrize("nodes", [8, 16, 128])
@pytest.mark.parametrize(("slots", "gap"), [(2, 0.015), (3, 0.025), (4, 0.05)])
def test_slots_that_are_slower_on_every_node_are_said_and_accuse_nobody(
    nodes: int, slots: int, gap: float
) -> None:
    values = fleet("hostcopy", nodes)
    values[:, :slots] *= 1 - gap
    assert accused("hostcopy", values) == 0
    (slot,) = [d for d in found("hostcopy", values) if d.kind == "slot"]
    assert slot.where == f"GPUs {', '.join(map(str, range(slots)))} of all nodes"


def test_a_gpu_that_is_slower_than_its_slot_is_accused() -> None:
    values = fleet("hostcopy", 16)
    values[:, :3] *= 0.95
    values[5, 0] *= 0.96  # of a slow slot
    values[6, 7] *= 0.96  # of a fast one
    assert accused("hostcopy", values) == 2


def test_below_eight_nodes_slots_are_not_compared() -> None:
    values = fleet("hostcopy", 7)
    values[:, :3] *= 0.95
    assert not [d for d in found("hostcopy", values) if d.kind == "slot"]


def test_a_healthy_fleet_has_no_groups() -> None:
    said = [
        difference
        for heavy in (False, True)
        for name in ("gemm", "gemm_per_clock", "hbm", "hostcopy", "collective")
        for nodes in (2, 8, 64, 128)
        for seed in range(5)
        for difference in found(
            name, fleet(name, nodes, 1 if name == "collective" else 8, seed=seed, heavy=heavy)
        )
    ]
    assert not said


def test_the_report_says_the_difference_once_with_all_its_criteria() -> None:
    rows = [
        Difference(key, "place", "16 nodes next to each other, n[01-16]", 16, 0.0412).to_json()
        for key in ("gemm.bf16", "gemm.fp8")
    ]
    verdict: Mapping[str, object] = {"criteria": [], "fleet": rows}
    assert groups.sentences(verdict) == [
        "Slower than the rest of the fleet, judged by their limits: 16 nodes next to each other,"
        " n[01-16]: gemm.bf16 4.1%, gemm.fp8 4.1%. Look at what these nodes share: rack, leaf"
        " switch, power, cooling, delivery."
    ]


@pytest.mark.parametrize("nodes", [2, 8, 16, 64])
@pytest.mark.parametrize("name", ["gemm", "gemm_per_clock", "hbm", "hostcopy"])
def test_the_second_judge_finds_the_same_walls_and_slots(name: str, nodes: int) -> None:
    rule, spread = rule_of(name), LIMITS.spread[name].for_model("H200 SXM").model_dump()
    for seed in range(5):
        values = fleet(name, nodes, seed=seed, heavy=seed % 2 == 0)
        values[:, : seed % 3] *= 0.96
        pairs = [(slot, float(v)) for row in values for slot, v in enumerate(row)]
        assert second.slot_shares(pairs, spread, rule.criteria) == pytest.approx(
            slot_shares(pairs, rule)
        )
        compared = np.array(like(pairs, rule).values)
        for rounds in (1, 3):
            wall = float(rule.walls(compared, rounds))
            by_second = second.lowest_of_kind(list(compared), spread, rule.criteria, rounds)
            assert by_second == pytest.approx(wall, rel=1e-9)


def test_a_run_with_a_far_numa_node_in_every_node_is_accepted_and_says_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    fleet_run.Fleet(source, 8, 8).write()
    for path in (source / "records").glob("hostcopy@*.json"):
        record = json.loads(path.read_text())
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if rank["local_rank"] in (4, 5, 6, 7) and m["metric"] in ("h2d", "d2h"):
                    m["samples"] = [0.96 * sample for sample in m["samples"]]
        path.write_text(json.dumps(record))
    support.judged(source, tmp_path / "run")
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "ACCEPTED", verdict["reasons"]
    said = {row["criterion"]: row["where"] for row in verdict["fleet"]}
    assert said["hostcopy.h2d"] == said["hostcopy.d2h"] == "GPUs 4, 5, 6, 7 of all nodes"
    assert any("GPUs 4, 5, 6, 7 of all nodes" in s for s in groups.sentences(verdict))
