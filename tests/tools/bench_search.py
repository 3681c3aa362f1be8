"""What a search for culprits costs and finds, by defect and size: the table of docs/scale.md.

    python -m tests.tools.bench_search [--seeds 100] [--nodes 32 232 1024]

Simulated fabrics (tests/tools/fabric.py) with leaves of 16 nodes, of 8 where there are 32 nodes.
Fixed seeds. A place that is said as a whole (a leaf, an uplink, the spine, a path) accuses no node.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fixtures.localization.culprits import Culprit, Finding
from fixtures.records.located import OUT_OF_SERVICE
from tests.tools.fabric import Fabric, in_leaves, names

SIZES = (32, 232, 1024)
SEEDS = 100
Expected = set[tuple[str, frozenset[str]]]
"""What has to be said: kind, and the nodes or the leaf of it."""


@dataclass(frozen=True)
class Case:
    """A defect, planted by a function that returns what has to be named."""

    name: str
    plant: Callable[[Fabric], Expected]
    noise: float = 0.0
    knows_pairs: bool = True
    """Whether the pairs of neighbours were measured before, as in a run."""
    knows_leaves: bool = True


def nodes(count: int) -> Callable[[Fabric], Expected]:
    def plant(fabric: Fabric) -> Expected:
        bad = fabric.random.sample(fabric.nodes, min(count, len(fabric.nodes) // 4))
        for name in bad:
            fabric.break_node(name)
        return {("node", frozenset([name])) for name in bad}

    return plant


def at_times(fabric: Fabric) -> Expected:
    name = fabric.random.choice(fabric.nodes)
    fabric.bad_at_times[name] = 0.3
    return {("node", frozenset([name]))}


def path(fabric: Fabric) -> Expected:
    ends = frozenset(fabric.random.sample(fabric.nodes, 2))
    fabric.bad_paths.add(ends)
    return {("link", ends)}


def ports_of_a_leaf(fabric: Fabric) -> Expected:
    leaf = fabric.random.choice(sorted(set(fabric.leaves.values())))
    members = [name for name in fabric.nodes if fabric.leaves[name] == leaf]
    bad = members[: (len(members) + 1) // 2]
    for name in bad:
        fabric.break_node(name)
    return {("leaf", frozenset([leaf]))}


def uplink(fabric: Fabric) -> Expected:
    leaf = fabric.random.choice(sorted(set(fabric.leaves.values()))[:-1])
    fabric.uplinks[leaf] = sum(value == leaf for value in fabric.leaves.values()) // 2
    return {("uplink", frozenset([leaf]))}


def spine(fabric: Fabric) -> Expected:
    fabric.oversubscribe(4)
    return {("spine", frozenset())}


def nothing(fabric: Fabric) -> Expected:
    return set()


DEFECTS: tuple[tuple[str, Callable[[Fabric], Expected]], ...] = (
    ("1 node", nodes(1)), ("10 nodes", nodes(10)), ("100 nodes", nodes(100)),
    ("node at times, 30 %", at_times), ("path of two nodes", path),
    ("half of a leaf", ports_of_a_leaf), ("leaf uplink at half", uplink), ("spine 4:1", spine),
    ("nothing", nothing),
)  # fmt: skip
NOISY = ("1 node", "10 nodes", "100 nodes", "nothing")
WRONG = 0.05


def cases() -> list[Case]:
    """Return the rows of the table."""
    rows = [
        Case(name, plant, knows_pairs=known) for name, plant in DEFECTS for known in (True, False)
    ]
    rows += [
        Case(name, plant, noise=WRONG, knows_pairs=known)
        for name, plant in DEFECTS if name in NOISY for known in (True, False)
    ]  # fmt: skip
    return rows


@dataclass
class Result:
    """Sums over the seeds of a case at one size."""

    searches: int = 0
    planted: int = 0
    named: int = 0
    innocents: int = 0
    """Nodes that would be taken out of service, and were not bad."""
    accusing: int = 0
    """Searches with an innocent."""
    misplaced: int = 0
    """Searches that said a place where nothing is."""
    partial: int = 0
    jobs: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(self, fabric: Fabric, expected: Expected, found: Finding) -> None:
        said = {
            (c.kind, frozenset([c.place] if c.place else () if c.kind == "spine" else c.nodes))
            for c in found.culprits
        }
        bad = {name for name, _ in fabric.bad_nics} | fabric.bad_at_times.keys()
        accused = {n for c in found.culprits if c.kind in OUT_OF_SERVICE for n in c.nodes}
        self.searches += 1
        self.planted += len(expected)
        for c in found.culprits:  # the nodes of a leaf are named with it
            said |= {("node", frozenset([n])) for n in c.nodes if c.kind in ("leaf", "switch")}
        self.named += len(expected & said)
        self.innocents += len(accused - bad)
        self.accusing += bool(accused - bad)
        places = {c for c in found.culprits if c.kind not in OUT_OF_SERVICE}
        self.misplaced += any(self._is_wrong(c, expected, bad) for c in places)
        self.partial += not found.explained
        self.jobs.append(fabric.jobs)
        self.rounds.append(fabric.rounds)

    @staticmethod
    def _is_wrong(c: Culprit, expected: Expected, bad: Collection[str]) -> bool:
        """Whether a place is none of those planted, and its nodes are not bad either."""
        at = frozenset([c.place] if c.place else () if c.kind == "spine" else c.nodes)
        return (c.kind, at) not in expected and not (c.nodes and set(c.nodes) <= set(bad))

    @property
    def cells(self) -> str:
        """Jobs and rounds (median), the worst round count, named, searches with innocents."""
        jobs, rounds = sorted(self.jobs), sorted(self.rounds)
        middle = len(jobs) // 2
        share = f"{self.named / self.planted:.3g}" if self.planted else "-"
        text = f"{jobs[middle]}, {rounds[middle]} ({rounds[-1]}); {share}; {self.accusing}"
        if self.misplaced:
            text += f" + {self.misplaced} places"
        return text


def simulate(case: Case, count: int, seeds: Sequence[int]) -> Result:
    """Search the same defect on as many fabrics as there are seeds."""
    result = Result()
    everyone = names(count)
    leaves = in_leaves(everyone, 8 if count <= 32 else 16)
    for seed in seeds:
        fabric = Fabric(everyone, leaves=leaves, noise=case.noise, random=random.Random(seed))
        expected = case.plant(fabric)
        pairs = fabric.pairs() if case.knows_pairs else None
        found = fabric.search(leaves if case.knows_leaves else None, measured_pairs=pairs)
        result.add(fabric, expected, found)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--nodes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    arguments = parser.parse_args()
    print("| defect | wrong answers | pairs known | " +
          " | ".join(f"{n} nodes" for n in arguments.nodes) + " |")  # fmt: skip
    print("|---" * (3 + len(arguments.nodes)) + "|")
    for case in cases():
        if arguments.only not in case.name:
            continue
        results = [simulate(case, n, range(arguments.seeds)) for n in arguments.nodes]
        cells = " | ".join(result.cells for result in results)
        known = "yes" if case.knows_pairs else "no"
        print(f"| {case.name} | {case.noise:.0%} | {known} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
