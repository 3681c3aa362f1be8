"""What a search for culprits costs and finds: the tables of docs/scale.md.

    python -m tests.tools.bench_search [--nodes 32 232] [--seeds 20] [--jobs 2] [--only TEXT]

Simulated fabrics (tests/tools/simulated_fabric.py) with leaves of 16 nodes, of 8 up to 32 nodes.
Each cell is a defect x leaves known to the search or not x leaves of equal size or not x share of
wrong answers x share of jobs without an answer. At 32 and 232 nodes every cell is run, at other
sizes a design in which each pair of two factors' values occurs. Fixed seeds; with even ones the
pairs of neighbours were measured before the search, as in a run. A place (a leaf, an uplink, the
spine, a path) accuses no node. A search ends after as many rounds as in a run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from multiprocessing import Pool

from fixtures.localization.culprits import Culprit, Finding
from fixtures.records.located import OUT_OF_SERVICE
from tests.tools.simulated_fabric import Fabric, in_leaves, in_uneven_leaves, names

FULL_SIZES = (32, 232)
PAIRWISE_SIZES = (64, 128, 500, 1024)
SEEDS = 20
PAIRWISE_SEEDS = 5
Expected = set[tuple[str, frozenset[str]]]
"""What has to be found: kind, and the nodes or the leaf of it."""
Plant = Callable[[Fabric], Expected]


# --- defects


def nodes(count: int) -> Plant:
    def plant(fabric: Fabric) -> Expected:
        bad = fabric.random.sample(fabric.nodes, min(count, len(fabric.nodes) // 4))
        for name in bad:
            fabric.break_node(name)
        return {("node", frozenset([name])) for name in bad}

    return plant


def nic(fabric: Fabric) -> Expected:
    name = fabric.random.choice(fabric.nodes)
    fabric.rails = 4
    fabric.bad_nics.add((name, 2))
    return {("nic", frozenset([name]))}


def at_times(fabric: Fabric) -> Expected:
    name = fabric.random.choice(fabric.nodes)
    fabric.bad_at_times[name] = 0.3
    return {("node", frozenset([name]))}


def path(fabric: Fabric) -> Expected:
    ends = frozenset(fabric.random.sample(fabric.nodes, 2))
    fabric.bad_paths.add(ends)
    return {("link", ends)}


def members_of(fabric: Fabric, leaf: str) -> list[str]:
    return [name for name in fabric.nodes if fabric.leaves[name] == leaf]


def a_leaf(fabric: Fabric) -> str:
    """Return one of at least four nodes: half of it is a place, not a single node."""
    sizes = Counter(fabric.leaves.values())
    return fabric.random.choice(sorted(leaf for leaf, size in sizes.items() if size >= 4))


def ports_of_a_leaf(share: float) -> Plant:
    def plant(fabric: Fabric) -> Expected:
        leaf = a_leaf(fabric)
        members = members_of(fabric, leaf)
        bad = members[: max(3, math.ceil(len(members) * share))]
        for name in bad:
            fabric.break_node(name)
        return {("leaf", frozenset([leaf])), *(("node", frozenset([name])) for name in bad)}

    return plant


def uplink(fabric: Fabric) -> Expected:
    """An uplink that carries half of the flows of its good nodes: bad ones are not measured."""
    leaf = a_leaf(fabric)
    bad = {name for name, _ in fabric.bad_nics}
    fabric.uplinks[leaf] = max(1, len(set(members_of(fabric, leaf)) - bad) // 2)
    return {("uplink", frozenset([leaf]))}


def every_crossing(fabric: Fabric) -> Expected:
    fabric.bad_leaves |= set(fabric.leaves.values())
    return {("spine", frozenset())}


def spine(ratio: int) -> Plant:
    def plant(fabric: Fabric) -> Expected:
        fabric.oversubscribe(ratio)
        return {("spine", frozenset())}

    return plant


def together(*plants: Plant) -> Plant:
    def plant(fabric: Fabric) -> Expected:
        return set[tuple[str, frozenset[str]]]().union(*(p(fabric) for p in plants))

    return plant


def nothing(fabric: Fabric) -> Expected:
    return set()


DEFECTS: dict[str, Plant] = {
    "nothing": nothing,
    "1 node": nodes(1),
    "10 nodes": nodes(10),
    "100 nodes": nodes(100),
    "NIC": nic,
    "node at times, 30 %": at_times,
    "path of two nodes": path,
    "half of a leaf": ports_of_a_leaf(0.5),
    "all of a leaf": ports_of_a_leaf(1),
    "leaf uplink at half": uplink,
    "spine 2:1": spine(2),
    "spine 4:1": spine(4),
    "each crossing flow slow": every_crossing,
    "node, node at times, path": together(nodes(1), at_times, path),
    "10 nodes, uplink at half": together(nodes(10), uplink),
    "node, path": together(nodes(1), path),
}
LEAVES_ONLY = ("leaf", "uplink")
"""What has a name only where Slurm names the leaves."""


# --- cells


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell of the tables."""

    defect: str
    knows_leaves: bool = True
    even: bool = True
    wrong: float = 0.0
    unanswered: float = 0.0


FACTORS: tuple[tuple[str | bool | float, ...], ...] = (
    tuple(DEFECTS), (True, False), (True, False), (0.0, 0.005, 0.01, 0.02, 0.05),
    (0.0, 0.002, 0.01, 0.05),
)  # fmt: skip


def every_case() -> list[Case]:
    return [_case(levels) for levels in itertools.product(*FACTORS)]


def pairwise_cases() -> list[Case]:
    """Return cells in which each two values of different factors meet (greedy, of every cell)."""
    rest = list(itertools.product(*FACTORS))
    random.Random(0).shuffle(rest)
    missing = {pair for levels in rest for pair in _pairs(levels)}
    found = []
    while missing:
        best = max(rest, key=lambda levels: len(missing & set(_pairs(levels))))
        missing -= set(_pairs(best))
        found.append(_case(best))
    return found


def _pairs(levels: Sequence[object]) -> Iterator[object]:
    return itertools.combinations(enumerate(levels), 2)


def _case(levels: Sequence[object]) -> Case:
    names_of = ("defect", "knows_leaves", "even", "wrong", "unanswered")
    return Case(**dict(zip(names_of, levels, strict=True)))  # type: ignore[arg-type]


# --- results


@dataclass
class Result:
    """Sums over the seeds of one or more cells."""

    searches: int = 0
    planted: int = 0
    named: int = 0
    places: int = 0
    """Of the planted those that are paths, leaves, uplinks or the spine."""
    places_named: int = 0
    innocents: int = 0
    """Nodes that would be taken out of service, and were not bad."""
    accusing: int = 0
    """Searches with an innocent."""
    misplaced: int = 0
    """Searches that reported a place where nothing is."""
    partial: int = 0
    """Searches that did not explain everything."""
    jobs: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(self, fabric: Fabric, expected: Expected, found: Finding) -> None:
        reported = {
            (c.kind, frozenset([c.place] if c.place else () if c.kind == "spine" else c.nodes))
            for c in found.culprits
        }
        bad = {name for name, _ in fabric.bad_nics} | fabric.bad_at_times.keys()
        accused = {n for c in found.culprits if c.kind in OUT_OF_SERVICE for n in c.nodes}
        self.searches += 1
        self.planted += len(expected)
        for c in found.culprits:  # the nodes of a leaf are named with it
            if c.kind in ("leaf", "switch"):
                reported |= {("node", frozenset([n])) for n in c.nodes}
        self.named += len(expected & reported)
        places_of = {e for e in expected if e[0] not in OUT_OF_SERVICE}
        self.places += len(places_of)
        self.places_named += len(places_of & reported)
        self.innocents += len(accused - bad)
        self.accusing += bool(accused - bad)
        places = {c for c in found.culprits if c.kind not in OUT_OF_SERVICE}
        self.misplaced += any(self._is_wrong(c, expected, bad) for c in places)
        self.partial += not found.explained
        self.jobs.append(fabric.jobs)
        self.rounds.append(fabric.rounds)

    def __add__(self, other: Result) -> Result:
        return Result(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @staticmethod
    def _is_wrong(c: Culprit, expected: Expected, bad: Collection[str]) -> bool:
        """Whether a place is none of those planted, and its nodes are not bad either."""
        at = frozenset([c.place] if c.place else () if c.kind == "spine" else c.nodes)
        return (c.kind, at) not in expected and not (c.nodes and set(c.nodes) <= set(bad))

    @property
    def share(self) -> float:
        return self.named / self.planted if self.planted else 1.0

    @property
    def cell(self) -> str:
        """Rounds (median, worst), share named, searches with innocents, with wrong places."""
        rounds = sorted(self.rounds)
        named = f"{self.share:.3g}" if self.planted else "-"
        text = f"{rounds[len(rounds) // 2]} ({rounds[-1]}); {named}; {self.accusing}"
        return text + (f" + {self.misplaced} places" if self.misplaced else "")


def simulate(case: Case, count: int, seeds: Iterable[int]) -> Result:
    """Search the same defect on as many fabrics as there are seeds."""
    result = Result()
    for seed in seeds:
        fabric = fabric_of(case, count, seed)
        expected = _nameable(DEFECTS[case.defect](fabric), case.knows_leaves)
        pairs = fabric.pairs() if seed % 2 == 0 else None
        found = fabric.search(fabric.leaves if case.knows_leaves else None, measured_pairs=pairs)
        result.add(fabric, expected, found)
    return result


def fabric_of(case: Case, count: int, seed: int) -> Fabric:
    """Return the fabric of a cell without its defect."""
    everyone = names(count)
    size = 8 if count <= 32 else 16
    leaves = in_leaves(everyone, size) if case.even else in_uneven_leaves(everyone, size, seed)
    return Fabric(
        everyone, leaves=leaves, noise=case.wrong, unanswered=case.unanswered,
        random=random.Random(seed),
    )  # fmt: skip


def _nameable(expected: Expected, knows_leaves: bool) -> Expected:
    """Return what can be named: without leaves an uplink is what joins the nodes."""
    places = {kind for kind, _ in expected} & set(LEAVES_ONLY)
    if knows_leaves:  # a leaf is named with its nodes
        return {e for e in expected if "leaf" not in places or e[0] != "node"}
    named = {e for e in expected if e[0] not in LEAVES_ONLY}
    return named | ({("spine", frozenset())} if "uplink" in places else set())


# --- tables


def _task(task: tuple[Case, int, range]) -> tuple[Case, int, Result]:
    case, count, seeds = task
    return case, count, simulate(case, count, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, help="20; 5 at sizes with a pairwise design")
    parser.add_argument("--nodes", type=int, nargs="*", default=FULL_SIZES + PAIRWISE_SIZES)
    parser.add_argument("--only", default="", help="defects whose name has this text")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    tasks = []
    for count in sorted(arguments.nodes, reverse=True):
        full = count in FULL_SIZES
        seeds = range(arguments.seeds or (SEEDS if full else PAIRWISE_SEEDS))
        cases = every_case() if full else pairwise_cases()
        tasks += [(c, count, seeds) for c in cases if arguments.only in c.defect]
    with Pool(arguments.jobs) as pool:
        results = list(pool.imap_unordered(_task, tasks))
    for count in arguments.nodes:
        of_size = [(case, result) for case, n, result in results if n == count]
        _print_size(count, of_size)
    _print_summary([(case, result) for case, _, result in results])


def _print_size(count: int, results: Sequence[tuple[Case, Result]]) -> None:
    wrong = sorted({case.wrong for case, _ in results})
    print(f"\n{count} nodes\n\n| defect | leaves known | " +
          " | ".join(f"{share:.1%} wrong" for share in wrong) + " | unanswered |")  # fmt: skip
    print("|---" * (3 + len(wrong)) + "|")
    for defect, known in itertools.product(DEFECTS, (True, False)):
        row = [(c, r) for c, r in results if (c.defect, c.knows_leaves) == (defect, known)]
        answered = [[r for c, r in row if c.wrong == w and not c.unanswered] for w in wrong]
        without = [r for c, r in row if c.unanswered]
        if row:
            cells = " | ".join(_sum(some).cell if some else "" for some in [*answered, without])
            print(f"| {defect} | {'yes' if known else 'no'} | {cells} |", flush=True)


def _print_summary(results: Sequence[tuple[Case, Result]]) -> None:
    everything = _sum([r for _, r in results])
    exact = _sum([r for c, r in results if not c.wrong] or [Result()])
    print(f"\n{everything.searches} searches in {len(results)} cells: an innocent accused in "
          f"{everything.accusing} ({everything.accusing / everything.searches:.3%}), most in one "
          f"cell {max(r.accusing for _, r in results)}, without wrong answers {exact.accusing}; "
          f"a place where nothing is: {everything.misplaced}")  # fmt: skip
    for case, result in results:
        if result.accusing:
            print(f"  innocents in {result.accusing}: {case}")
    for known, defect in itertools.product((True, False), DEFECTS):
        of = [r for c, r in results
              if (c.defect, c.knows_leaves) == (defect, known) and c.wrong <= 0.01]  # fmt: skip
        if of and _sum(of).planted:
            where = "leaves known" if known else "leaves unknown"
            total = _sum(of)
            text = f"  up to 1 % wrong, {where}, {defect}: {total.share:.1%} named"
            if total.places:
                text += f", of the places {total.places_named / total.places:.1%}"
            print(text)


def _sum(results: Sequence[Result]) -> Result:
    return sum(results[1:], results[0])


if __name__ == "__main__":
    main()
