"""How often a healthy fleet is accused, and which defects are found: the table of docs/scale.md.

    python -m tests.tools.bench_statistics [--fleets 1000] [--nodes 2 16 128 1024]

The fleet rule of the judge (fixtures/verdict/fleet_rule.py) on simulated fleets of 8 GPUs per node:
every class of `spread:` in thresholds.yaml, with as many criteria as it has. A healthy device
differs from its like by at most the class's delta for good; the rest is noise, which each of three
rounds draws anew, as the judge accuses only what is low in all of them. Fixed seeds.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixtures.paths import THRESHOLDS
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.thresholds.spread import Spread
from fixtures.verdict import power
from fixtures.verdict.fleet_rule import MIN_FLEET, walls

Values = NDArray[np.floating[Any]]
GPUS = 8
ROUNDS = 3
SIZES = (2, 16, 128, 1024)
SHARED = ("collective",)
"""Classes whose figure all ranks of a node share: one value per node."""
RECORDED_H200 = {
    "gemm": (1.019, 0.991, 1.009, 0.988), "hbm": (1.0, 0.9877, 1.0005, 1.0002),
}  # fmt: skip
"""Four H200 of a recorded run over their median: the second reads 1.2 % slower than its like."""
BLOCK = 250
"""Fleets that are drawn at once, to bound the memory."""


@dataclass(frozen=True)
class Kind:
    """A class of rates: its spread, and how many criteria it has."""

    name: str
    spread: Spread
    criteria: int

    def values(self, nodes: int) -> int:
        return nodes if self.name in SHARED else nodes * GPUS


def kinds(limits: Thresholds) -> list[Kind]:
    """Return the classes that compare devices, with the criteria of each."""
    count = Counter(
        c.spread for c in limits.criteria.values()
        if c.spread and c.statistic != "spread" and c.per in ("node", "rail")
    )  # fmt: skip
    return [Kind(name, limits.spread[name], n) for name, n in count.items() if name != "p2p"]


# --- healthy fleets: (fleets, values) of what lasts, and noise per round


def normal(rng: np.random.Generator, shape: tuple[int, int], kind: Kind) -> Values:
    """Like devices differ as recorded, and none by more than delta."""
    lasting = rng.normal(0, kind.spread.device_sigma / 2, shape)
    return 1 + np.clip(lasting, -kind.spread.delta, kind.spread.delta)


def bimodal(rng: np.random.Generator, shape: tuple[int, int], kind: Kind) -> Values:
    """Two zones, the cooler one faster by three quarters of delta."""
    zone = np.arange(shape[1]) < shape[1] // 2
    return normal(rng, shape, kind) * np.where(zone, 1.0, 1 - 0.75 * kind.spread.delta)


def bootstrapped(rng: np.random.Generator, shape: tuple[int, int], kind: Kind) -> Values:
    """Devices drawn from four recorded ones."""
    recorded = np.array(RECORDED_H200.get(kind.name, (1.0,)))
    return np.asarray(rng.choice(recorded, shape))


def gaussian_noise(rng: np.random.Generator, shape: tuple[int, int], sigma: float) -> Values:
    return np.asarray(rng.normal(0, sigma, shape))


def heavy_noise(rng: np.random.Generator, shape: tuple[int, int], sigma: float) -> Values:
    """Student's t with three degrees of freedom and the quartiles of a normal distribution."""
    return np.asarray(rng.standard_t(3, shape)) * sigma * 0.6745 / 0.7649


Lasting = Callable[[np.random.Generator, tuple[int, int], Kind], Values]
Noise = Callable[[np.random.Generator, tuple[int, int], float], Values]
FLEETS: Mapping[str, tuple[Lasting, Noise]] = {
    "normal": (normal, gaussian_noise),
    "heavy tails": (normal, heavy_noise),
    "two zones": (bimodal, gaussian_noise),
    "recorded H200": (bootstrapped, gaussian_noise),
}


def accused(
    rng: np.random.Generator, lasting: Values, kind: Kind, noise: Noise, criteria: int
) -> NDArray[np.bool_]:
    """Return which devices of each fleet are accused: below the wall in every round."""
    rounds = [
        lasting * (1 + noise(rng, lasting.shape, kind.spread.run_sigma)) for _ in range(ROUNDS)
    ]
    of_fleet = np.median(np.stack(rounds), axis=0)
    spread = kind.spread
    wall = walls(of_fleet, delta=spread.delta, device_sigma=spread.device_sigma, criteria=criteria)
    return np.asarray(np.max(np.stack(rounds), axis=0) < wall[:, np.newaxis])


def healthy_runs_accused(limits: Thresholds, nodes: int, name: str, fleets: int) -> int:
    """Return how many of so many healthy fleets accuse anybody, by any criterion."""
    make, noise = FLEETS[name]
    rng = np.random.default_rng([nodes, sorted(FLEETS).index(name)])
    total = 0
    for block in range(0, fleets, BLOCK):
        count = min(BLOCK, fleets - block)
        anybody = np.zeros(count, dtype=bool)
        for kind in kinds(limits):
            lasting = make(rng, (count, kind.values(nodes)), kind)
            for _ in range(kind.criteria):
                found = accused(rng, lasting, kind, noise, limits.compared_criteria)
                anybody |= found.any(axis=1)
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


def share_named(
    limits: Thresholds, kind: Kind, nodes: int, slow: float, group: str, fleets: int
) -> float:
    """Return the share of slow devices that one criterion accuses in fleets with a slow group."""
    rng = np.random.default_rng([nodes, round(1000 * slow), sorted(GROUPS).index(group)])
    values = kind.values(nodes)
    lasting = normal(rng, (fleets, values), kind)
    bad = max(1, GROUPS[group](values, values // nodes))
    lasting[:, :bad] *= 1 - slow
    found = accused(rng, lasting, kind, gaussian_noise, limits.compared_criteria)
    return float(found[:, :bad].mean())


# --- the power that a run states


def share_found_as_stated(
    limits: Thresholds, kind: Kind, nodes: int, plants: int, *, limit: float = 0.8, seed: int = 1
) -> tuple[float | None, float]:
    """Return the smallest defect that runs state, on average, and how often it is found.

    Every plant has a fleet of its own, whose run states the power from one round each; then one
    device gets slower by just as much and is measured in new rounds, with its fleet. `limit`:
    share of the usual value below which a device fails whatever its like do.
    """
    rng = np.random.default_rng([seed, nodes, sum(kind.name.encode())])
    spread, count, criteria = kind.spread, kind.values(nodes), limits.compared_criteria
    sigma = spread.run_sigma
    stated, found = [], 0
    for _ in range(plants):
        lasting = 1 + rng.normal(0, spread.device_sigma, count)
        values = lasting * (1 + rng.normal(0, sigma, count))
        bounds = np.full(count, limit)
        if count >= MIN_FLEET:
            bounds = np.maximum(bounds, power.fleet_bounds(
                values, delta=spread.delta, device_sigma=spread.device_sigma, criteria=criteria
            ))  # fmt: skip
        defect = power.smallest_found(values, bounds, sigma=sigma, rounds=ROUNDS)
        if defect is None:
            continue
        stated.append(defect)
        struck = rng.integers(count)
        rounds = values.copy()
        noise = 1 + rng.normal(0, sigma, ROUNDS)
        of_device = lasting[struck] * (1 - defect) * noise
        rounds[struck] = np.median(of_device)
        bound = limit
        if count >= MIN_FLEET:
            bound = max(bound, float(walls(
                rounds, delta=spread.delta, device_sigma=spread.device_sigma, criteria=criteria
            )))  # fmt: skip
        found += bool((of_device < bound).all())
    if not stated:
        return None, 0.0
    return float(np.mean(stated)), found / len(stated)


@functools.cache
def shipped() -> Thresholds:
    return loader.load(THRESHOLDS)


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
    rows = [
        [name, *(str(healthy_runs_accused(limits, n, name, options.fleets)) for n in options.nodes)]
        for name in FLEETS
    ]
    print(table(["noise", *(f"{n} x {GPUS}" for n in options.nodes)], rows))
    nodes = 128
    print(f"\nShare of the slow ones that one criterion names, {nodes} x {GPUS}\n")
    rows = [
        [kind.name, f"{slow:.0%}",
         *(f"{share_named(limits, kind, nodes, slow, group, 100):.2f}" for group in GROUPS)]
        for kind in kinds(limits) for slow in (0.03, 0.05, 0.08, 0.15)
    ]  # fmt: skip
    print(table(["class", "slower", *GROUPS], rows))
    print(
        f"\nThe smallest defect that a run states, and how often it is found in {options.plants:,}"
    )
    print("plants; it is stated for 0.95\n")
    rows = []
    for kind in kinds(limits):
        for nodes in (1, 2, 16, 128):
            defect, found = share_found_as_stated(limits, kind, nodes, options.plants)
            stated = "none" if defect is None else f"{defect:.1%}"
            rows.append([kind.name, f"{nodes} x {GPUS}", stated, f"{found:.3f}"])
    print(table(["class", "fleet", "stated", "found"], rows))


if __name__ == "__main__":
    main()
