"""A simulated fabric for the search for culprits: nodes behind leaf switches, uplinks, a spine.

What is measured fails where a flow runs over a bad part. A ring has one flow from each node to the
next; all paths have, one after another, those from node i to node i + s. An uplink and the spine
are too slow when more flows run through them at the same time than they carry; jobs of one round
share them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fixtures.localization import group_testing
from fixtures.localization.culprits import Finding, Group, Rails
from fixtures.localization.measuring import Measurement, Stopped

Flow = tuple[str, str]
Answers = list[Rails | None]
MOST_ROUNDS = 150
"""Of one search, as in a run (backends/fault_localization.py)."""


def names(count: int) -> Group:
    return tuple(f"n{k:04}" for k in range(count))


def in_leaves(nodes: Sequence[str], size: int) -> dict[str, str]:
    """Return node -> leaf, of leaves with so many neighbours each."""
    return {n: f"leaf{k // size}" for k, n in enumerate(nodes)}


def in_uneven_leaves(nodes: Sequence[str], size: int, seed: int) -> dict[str, str]:
    """Return node -> leaf, of leaves with half to one and a half times so many neighbours."""
    draw = random.Random(seed)
    leaves: dict[str, str] = {}
    while len(leaves) < len(nodes):
        members = nodes[len(leaves) :][: draw.randint(size // 2, size + size // 2)]
        number = len(set(leaves.values()))
        leaves |= dict.fromkeys(members, f"leaf{number}")
    return leaves


@dataclass
class Fabric:
    """What is bad on it; counts what is measured."""

    nodes: Group
    rails: int = 1
    leaves: Mapping[str, str] = field(default_factory=dict)
    bad_nics: set[tuple[str, int]] = field(default_factory=set)
    bad_at_times: dict[str, float] = field(default_factory=dict)
    """Node -> share of its measurements in which it is slow."""
    bad_paths: set[frozenset[str]] = field(default_factory=set)
    bad_rails: set[int] = field(default_factory=set)
    bad_leaves: set[str] = field(default_factory=set)
    """Leaves of which a single flow through the uplink is slow already."""
    uplinks: dict[str, int] = field(default_factory=dict)
    """Leaf -> flows that its uplink carries each way; as many as it has nodes unless given."""
    spine: int = 1 << 30
    """Flows between leaves that the spine carries."""
    noise: float = 0.0
    """Probability that an answer is wrong, for each rail."""
    unanswered: float = 0.0
    """Probability that a group is not measured."""
    silent: set[str] = field(default_factory=set)
    """Nodes of which no group is ever measured."""
    random: random.Random = field(default_factory=lambda: random.Random(7))
    jobs: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        self._size = Counter(self.leaves.values())

    def break_node(self, node: str) -> None:
        self.bad_nics |= {(node, r) for r in range(self.rails)}

    def oversubscribe(self, ratio: int) -> None:
        """Let every uplink carry one of so many flows only: the spine has too few links."""
        self.uplinks = {leaf: max(1, size // ratio) for leaf, size in self._size.items()}

    def measure(self, group: Group) -> Rails:
        """Return the rails on which the ring of a group fails."""
        (rails,) = self.answer([Measurement(group)])
        assert rails is not None, group
        return rails

    def answer(self, measurements: Sequence[Measurement]) -> Answers:
        """Return the failed rails of each measurement of one round, None where not measured."""
        loads = [self._loads(m) for m in measurements]
        everything = Counter[str]()
        for load in loads:
            everything.update(load)
        crowded = {k for k, flows in everything.items() if flows > self._capacity(k)}
        return [
            self._answer(m, bool(crowded & load.keys()))
            for m, load in zip(measurements, loads, strict=True)
        ]

    def _answer(self, m: Measurement, crowded: bool) -> Rails | None:
        members = set(m.nodes)
        assert len(m.nodes) == len(members) > 1, m
        if members & self.silent or (self.unanswered and self.random.random() < self.unanswered):
            return None
        bad = {r for n, r in self.bad_nics if n in members} | self.bad_rails
        at_times = [p for n, p in self.bad_at_times.items() if n in members]
        behind = {self.leaves[n] for n in m.nodes} if self.leaves else set()
        slow = crowded or (len(behind) > 1 and bool(behind & self.bad_leaves))
        slow = slow or any(self._runs(m, path) for path in self.bad_paths)
        slow = slow or any(self.random.random() < p for p in at_times)
        if slow:
            bad = set(range(self.rails))
        return frozenset(r for r in range(self.rails) if (r in bad) != self._is_wrong())

    def _runs(self, m: Measurement, path: frozenset[str]) -> bool:
        """Whether a flow runs between both ends."""
        if not path <= set(m.nodes):
            return False
        one, two = (m.nodes.index(n) for n in path)
        return m.every_path or abs(one - two) in (1, len(m.nodes) - 1)

    def _loads(self, m: Measurement) -> Counter[str]:
        """Return the most flows at the same time: out of and into each leaf, and in the spine."""
        most = Counter[str]()
        if not (self.leaves and (self.uplinks or self.spine < len(m.nodes))):
            return most
        for flows in _steps(m):
            now = Counter[str]()
            for source, target in flows:
                a, b = self.leaves[source], self.leaves[target]
                if a != b:
                    now.update((f"{a} out", f"{b} in", "spine"))
            most |= now
        return most

    def _capacity(self, part: str) -> int:
        if part == "spine":
            return self.spine
        leaf = part.split()[0]
        return self.uplinks.get(leaf, self._size[leaf])

    def _is_wrong(self) -> bool:
        return self.random.random() < self.noise

    def pairs(self) -> dict[Group, bool]:
        """Return the first pass: neighbours as disjoint pairs, and whether each passed."""
        pairs = list(zip(self.nodes[::2], self.nodes[1::2], strict=False))
        answers = self.answer([Measurement(pair) for pair in pairs])
        return {
            pair: not rails for pair, rails in zip(pairs, answers, strict=True) if rails is not None
        }

    def search(
        self,
        leaves: Mapping[str, str] | None = None,
        measured_pairs: Mapping[Group, bool] | None = None,
    ) -> Finding:
        """Search for what is bad, and count jobs and rounds."""
        steps = group_testing.search(
            self.nodes, rails=self.rails, leaves=leaves, measured_pairs=measured_pairs
        )
        answers: Answers | None = None
        while True:
            try:
                if self.rounds == MOST_ROUNDS:
                    steps.throw(Stopped())
                measurements = next(steps) if answers is None else steps.send(answers)
            except StopIteration as end:
                found: Finding = end.value
                return found
            assert measurements
            taken = [n for m in measurements for n in m.nodes]
            assert len(taken) == len(set(taken)), f"jobs of one round share a node: {measurements}"
            self.rounds += 1
            self.jobs += len(measurements)
            answers = self.answer(measurements)


def _steps(m: Measurement) -> Iterator[list[Flow]]:
    """Yield the flows that run at the same time, one step after another.

    Of all paths those steps that load an uplink most: from the size of a leaf on, in powers of two.
    """
    count = len(m.nodes)
    steps = [1]
    while m.every_path and steps[-1] * 2 < count:
        steps.append(steps[-1] * 2)
    for step in steps:
        yield [(n, m.nodes[(k + step) % count]) for k, n in enumerate(m.nodes)]
