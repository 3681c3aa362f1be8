"""Small fabrics in which something is planted (tests/tools/clos.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fixtures.permutations.evidence import Evidence, gather
from fixtures.permutations.observations import Observations
from tests.tools.clos import Defects, Fabric, Shape, starts, targets_of

RISK = 0.003
SMALL = Shape(nodes=32, adaptive=True, rails=2, leaf_nodes=8)
"""Eight leaves: four groups of eight nodes with two rails."""
ROUNDS = 400


def slices(
    defects: Defects | None = None, count: int = 1, shape: Shape = SMALL, seed: int = 5
) -> list[Observations]:
    """Return the slices of a run; a node that died is left out of the next ones."""
    defects = defects or Defects()
    fabric = Fabric(shape, np.random.default_rng(seed), defects)
    found = []
    for number in range(count):
        start = starts(number, ROUNDS)
        gone = set(defects.absent) | {
            node * shape.rails + rail
            for node, second in defects.dead_nodes.items() if second < start[0]
            for rail in range(shape.rails)
        }  # fmt: skip
        alive = frozenset(range(shape.nodes * shape.rails)) - gone
        found.append(fabric.slice(targets_of(shape, 3, ROUNDS * number, ROUNDS, alive), start))
    return found


def evidence(
    defects: Defects | None = None, count: int = 1, shape: Shape = SMALL, seed: int = 5
) -> Sequence[Evidence]:
    return [gather(one) for one in slices(defects, count, shape, seed)]
