"""Which sentences about groups a fleet gets: those that were planted, and no others.

    python -m tests.tools.bench_groups [--fleets 200] [--nodes 16 32 128 512] [--jobs 2] [--seed 26]

Figures of all criteria that compare devices, of 8 GPUs per node, are drawn as a run would measure
them, and judged by the fleet rule; the sentences are those of fixtures/verdict/fleet_groups.py (of
figures) and reports/facts/groups.py (of rows that fail). The fleets of a size take turns.
The first table counts fleets with a sentence about a group that was not planted; the second the
planted groups that were given, with the right place and size.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fixtures.slurm.hostlist import expand_hostlist
from fixtures.statistics.fleet_rule import FleetRule
from fixtures.statistics.fleet_slots import like
from fixtures.thresholds.loader import Criterion
from fixtures.verdict import fleet_groups, outliers
from reports.facts import groups
from tests.tools import bench_statistics
from tests.tools.bench_statistics import GPUS, Generator, Kind, Values, shipped, table

SIZES = (16, 32, 128, 512)
LIMIT = 0.85
"""Share of the usual value below which a device fails whatever its like do."""
MODEL_KEY, STATE_KEY = "inventory.gpu_model", "scheduler.node_state"


@dataclass(frozen=True)
class Plant:
    """A group that was planted, and what a sentence about it must say."""

    name: str
    kind: str
    spreads: frozenset[str]
    """Classes of rates that it slows; empty: rows that fail for another reason."""
    nodes: frozenset[int] = frozenset()
    slower: float = 0.0
    within: float = 0.0
    """By how much the difference that is said may be off; a fifth of it where this is 0."""
    slot: int | None = None


@dataclass
class World:
    """A fleet to be measured: factors by class of rates, (nodes, GPUs), and what was planted."""

    rng: Generator
    nodes: int
    heavy: bool = False
    factors: dict[str, Values] = field(default_factory=dict)
    plants: list[Plant] = field(default_factory=list)
    absent: set[int] = field(default_factory=set)
    """Nodes without figures."""
    failing: dict[str, set[int]] = field(default_factory=dict)
    """Criterion -> nodes whose row fails, besides those of figures."""

    def factor(self, spread: str) -> Values:
        return self.factors.setdefault(spread, np.ones((self.nodes, GPUS)))

    def some(self, share: float) -> set[int]:
        count = max(1, round(share * self.nodes))
        return {int(k) for k in self.rng.choice(self.nodes, count, replace=False)}

    def row(self, length: int) -> range:
        start = int(self.rng.integers(self.nodes - length + 1))
        return range(start, start + length)


def nothing(world: World) -> None:
    pass


def heavy_noise(world: World) -> None:
    world.heavy = True


def bins(share: float) -> Callable[[World], None]:
    def plant(world: World) -> None:
        """Memory of a share of the GPUs, by chance, is 1.2 % slower."""
        slow = world.rng.random((world.nodes, GPUS)) < share
        world.factor("hbm")[slow] *= 1 - 0.012
        name = f"memory bins, {share:.0%} of the GPUs 1.2 % slower"
        world.plants.append(Plant(name, "gpus", frozenset({"hbm"}), slower=0.012))

    return plant


def _place(world: World, name: str, row: range, slower: Values, spreads: set[str]) -> None:
    for spread in spreads:
        world.factor(spread)[row.start : row.stop] *= 1 - slower[:, np.newaxis]
    world.plants.append(
        Plant(name, "place", frozenset(spreads), frozenset(row), float(np.median(slower)),
              within=float(np.ptp(slower)) / 2)
    )  # fmt: skip


def warm_row(world: World) -> None:
    """The clocks of 8 neighbours are 3 to 6 % lower."""
    slower = world.rng.uniform(0.03, 0.06, 8)
    _place(world, "warm row of 8, 3 to 6 %", world.row(8), slower, {"gemm"})


def few_neighbours(world: World) -> None:
    _place(world, "4 neighbours, 5 %", world.row(4), np.full(4, 0.05), {"gemm", "collective"})


def rack(world: World) -> None:
    length = min(16, world.nodes // 4)
    name = "rack (16, at most a quarter), 3 %"
    _place(world, name, world.row(length), np.full(length, 0.03), {"hbm"})


def slot(world: World) -> None:
    slow = int(world.rng.integers(GPUS))
    world.factor("hostcopy")[:, slow] *= 1 - 0.015
    world.plants.append(
        Plant("slot, 1.5 %", "slot", frozenset({"hostcopy"}), slot=slow, slower=0.015)
    )


def half(world: World) -> None:
    slow = world.some(0.5)
    world.factor("hbm")[sorted(slow)] *= 1 - 0.03
    world.plants.append(
        Plant("half of the nodes, 3 %", "part", frozenset({"hbm"}), frozenset(slow), 0.03)
    )


def drained(world: World) -> None:
    """Some nodes are drained: no group."""
    world.absent |= world.some(0.1)
    world.failing[STATE_KEY] = set(world.absent)


def sick(world: World) -> None:
    """Some nodes and some GPUs are slow, each for itself: no group."""
    for spread in ("gemm", "hbm", "hostcopy", "collective"):
        for node in world.some(0.03):
            whole = world.rng.random() < 0.5 or spread == "collective"
            at = slice(None) if whole else int(world.rng.integers(GPUS))
            world.factor(spread)[node, at] *= 1 - world.rng.uniform(0.1, 0.3)


def other_model(world: World) -> None:
    world.absent |= world.some(0.5)
    world.failing[MODEL_KEY] = set(world.absent)
    nodes = frozenset(world.absent)
    world.plants.append(Plant("half of the nodes another model", "part", frozenset(), nodes))


def mixed(world: World) -> None:
    for plant in (warm_row, bins(0.5), sick):
        plant(world)
    world.absent |= world.some(0.05)
    world.failing[STATE_KEY] = set(world.absent)


SCENARIOS: tuple[Callable[[World], None], ...] = (
    nothing, heavy_noise, bins(0.5), bins(0.3), warm_row, few_neighbours, rack, slot, half,
    drained, sick, other_model, mixed,
)  # fmt: skip


# --- from a fleet to its sentences


def figures(world: World, criterion: Criterion, kind: Kind) -> Values:
    """Return the figures of a criterion: (nodes, GPUs), or (nodes, 1) where GPUs share one."""
    per_node = 1 if criterion.kind.over_ranks or criterion.over == "nodes" else GPUS
    shape = (1, world.nodes, per_node)
    lasting = bench_statistics.normal(world.rng, shape, kind)
    make = bench_statistics.heavy_noise if world.heavy else bench_statistics.gaussian_noise
    rates = (lasting * (1 + make(world.rng, shape, kind)))[0].astype(float)
    if kind.name in world.factors:
        factor = world.factors[kind.name]
        rates = rates * (factor.min(axis=1, keepdims=True) if per_node == 1 else factor)
    return np.asarray(100 * rates)


@dataclass(frozen=True)
class Sentence:
    """What a sentence says, in a form that can be compared with a plant."""

    spread: str
    kind: str
    where: str
    slower: float | None = None


def sentences(world: World) -> list[Sentence]:
    """Return what is said of the groups of a fleet."""
    limits = shipped()
    names = [f"n{k:04}" for k in range(world.nodes)]
    present = [k for k in range(world.nodes) if k not in world.absent]
    fleets, rows, spread_of = [], [], {}
    for key, criterion in limits.criteria.items():
        if not criterion.compares_with_fleet or criterion.per != "node":
            continue
        spread = str(criterion.spread)
        spread_of[key] = spread
        rule = FleetRule.of(limits.spread[spread], limits.compared_criteria)
        rates = figures(world, criterion, Kind(spread, rule, 1))[present]
        has_slots = outliers.has_slots(criterion) and rates.shape[1] > 1
        by_node = {names[k]: row.tolist() for k, row in zip(present, rates, strict=True)}
        fleets.append(fleet_groups.Fleet(key, by_node, rule, has_slots))
        rows += judged(key, by_node, rule, has_slots)
    for key, nodes in world.failing.items():
        rows += [
            {"criterion": key, "subject": names[k], "outcome": "FAIL" if k in nodes else "PASS",
             "worst": {"node": names[k], "gpu": None, "part": "the node"}}
            for k in range(world.nodes)
        ]  # fmt: skip
    verdict = {"scope": {"nodes": names, "gpus_per_node": GPUS}, "criteria": rows}
    return [
        *(Sentence(spread_of[d.criterion], d.kind, d.where, d.slower)
          for d in fleet_groups.differences(fleets)),
        *(Sentence(spread_of.get(key, key), group.kind, group.where)
          for group in groups.groups(verdict) for key in group.keys),
    ]  # fmt: skip


def judged(
    key: str, by_node: Mapping[str, Sequence[float]], rule: FleetRule, has_slots: bool
) -> list[dict[str, Any]]:
    """Return a row per node: it fails below the wall of the fleet or below the limit."""
    pairs = [(k if has_slots else None, rate) for rates in by_node.values()
             for k, rate in enumerate(rates)]  # fmt: skip
    compared = like(pairs, rule)
    wall = float(rule.walls(np.array(compared.values), 1))
    rows = []
    for node, rates in by_node.items():
        bounds = [max(LIMIT * 100, wall * (compared.share(k) if has_slots else 1))
                  for k in range(len(rates))]  # fmt: skip
        bad = [k for k, rate in enumerate(rates) if rate < bounds[k]]
        worst: dict[str, Any] = {"node": node, "gpu": None}
        if bad and has_slots:
            worst |= {"gpu": min(bad, key=rates.__getitem__), "failing": len(bad)}
        outcome = "FAIL" if bad else "PASS"
        rows.append({"criterion": key, "subject": node, "outcome": outcome, "worst": worst})
    return rows


def is_about(sentence: Sentence, plant: Plant) -> bool:
    """Whether a sentence is true of a planted group."""
    if (sentence.spread not in plant.spreads) and (plant.spreads or sentence.spread != MODEL_KEY):
        return False
    within = max(plant.within, plant.slower / 5)
    if sentence.slower is not None and abs(sentence.slower - plant.slower) > within:
        return False
    if plant.kind == "slot":
        return sentence.kind == "slot" and f"GPU {plant.slot} " in sentence.where
    if plant.kind == "gpus":
        return sentence.kind == "gpus"
    if sentence.kind not in ("place", "part"):
        return False
    named = re.search(r"n\[[\d,-]+\]", sentence.where)
    if named is None:  # rows of "half of the nodes" name none
        return plant.kind == "part"
    listed = {int(name[1:]) for name in expand_hostlist(named[0])}
    return len(listed & plant.nodes) >= 0.75 * len(listed | plant.nodes)


@dataclass(frozen=True)
class Outcome:
    """What was said of one fleet."""

    nodes: int
    scenario: int
    unplanned: tuple[str, ...]
    given: tuple[tuple[str, bool], ...]


def examine(case: tuple[int, int, int]) -> Outcome:
    """Make a fleet (nodes, number, seed) and compare its sentences with its plants."""
    nodes, number, seed = case
    scenario = number % len(SCENARIOS)
    world = World(np.random.default_rng([seed, nodes, number]), nodes)
    SCENARIOS[scenario](world)
    found = sentences(world)
    return Outcome(
        nodes, scenario,
        tuple(f"{s.spread}: {s.kind}: {s.where} {s.slower}" for s in found
              if not any(is_about(s, plant) for plant in world.plants)),
        tuple((plant.name, any(s.kind == plant.kind and is_about(s, plant) for s in found))
              for plant in world.plants),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_groups")
    parser.add_argument("--fleets", type=int, default=200, help="of each size")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=26)
    options = parser.parse_args()
    sizes = sorted(options.nodes, reverse=True)
    cases = [(n, k, options.seed) for n in sizes for k in range(options.fleets)]
    with ProcessPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(examine, cases, chunksize=4))
    wrong = Counter(o.nodes for o in outcomes if o.unplanned)
    print(f"Of {options.fleets} fleets of each size, those with a sentence about a group that was")
    print("not planted\n")
    print(table([f"{n} x {GPUS}" for n in options.nodes], [[str(wrong[n]) for n in options.nodes]]))
    for outcome in outcomes:
        for text in outcome.unplanned[:2]:
            print(f"  {outcome.nodes} nodes, scenario {outcome.scenario}: {text}")
    print("\nPlanted groups that were given\n")
    counts: Counter[tuple[str, int, bool]] = Counter(
        (name, o.nodes, given) for o in outcomes for name, given in o.given
    )
    names = list(dict.fromkeys(name for o in outcomes for name, _ in o.given))
    rows = [
        [name, *(f"{counts[name, n, True]} of {counts[name, n, True] + counts[name, n, False]}"
                 for n in options.nodes)]
        for name in names
    ]  # fmt: skip
    print(table(["planted", *(f"{n} x {GPUS}" for n in options.nodes)], rows))


if __name__ == "__main__":
    main()
