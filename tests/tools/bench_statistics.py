"""How often a healthy fleet is accused, and which defects are found: the tables of docs/scale.md.

    python -m tests.tools.bench_statistics [--fleets 1000] [--nodes 2 16 128 1024]

The fleet rule of the judge (fixtures/statistics/fleet_rule.py) on simulated fleets of 8 GPUs per
node: every class of `spread:` in thresholds.yaml, with as many criteria as it has. A healthy device
differs from its like by at most the class's delta for good; the rest is noise. As in a run, a
device that is lower than its node's median by more than delta is measured in three rounds with its
node, where the workload repeats; every other is measured in one round. Fixed seeds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixtures.paths import CHECKOUT, THRESHOLDS
from fixtures.statistics.fleet_rule import MIN_FLEET, FleetRule, deviations
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict import fleet_groups, power

Values = NDArray[np.floating[Any]]
Generator = np.random.Generator
GPUS = 8
ROUNDS = power.ROUNDS
SIZES = (2, 16, 128, 1024)
SHARED = ("collective",)
"""Classes whose figure all ranks of a node share: one value per node, measured in one round."""
RECORDINGS = CHECKOUT / "tests" / "selftests" / "data" / "spread" / "h200.json"
BATCHES = 20
"""Batches of a round, at least: its figure is their median."""
BLOCK = 1 << 20
"""Values that are drawn at once, to bound the memory."""


@dataclass(frozen=True)
class Kind:
    """A class of rates: by what it is judged, and how many criteria it has."""

    name: str
    rule: FleetRule
    criteria: int

    @property
    def repeats(self) -> bool:
        return self.name not in SHARED

    @property
    def per_node(self) -> int:
        return GPUS if self.repeats else 1


def kinds(limits: Thresholds) -> list[Kind]:
    """Return the classes that compare devices, with the criteria of each."""
    count = Counter(
        c.spread for c in limits.criteria.values()
        if c.spread and c.statistic != "spread" and c.per in ("node", "rail")
    )  # fmt: skip
    return [
        Kind(name, FleetRule.of(limits.spread[name], limits.compared_criteria), n)
        for name, n in count.items() if name != "p2p"
    ]  # fmt: skip


# --- healthy fleets: what lasts, (fleets, nodes, values per node), and noise per round

Shape = tuple[int, ...]


def normal(rng: Generator, shape: Shape, kind: Kind) -> Values:
    """Like devices differ as recorded, and none by more than delta."""
    lasting = rng.standard_normal(shape, dtype=np.float32) * np.float32(kind.rule.device_sigma)
    return 1 + np.clip(lasting, -kind.rule.delta, kind.rule.delta)


def bimodal(rng: Generator, shape: Shape, kind: Kind) -> Values:
    """The nodes of a third of the fleet are slower by all that may last."""
    third = np.arange(shape[1]) < shape[1] // 3
    lasting = normal(rng, shape, kind)
    lasting[:, third] = np.minimum(lasting[:, third], 1.0) - np.float32(kind.rule.delta)
    return np.maximum(lasting, 1 - np.float32(kind.rule.delta))


def bootstrapped(rng: Generator, shape: Shape, kind: Kind) -> Values:
    """Devices drawn from the recorded ones; their differences hold a run's noise already."""
    recorded = recorded_shares(kind.name)
    return 1 + np.maximum(rng.choice(recorded, shape), np.float32(-kind.rule.delta))


@functools.cache
def recorded_shares(name: str) -> NDArray[np.float32]:
    """Return how far the devices of the recorded runs are from the median of theirs."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    criteria = shipped().criteria
    for row in json.loads(RECORDINGS.read_text()):
        values = row["values"].values()
        median = statistics.median(values)
        found[str(criteria[row["criterion"]].spread)] += [v / median - 1 for v in values]
    return np.array(found[name] or [0.0], dtype=np.float32)


def gaussian_noise(rng: Generator, shape: Shape, kind: Kind) -> Values:
    noise = rng.standard_normal(shape, dtype=np.float32)
    return np.asarray(noise * np.float32(kind.rule.run_sigma))


def heavy_noise(rng: Generator, shape: Shape, kind: Kind) -> Values:
    """Student's t with three degrees of freedom.

    Of rates that repeat it is the noise of a whole round, with the quartiles of a normal one: a
    disturbance may be as long as a round. Of figures with one round it is that of their batches,
    of which the median is taken: what lasts as long as the only round is not noise.
    """
    if kind.repeats:
        return _t3(rng, shape) * np.float32(0.6745 / 0.7649 * kind.rule.run_sigma)
    return np.asarray(_of_medians(rng, shape) * np.float32(kind.rule.run_sigma))


def _t3(rng: Generator, shape: Shape) -> Values:
    squares = rng.standard_gamma(1.5, shape, dtype=np.float32) * np.float32(2 / 3)
    return np.asarray(rng.standard_normal(shape, dtype=np.float32) / np.sqrt(squares))


@functools.cache
def _scale_of_median() -> float:
    medians = np.median(_t3(np.random.default_rng(3), (100_000, BATCHES)), axis=-1)
    return float(medians.std())


def _of_medians(rng: Generator, shape: Shape) -> Values:
    """Medians of BATCHES with heavy tails, of standard deviation one."""
    return np.asarray(np.median(_t3(rng, (*shape, BATCHES)), axis=-1) / _scale_of_median())


Lasting = Callable[[Generator, Shape, Kind], Values]
Noise = Callable[[Generator, Shape, Kind], Values]
FLEETS: Mapping[str, tuple[Lasting, Noise]] = {
    "normal": (normal, gaussian_noise),
    "heavy tails": (normal, heavy_noise),
    "two modes": (bimodal, gaussian_noise),
    "recorded H200": (bootstrapped, gaussian_noise),
}


# --- the run and the judge


@dataclass(frozen=True)
class Measured:
    """A class of rates of some fleets: (fleets, nodes, values per node)."""

    figure: Values
    """The median of the rounds."""
    highest: Values
    """The best of the rounds."""
    repeated: NDArray[np.bool_]
    """(fleets, nodes): whether the node was measured in ROUNDS."""


def measured(rng: Generator, lasting: Values, kind: Kind, noise: Noise) -> Measured:
    """Return what a run measures: nodes with a slow device in ROUNDS, all others once."""
    first = lasting * (1 + noise(rng, lasting.shape, kind))
    if not kind.repeats:
        return Measured(first, first, np.zeros(first.shape[:2], dtype=bool))
    low, high, least = first.min(axis=-1), first.max(axis=-1), 1 - kind.rule.delta
    slow = low < least * high  # as the median of a node is at most its highest
    slow[slow] = low[slow] < least * np.median(first[slow], axis=-1)
    if not slow.any():
        return Measured(first, first, slow)
    shape = first[slow].shape
    rounds = [first[slow], *(lasting[slow] * (1 + noise(rng, shape, kind)) for _ in range(2))]
    figure, highest = first.copy(), first.copy()
    figure[slow], highest[slow] = np.median(rounds, axis=0), np.max(rounds, axis=0)
    return Measured(figure, highest, slow)


def accused(
    rng: Generator, lasting: Values, kind: Kind, noise: Noise, known: bool = False
) -> NDArray[np.bool_]:
    """Return which devices of each fleet are accused: below the wall in every round.

    `known`: by median, spread and noise of the healthy fleet, which no judge knows.
    """
    found = measured(rng, lasting, kind, noise)
    fleets = found.figure.reshape(len(lasting), -1)
    if fleets.shape[-1] < MIN_FLEET:
        return np.zeros(lasting.shape, dtype=bool)
    walls = functools.partial(known_walls, kind.rule) if known else kind.rule.walls
    wall = np.repeat(walls(fleets, 1)[:, np.newaxis], lasting.shape[1], axis=1)
    again = found.repeated.any(axis=-1)
    if again.any():
        often = walls(fleets[again], ROUNDS)[:, np.newaxis]
        wall[again] = np.where(found.repeated[again], often, wall[again])
    return np.asarray(found.highest < wall[..., np.newaxis])


def known_walls(rule: FleetRule, fleets: Values, rounds: int) -> Values:
    """Return the wall of the same risk of who knows median and spread of the healthy fleet."""
    count = fleets.shape[-1]
    noise = deviations(count, rule.criteria, rounds) * rule.run_sigma
    sigma = np.hypot(rule.device_sigma, rule.run_sigma / np.sqrt(rounds))
    chance = np.exp(-deviations(count, rule.criteria) * sigma)
    return np.full(len(fleets), min((1 - rule.delta) * np.exp(-noise), chance))


def healthy_runs_accused(limits: Thresholds, nodes: int, name: str, fleets: int) -> int:
    """Return how many of so many healthy fleets accuse anybody, by any criterion."""
    make, noise = FLEETS[name]
    rng = np.random.default_rng([nodes, sorted(FLEETS).index(name)])
    block = max(1, BLOCK // (nodes * GPUS))
    total = 0
    for start in range(0, fleets, block):
        count = min(block, fleets - start)
        anybody = np.zeros(count, dtype=bool)
        for kind in kinds(limits):
            lasting = make(rng, (count, nodes, kind.per_node), kind)
            for _ in range(kind.criteria):
                anybody |= accused(rng, lasting, kind, noise).any(axis=(1, 2))
        total += int(anybody.sum())
    return total


# --- defects

GROUPS: Mapping[str, Callable[[int, int], int]] = {
    "GPU": lambda values, per_node: 1,
    "node": lambda values, per_node: per_node,
    "rack": lambda values, per_node: min(16 * per_node, values // 4),
    "30 %": lambda values, per_node: round(0.3 * values),
    "half": lambda values, per_node: values // 2,
    "all": lambda values, per_node: values,
}
"""Group of slow devices -> how many of the values are of it, with so many values per node."""
SAID = ("slot", "rack", "30 %", "half", "none")
"""Groups whose saying is counted."""


def share_named(
    kind: Kind, nodes: int, slow: float, group: str, fleets: int, known: bool = False
) -> float:
    """Return the share of slow devices that one criterion accuses in fleets with a slow group."""
    rng = np.random.default_rng([nodes, round(1000 * slow), sorted(GROUPS).index(group)])
    lasting = normal(rng, (fleets, nodes, kind.per_node), kind)
    values = nodes * kind.per_node
    bad = max(1, GROUPS[group](values, kind.per_node))
    lasting.reshape(fleets, -1)[:, :bad] *= 1 - slow
    found = accused(rng, lasting, kind, gaussian_noise, known).reshape(fleets, -1)
    return float(found[:, :bad].mean())


# --- groups that are said


def share_said(kind: Kind, nodes: int, slow: float, group: str, fleets: int) -> float:
    """Return the share of fleets with a slow group (none: healthy ones) that have one said of it.

    A slot is GPU 0 of every node.
    """
    rng = np.random.default_rng([nodes, round(1000 * slow), len(group)])
    said = 0
    for _ in range(fleets):
        lasting = normal(rng, (nodes, kind.per_node), kind)
        if group == "slot":
            lasting[:, 0] *= 1 - slow
        elif group != "none":
            lasting[: GROUPS[group](nodes, 1)] *= 1 - slow
        noise = heavy_noise if group == "none" else gaussian_noise
        figures = lasting * (1 + noise(rng, lasting.shape, kind))
        of_node = {f"n{k:04}": row.tolist() for k, row in enumerate(figures)}
        fleet = fleet_groups.Fleet("rate", of_node, kind.rule, kind.repeats)
        said += bool(fleet_groups.differences([fleet]))
    return said / fleets


# --- the power that a run states


def share_found_as_stated(
    kind: Kind, nodes: int, plants: int, *, limit: float = 0.8, seed: int = 1
) -> tuple[float | None, float]:
    """Return the smallest defect that runs state, on average, and how often it is found.

    Every plant has a fleet of its own, whose run states the power from one round each; then one
    device gets slower by just as much and is measured in new rounds, with its fleet. `limit`:
    share of the usual value below which a device fails whatever its like do.
    """
    rng = np.random.default_rng([seed, nodes, sum(kind.name.encode())])
    rule, count = kind.rule, nodes * kind.per_node
    sigma, rounds = rule.run_sigma, ROUNDS if kind.repeats else 1
    stated, found = [], 0
    for _ in range(plants):
        lasting = 1 + rng.normal(0, rule.device_sigma, count)
        values = lasting * (1 + rng.normal(0, sigma, count))
        bounds = np.full(count, limit)
        if count >= MIN_FLEET:
            bounds = np.maximum(bounds, power.fleet_bounds(values, rule, rounds))
        defect = power.smallest_found(values, bounds, sigma=sigma, rounds=rounds)
        if defect is None:
            continue
        stated.append(defect)
        struck = rng.integers(count)
        of_device = lasting[struck] * (1 - defect) * (1 + rng.normal(0, sigma, rounds))
        fleet = values.copy()
        fleet[struck] = np.median(of_device)
        bound = limit
        if count >= MIN_FLEET:
            bound = max(bound, float(rule.walls(fleet, rounds)))
        found += bool((of_device < bound).all())
    if not stated:
        return None, 0.0
    return float(np.mean(stated)), found / len(stated)


@functools.cache
def shipped() -> Thresholds:
    return loader.load(THRESHOLDS)


def _healthy(case: tuple[int, str, int]) -> int:
    return healthy_runs_accused(shipped(), *case)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_statistics")
    parser.add_argument("--fleets", type=int, default=1000)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--plants", type=int, default=1000)
    options = parser.parse_args()
    limits = shipped()
    print(f"Of {options.fleets:,} healthy fleets, those in which anybody is accused\n")
    cases = [(n, name) for n in sorted(options.nodes, reverse=True) for name in FLEETS]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        counts = pool.map(_healthy, [(*case, options.fleets) for case in cases])
        of_case = dict(zip(cases, counts, strict=True))
    rows = [[name, *(str(of_case[n, name]) for n in options.nodes)] for name in FLEETS]
    print(table(["noise", *(f"{n} x {GPUS}" for n in options.nodes)], rows), flush=True)
    nodes = 128
    print(f"\nShare of the slow ones that one criterion names, {nodes} x {GPUS}; known: one GPU,")
    print("by who knows the healthy fleet's median, spread and noise, at the same risk\n")
    rows = [
        [kind.name, f"{slow:.0%}", f"{share_named(kind, nodes, slow, 'GPU', 1000, True):.2f}",
         *(f"{share_named(kind, nodes, slow, group, 1000 if group == 'GPU' else 100):.2f}"
           for group in GROUPS)]
        for kind in kinds(limits) for slow in (0.03, 0.05, 0.08, 0.15)
    ]  # fmt: skip
    print(table(["class", "slower", "known", *GROUPS], rows), flush=True)
    print(f"\nShare of fleets of {nodes} x {GPUS} in which a slow group is said; none: healthy,")
    print("with heavy tails\n")
    rows = [
        [kind.name, f"{slow:.0%}",
         *(f"{share_said(kind, nodes, slow, group, 100):.2f}" for group in SAID)]
        for kind in kinds(limits) for slow in (0.03, 0.05)
    ]  # fmt: skip
    print(table(["class", "slower", *SAID], rows), flush=True)
    print(
        f"\nThe smallest defect that a run states, and how often it is found in {options.plants:,}"
    )
    print("plants; it is stated for 0.95\n")
    rows = []
    for kind in kinds(limits):
        for nodes in (1, 2, 16, 128):
            defect, found = share_found_as_stated(kind, nodes, options.plants)
            stated = "none" if defect is None else f"{defect:.1%}"
            rows.append([kind.name, f"{nodes} x {GPUS}", stated, f"{found:.3f}"])
    print(table(["class", "fleet", "stated", "found"], rows))


if __name__ == "__main__":
    main()
