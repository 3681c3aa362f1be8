"""What is planted into simulated fabrics (tests/tools/clos.py), and which finding is right."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fixtures.permutations.finding import Defect
from tests.tools.clos import Defects, Shape

MINUTES = 10
"""Of a slice."""


@dataclass(frozen=True)
class Planted:
    name: str
    slices: int
    """After which a run ends, found or not."""
    plant: Callable[[Shape, np.random.Generator], tuple[Defects, Callable[[Defect], bool]]]
    """Returns the defects, and whether a finding is the right one."""
    begins: bool = False
    """Whether it begins later than the run: minutes are not told."""


def some_leaf(shape: Shape, dice: np.random.Generator) -> int:
    return int(dice.integers(shape.nodes // shape.leaf_nodes * shape.rails))


def uplink(
    left: float, shape: Shape, dice: np.random.Generator
) -> tuple[Defects, Callable[[Defect], bool]]:
    leaf, spine = some_leaf(shape, dice), int(dice.integers(shape.uplinks))
    return Defects(uplink={(leaf, spine): left}), lambda d: d.leaf == leaf and d.other_leaf is None


def slow_port(
    left: float, seconds: float, slices: int, shape: Shape, dice: np.random.Generator
) -> tuple[Defects, Callable[[Defect], bool]]:
    port, way = int(dice.integers(shape.nodes * shape.rails)), int(dice.integers(3))
    whole = slices * MINUTES * 60
    begin = float(dice.uniform(0, whole - seconds)) if seconds < whole else 0.0
    node, rail = divmod(port, shape.rails)
    return (Defects(port=[(way, port, left, begin, begin + seconds)]),
            lambda d: (d.node, d.rail) == (node, rail))  # fmt: skip


def flapping(shape: Shape, dice: np.random.Generator) -> tuple[Defects, Callable[[Defect], bool]]:
    port = int(dice.integers(shape.nodes * shape.rails))
    node, rail = divmod(port, shape.rails)
    return Defects(flapping=[port]), lambda d: (d.node, d.rail) == (node, rail)


def slow_pair(shape: Shape, dice: np.random.Generator) -> tuple[Defects, Callable[[Defect], bool]]:
    groups = shape.nodes // shape.leaf_nodes
    a, b = dice.choice(groups, 2, replace=False) * shape.rails + int(dice.integers(shape.rails))
    return (Defects(pair={(int(a), int(b)): 0.7}),
            lambda d: {d.leaf, d.other_leaf} == {int(a), int(b)})  # fmt: skip


PLANTED = (
    Planted("dead uplink", 12, functools.partial(uplink, 0.0)),
    Planted("half-rate uplink", 12, functools.partial(uplink, 0.5)),
    Planted("port -10 % for 10 min", 3, functools.partial(slow_port, 0.9, 600.0, 3), begins=True),
    Planted("port -5 % for good", 3, functools.partial(slow_port, 0.95, math.inf, 3)),
    Planted("flapping port", 6, flapping),
    Planted("pair of leaves -30 %", 6, slow_pair),
)


def not_to_be_named(shape: Shape, dice: np.random.Generator, kind: str) -> Defects:
    """Return what accuses none of the ports and leaves that were measured."""
    if kind == "a node dies":
        return Defects(dead_nodes={int(dice.integers(shape.nodes)): float(dice.uniform(300, 900))})
    if kind == "a rail is down":
        rail = int(dice.integers(shape.rails))
        return Defects(absent=frozenset(range(rail, shape.nodes * shape.rails, shape.rails)))
    return Defects()
