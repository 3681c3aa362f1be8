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
from fixtures.verdict.fleet_groups import Difference, Fleet, differences
from reports.facts import groups
from reports.second_judge import samples as second
from tests.selftests import support
from tests.tools import fleet_run

pytestmark = pytest.mark.cpu
LIMITS = loader.load(THRESHOLDS)
Rates = NDArray[np.float64]


def rule_of(name: str) -> FleetRule:
    return FleetRule.of(LIMITS.spread[name].for_model("H200 SXM"), LIMITS.compared_criteria)


def fleet(name: str, nodes: int, per_node: int = 8, *, seed: int = 1, heavy: bool = False) -> Rates:
    """Healthy nodes of a class of rates: what lasts and the noise of a round."""
    rng, rule = np.random.default_rng(seed), rule_of(name)
    shape = nodes, per_node
    noise = rng.standard_t(3, shape) if heavy else rng.normal(size=shape)
    return 100 * (1 + rng.normal(0, rule.device_sigma, shape)) * (1 + rule.run_sigma * noise)


def found(name: str, values: Rates) -> list[Difference]:
    by_node = {f"n{k:04}": list(map(float, row)) for k, row in enumerate(values)}
    return differences([Fleet("key", by_node, rule_of(name), gpus=values.shape[1] > 1)])


def accused(name: str, values: Rates) -> int:
    """How many devices are below the wall of three rounds, slot by slot where slots differ."""
    rule = rule_of(name)
    pairs = [(slot, float(v)) for row in values for slot, v in enumerate(row)]
    compared = np.array(like(pairs, rule).values)
    return int((compared < rule.walls(compared, 3)).sum())


def slow_rack(values: Rates) -> Rates:
    values[32:48] *= 0.96
    return values


def slow_half(values: Rates) -> Rates:
    values[::2] *= 0.97
    return values


@pytest.mark.parametrize(
    ("name", "per_node", "change", "kind", "nodes", "slower"),
    [("gemm", 8, slow_rack, "place", 16, 0.04), ("hbm", 8, slow_half, "part", 64, 0.03),
     ("collective", 1, slow_half, "part", 64, 0.03),
     ("collective", 1, slow_rack, "place", 16, 0.04)],
)  # fmt: skip
def test_a_group_within_delta_is_said_with_size_and_place(
    name: str, per_node: int, change: Callable[[Rates], Rates], kind: str, nodes: int, slower: float
) -> None:
    (difference,) = found(name, change(fleet(name, 128, per_node)))
    assert (difference.kind, difference.nodes) == (kind, nodes)
    assert difference.slower == pytest.approx(slower, abs=0.01)
    if kind == "place":
        assert "n[0032-0047]" in difference.where


def planted(change: Callable[[Rates], None], name: str = "gemm", nodes: int = 32) -> Difference:
    values = fleet(name, nodes, 1 if name == "collective" else 8, seed=nodes)
    change(values)
    (difference,) = found(name, values)
    return difference


@pytest.mark.parametrize("name", ["gemm", "hbm", "collective"])
@pytest.mark.parametrize("nodes", [16, 24, 31, 128])
def test_eight_neighbours_are_a_place_also_where_few_nodes_were_measured(
    nodes: int, name: str
) -> None:
    def slow(values: Rates) -> None:
        values[4:12] *= 0.95

    place = planted(slow, name, nodes)
    assert (place.kind, place.nodes) == ("place", 8)
    assert place.where == "8 nodes next to each other, n[0004-0011]"
    assert place.slower == pytest.approx(0.05, abs=0.007)


def test_four_neighbours_have_the_difference_of_their_own_nodes() -> None:
    def slow(values: Rates) -> None:
        values[10:14] *= 0.95

    for name in ("gemm", "collective"):
        place = planted(slow, name, 32)
        assert (place.kind, place.where) == ("place", "4 nodes next to each other, n[0010-0013]")
        assert place.slower == pytest.approx(0.05, abs=0.007)


@pytest.mark.parametrize("nodes", [16, 24, 31, 32])
def test_every_second_node_is_a_part_and_no_place(nodes: int) -> None:
    def slow(values: Rates) -> None:
        values[::2] *= 0.95

    for name in ("gemm", "collective"):
        part = planted(slow, name, nodes)
        assert (part.kind, part.nodes) == ("part", (nodes + 1) // 2)


@pytest.mark.parametrize(("nodes", "share"), [(16, 0.5), (32, 0.3), (32, 0.5), (128, 0.3)])
def test_two_kinds_of_gpus_by_chance_are_said_as_what_they_are(nodes: int, share: float) -> None:
    rng = np.random.default_rng(nodes)
    slow = rng.random((nodes, 8)) < share

    def change(values: Rates) -> None:
        values[slow] *= 1 - 0.012
        values[3, 3] *= 0.7  # a single bad one hides nothing

    bins = planted(change, "hbm", nodes)
    assert bins.kind == "gpus"
    assert f" of {8 * nodes} GPUs, spread over" in bins.where
    assert int(bins.where.split()[0]) == pytest.approx(slow.sum(), abs=2)
    assert bins.slower == pytest.approx(0.012, abs=0.002)


def test_slow_nodes_are_nodes_and_not_kinds_of_gpus() -> None:
    def slow(values: Rates) -> None:
        values[[1, 4, 5, 9]] *= 0.97

    assert found("hbm", fleet("hbm", 11)) == []
    for nodes, kind in ((11, None), (13, "part")):
        values = fleet("hbm", nodes)
        slow(values)
        assert [d.kind for d in found("hbm", values)] == ([kind] if kind else [])


@pytest.mark.parametrize("nodes", [11, 16])
def test_nodes_whose_gpus_are_of_the_slower_kind_are_marked_where_a_node_has_one_kind(
    nodes: int,
) -> None:
    slow = np.arange(nodes) % 4 == 1

    def marks(*mixed: int) -> list[bool] | None:
        values = fleet("hbm", nodes)
        values[slow] *= 0.97
        for node in mixed:
            values[node, ::2] *= 0.97
        by_node = {f"n{k:04}": list(map(float, row)) for k, row in enumerate(values)}
        found = Fleet("key", by_node, rule_of("hbm"), gpus=True)._slow_by_gpus()
        return None if found is None else found.tolist()

    assert marks() == (slow.tolist() if nodes >= 12 else None)
    assert marks(0, 2, 3, 4, 6) is None


def test_sets_of_slow_nodes_share_the_chance_of_a_place() -> None:
    """Four of 32 neighbours are chance in 0.16 %: enough for one set of slow nodes, not for two."""

    def of(start: int) -> Fleet:
        values = fleet("gemm", 32, seed=start)
        values[start : start + 4] *= 0.95
        by_node = {f"n{k:04}": list(map(float, row)) for k, row in enumerate(values)}
        return Fleet("key", by_node, rule_of("gemm"), gpus=True)

    assert [d.kind for d in differences([of(3), of(3)])] == ["place", "place"]
    assert differences([of(3), of(20)]) == []


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
        with support.edited(path) as record:
            for rank in record["ranks"]:
                for m in rank["measurements"]:
                    if rank["local_rank"] in (4, 5, 6, 7) and m["metric"] in ("h2d", "d2h"):
                        m["samples"] = [0.96 * sample for sample in m["samples"]]
    support.judged(source, tmp_path / "run")
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "ACCEPTED", verdict["reasons"]
    said = {row["criterion"]: row["where"] for row in verdict["fleet"]}
    assert said["hostcopy.h2d"] == said["hostcopy.d2h"] == "GPUs 4, 5, 6, 7 of all nodes"
    assert any("GPUs 4, 5, 6, 7 of all nodes" in s for s in groups.sentences(verdict))
