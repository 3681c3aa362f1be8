"""What the rule for life counters accuses in healthy fleets, and what it finds.

python -m tests.tools.bench_life             300 fleets of each shape and rate
python -m tests.tools.bench_life --fleets N

A fleet is drawn from the law that fixtures/statistics/life.py states: rates, lives of nodes, parts
that differ by a gamma number, 2 % of them replaced later. For each shape and rate: how many healthy
fleets accuse anyone by one of the counters that share the risk, and how often a part is found that
counts 20 times as much as its siblings, from 100 errors on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fixtures.statistics.life import SHAPE, Part, accused

Shape = tuple[int, int, int]
"""Nodes, devices of a node, parts of a device."""
Counts = NDArray[np.integer[Any]]
Lives = NDArray[np.floating[Any]]
SHAPES: tuple[Shape, ...] = (
    (2, 8, 1), (2, 4, 1), (2, 8, 18), (8, 4, 2), (16, 8, 1), (16, 8, 18), (128, 8, 1), (128, 8, 18),
    (1024, 8, 1),
)  # fmt: skip
RATES = (0.3, 5.0, 100.0, 3000.0)
"""Errors of a part in the life of a usual node."""
SHARE = 1 / 21
"""Of the risk, which the counters of GPUs and of ports share."""
WORSE, LEAST = 20, 100
"""A planted part counts so many times what its siblings do, and at least so many errors."""
MOST_PARTS = 3_000_000
"""That are drawn for a cell."""


def healthy(dice: Generator, shape: Shape, rate: float) -> tuple[Counts, Lives]:
    """Return the counts of a healthy fleet, by node, device and part, and its nodes' lives."""
    nodes, devices, _ = shape
    lives = np.exp(dice.normal(0, 1, (nodes, 1, 1)))
    own = dice.gamma(SHAPE, 1 / SHAPE, shape)
    replaced = dice.random((nodes, devices, 1)) < 0.02
    own = own * np.where(replaced, dice.random((nodes, devices, 1)), 1)
    return dice.poisson(rate * lives * own), lives[:, 0, 0]


def parts_of(counts: Counts, lives: Lives | None = None) -> list[Part]:
    """Return a fleet as the rule takes it; `lives` where the hours are known."""
    return [
        Part(
            f"n{n}", f"GPU {d}", f"link {p}", int(count),
            None if lives is None else 1000 * float(lives[n]),
        )
        for (n, d, p), count in np.ndenumerate(counts)
    ]  # fmt: skip


def with_worse(dice: Generator, counts: Counts) -> tuple[Counts, tuple[str, str, str]]:
    """Return a fleet with one part that is WORSE, and which it is."""
    at = tuple(int(dice.integers(n)) for n in counts.shape)
    usual = max(LEAST / WORSE, float(np.delete(counts[at[0]], at[1], axis=0).mean()))
    changed = counts.copy()
    changed[at] = max(LEAST, int(dice.poisson(WORSE * usual)))
    return changed, (f"n{at[0]}", f"GPU {at[1]}", f"link {at[2]}")


def cell(
    dice: Generator, shape: Shape, rate: float, fleets: int, *, timed: bool
) -> tuple[int, int, int]:
    """Return of how many fleets how many accuse anyone, and in how many the planted is found."""
    number = max(10, min(fleets, MOST_PARTS // int(np.prod(shape))))
    wrong = found = 0
    for _ in range(number):
        counts, lives = healthy(dice, shape, rate)
        hours = lives if timed else None
        wrong += bool(accused(parts_of(counts, hours), share=SHARE))
        planted, which = with_worse(dice, counts)
        names = [(a.part.node, a.part.device, a.part.name)
                 for a in accused(parts_of(planted, hours), share=SHARE)]  # fmt: skip
        found += which in names
    return number, wrong, found


def together(dice: Generator, fleets: int) -> int:
    """Return how many of healthy fleets of 2 to 1,024 nodes accuse anyone by any counter.

    Each fleet has the links of its GPUs, four counters of GPUs and sixteen of ports, each with a
    rate of its own.
    """
    wrong = 0
    for _ in range(fleets):
        nodes = int(2 ** dice.uniform(1, 10))
        of_links, of_ports = 0.3, 0.3 / 16
        shares = [((nodes, 8, 18), of_links), *[((nodes, 8, 1), 0.1)] * 4]
        shares += [((nodes, 8, 1), of_ports)] * 16
        for shape, share in shares:
            counts, lives = healthy(dice, shape, 10 ** dice.uniform(-2, 3))
            if accused(parts_of(counts, lives if dice.random() < 0.8 else None), share=share):
                wrong += 1
                break
    return wrong


def main(arguments: Iterable[str] | None = None) -> int:
    """Print a line for each shape and rate."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_life", description=__doc__)
    parser.add_argument("--fleets", type=int, default=300)
    parser.add_argument("--together", type=int, metavar="N", help="N fleets, all counters together")
    options = parser.parse_args(None if arguments is None else [*arguments])
    dice = np.random.default_rng(2026)
    if options.together:
        print(f"{together(dice, options.together)} of {options.together} healthy fleets accused")
        return 0
    for timed in (True, False):
        for shape in SHAPES:
            for rate in RATES:
                number, wrong, found = cell(dice, shape, rate, options.fleets, timed=timed)
                print(
                    f"hours {'known' if timed else 'unknown':<8} {' x '.join(map(str, shape)):<13} "
                    f"{rate:>6g} errors: {wrong} of {number} accused by one counter, {found} found",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
