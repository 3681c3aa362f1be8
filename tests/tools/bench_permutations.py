"""What permutations over a whole fabric find, in simulated fabrics of 64 to 1,024 nodes.

python -m tests.tools.bench_permutations                     all tables
python -m tests.tools.bench_permutations --jobs 16
python -m tests.tools.bench_permutations --only noise healthy found smallest cost
python -m tests.tools.bench_permutations --nodes 64 --seeds 20

noise      what a healthy fabric looks like
healthy    how many healthy fabrics have anybody accused
found      what is planted: found at all, at the right place, by which minute; and who else is named
smallest   the size that the run states, planted: found in 93 to 97 % of --draws
cost       CPU seconds of a slice on the login node

Fabrics: tests/tools/clos.py; what is planted: tests/tools/planted_fabrics.py. A run is judged after
each slice of ten minutes with the risk of a whole run, and ends when the planted defect is found;
numpy and the standard library only.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from fixtures.permutations.coverage import coverage
from fixtures.permutations.estimates import of_leaves, of_ports
from fixtures.permutations.evidence import Evidence, gather
from fixtures.permutations.finding import Defect, find_in
from fixtures.permutations.observations import IntArray
from fixtures.permutations.smallest import Smallest, smallest_in
from tests.tools.clos import LINE, SLICE_ROUNDS, Defects, Fabric, Shape, starts, targets_of
from tests.tools.planted_fabrics import MINUTES, PLANTED, not_to_be_named, some_leaf

RISK = 0.003
"""fixtures/statistics/fleet_rule.py, RUN_RISK."""
TABLES = ("noise", "healthy", "found", "smallest", "cost")
SEEDS = {64: 100, 256: 100, 1024: 10}
SCHEDULE_SEED = 7
KINDS = tuple(field.name for field in fields(Smallest))
STATED_FROM = 8
"""Healthy runs whose stated smallest defects are averaged, to be planted."""


@functools.cache
def rounds(shape: Shape, number: int, alive: frozenset[int] | None = None) -> IntArray:
    plain = replace(shape, oversubscription=1, adaptive=True, queue_pairs=4, renewed=False)
    if shape != plain:
        return rounds(plain, number, alive)
    return targets_of(plain, SCHEDULE_SEED, SLICE_ROUNDS * number, SLICE_ROUNDS, alive)


def evidence(fabric: Fabric, number: int) -> Evidence:
    """Return what a slice shows; ports that are absent, or died in an earlier one, are left out."""
    shape, defects = fabric.shape, fabric.defects
    begin = float(starts(number)[0])
    gone = set(defects.absent)
    for node, second in defects.dead_nodes.items():
        if second < begin:
            gone.update(range(node * shape.rails, (node + 1) * shape.rails))
    alive = frozenset(range(shape.nodes * shape.rails)) - gone if gone else None
    return gather(fabric.slice(rounds(shape, number, alive), starts(number)))


# --- one run of a process


def run_healthy(task: tuple[Shape, int, int, str]) -> tuple[Shape, str, list[str]]:
    shape, seed, slices, kind = task
    dice = np.random.default_rng([seed, shape.nodes, 1])
    fabric = Fabric(shape, dice, not_to_be_named(shape, dice, kind))
    shown: list[Evidence] = []
    lines: list[str] = []
    for number in range(slices):
        shown.append(evidence(fabric, number))
        lines += [d.line for d in find_in(shown, RISK)]
    return shape, kind, lines


Outcome = tuple[Shape, str, int | None, bool, int]
"""Shape, what was planted, slices until found, whether at the right place, others named."""


def run_planted(task: tuple[Shape, int, int]) -> Outcome:
    shape, seed, which = task
    planted = PLANTED[which]
    dice = np.random.default_rng([seed, shape.nodes, 2 + which])
    defects, is_right = planted.plant(shape, dice)
    fabric = Fabric(shape, dice, defects)
    shown: list[Evidence] = []
    for number in range(planted.slices):
        shown.append(evidence(fabric, number))
        found = find_in(shown, RISK)
        if found:
            right = [d for d in found if is_right(d)]
            return shape, planted.name, number + 1, bool(right), len(found) - len(right)
    return shape, planted.name, None, False, 0


def run_stated(task: tuple[Shape, int, int]) -> Smallest:
    shape, seed, slices = task
    fabric = Fabric(shape, np.random.default_rng([seed, shape.nodes, 100]))
    return smallest_in([evidence(fabric, k) for k in range(slices)], RISK)


def run_smallest(task: tuple[Shape, int, int, str, float]) -> bool:
    """Return whether a defect of this size is found by the end of the run."""
    shape, seed, slices, kind, size = task
    dice = np.random.default_rng([seed, shape.nodes, 101])
    if kind == "uplinks":
        leaf = some_leaf(shape, dice)
        defects = Defects(leaf={leaf: 1 - size})
        is_right = functools.partial(_is_leaf, leaf)
    else:
        port, way = int(dice.integers(shape.nodes * shape.rails)), int(dice.integers(2))
        end = slices * MINUTES * 60.0
        seconds = 600.0 if kind == "port_ten_minutes" else end
        begin = float(dice.uniform(0, end - seconds))
        defects = Defects(port=[(way, port, 1 - size, begin, begin + seconds)])
        is_right = functools.partial(_is_port, divmod(port, shape.rails))
    fabric = Fabric(shape, dice, defects)
    return any(map(is_right, find_in([evidence(fabric, k) for k in range(slices)], RISK)))


def _is_leaf(leaf: int, found: Defect) -> bool:
    return found.leaf == leaf and found.other_leaf is None


def _is_port(port: tuple[int, int], found: Defect) -> bool:
    return (found.node, found.rail) == port


# --- tables


class Workers:
    """Processes that share what was computed before they started."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def map(self, work: Callable, tasks: Sequence) -> Iterable:  # type: ignore[type-arg]
        if self.jobs == 1:
            return map(work, tasks)
        with multiprocessing.get_context("fork").Pool(self.jobs) as pool:
            return pool.map(work, tasks, chunksize=1)


def shapes(sizes: Sequence[int]) -> list[Shape]:
    return [Shape(nodes, over, adaptive) for nodes in sizes for over in (1, 2)
            for adaptive in (True, False)]  # fmt: skip


def prepare(sizes: Sequence[int], slices: int) -> None:
    for nodes in sizes:
        for number in range(slices):
            rounds(Shape(nodes), number)


def seeds(nodes: int, args: argparse.Namespace, of: int = 1) -> range:
    """Return those of a cell, or a share of them: one in `of`."""
    usual, first = SEEDS.get(nodes, 10), args.first_seed
    given = usual if args.seeds is None else args.seeds
    count = min(given, usual) if nodes > 256 else given
    return range(first, first + (count // of or 1))


def noise(args: argparse.Namespace, workers: Workers) -> None:
    say("A healthy fabric: rates as shares of a port's, over a slice")
    say(f"{'fabric':34} {'in leaf':>8} {'0.1 %':>6} {'1 %':>6} {'median':>6} {'mean':>6} "
        f"{'flow sd':>8} {'mean sd':>8} {'port se':>8} {'leaf se':>8}")  # fmt: skip
    kinds = [*shapes(args.nodes), *(Shape(n, queue_pairs=1) for n in args.nodes),
             *(Shape(n, queue_pairs=16) for n in args.nodes)]  # fmt: skip
    for line in workers.map(noise_of, kinds):
        say(line)


def noise_of(shape: Shape) -> str:
    fabric = Fabric(shape, np.random.default_rng(0))
    targets = rounds(shape, 0)
    obs = fabric.slice(targets, starts(0))
    one = gather(obs)
    rates = obs.rates / LINE
    sends = targets >= 0
    crosses = sends & (fabric.leaf_of[np.where(sends, targets, 0)] != fabric.leaf_of)
    across = rates[crosses]
    low, one_percent, median = np.quantile(across, [0.001, 0.01, 0.5])
    leaves = of_leaves([one], len(one.leaves))
    _, information = of_ports([one]).total()
    return (f"{shape.name:34} {np.median(rates[sends & ~crosses]):8.3f} {low:6.3f} "
            f"{one_percent:6.3f} {median:6.3f} {across.mean():6.3f} {one.leaf_flows.std():8.3f} "
            f"{np.nanstd(one.mean):8.4f} {np.median(information) ** -0.5:8.4f} "
            f"{np.median(leaves.information[2]) ** -0.5:8.4f}")  # fmt: skip


def healthy(args: argparse.Namespace, workers: Workers) -> None:
    kinds = ("healthy", "a node dies", "a rail is down")
    tasks = [(shape, seed, args.slices, kind)
             for shape in shapes(args.nodes) for kind in kinds
             for seed in seeds(shape.nodes, args, 1 if kind == "healthy" else 10)]  # fmt: skip
    outcomes = list(workers.map(run_healthy, tasks))
    say(f"Fabrics of {args.slices} slices in which anybody was accused after any of them")
    for shape in shapes(args.nodes):
        of = {kind: [lines for s, k, lines in outcomes if s == shape and k == kind]
              for kind in kinds}  # fmt: skip
        say(
            f"{shape.name:34} "
            + ", ".join(
                f"{kind} {sum(map(bool, each))} of {len(each)}" for kind, each in of.items()
            )
        )
        for lines in (lines for each in of.values() for lines in each if lines):
            say(f"    {lines[0]}")
    every = [lines for _, kind, lines in outcomes if kind == "healthy"]
    accused = sum(map(bool, every))
    say(f"healthy together: {accused} of {len(every)}, {300 * accused / len(every):.1f} of 300")


def found(args: argparse.Namespace, workers: Workers) -> None:
    which = [
        k
        for k, p in enumerate(PLANTED)
        if not args.planted or any(word in p.name for word in args.planted)
    ]
    tasks = [(shape, seed, k) for shape in reversed(shapes(args.nodes)) for k in which
             for seed in seeds(shape.nodes, args)]  # fmt: skip
    outcomes: list[Outcome] = list(workers.map(run_planted, tasks))
    say(f"{'fabric':34} {'planted':22} {'found':>9} {'placed':>9} {'others':>6}  "
        "minutes until 50 %, 95 %, 99 % are found")  # fmt: skip
    for shape in shapes(args.nodes):
        for k in which:
            planted = PLANTED[k]
            of = [o for o in outcomes if o[0] == shape and o[1] == planted.name]
            times = sorted(o[2] for o in of if o[2] is not None)
            right = sum(o[3] for o in of)
            others = sum(o[4] > 0 for o in of)
            minutes = (
                ""
                if planted.begins
                else ", ".join(
                    str(MINUTES * times[math.ceil(share * len(of)) - 1])
                    if len(times) >= share * len(of)
                    else f"over {MINUTES * planted.slices}"
                    for share in (0.5, 0.95, 0.99)
                )
            )
            say(f"{shape.name:34} {planted.name:22} {len(times):4} / {len(of):3}"
                f" {right:4} / {len(of):3} {others:6}  {minutes}")  # fmt: skip


def smallest(args: argparse.Namespace, workers: Workers) -> None:
    say(f"The size that a run of {args.stated_slices} slices states, planted {args.draws} times")
    for nodes in args.stated_nodes:
        for shape in shapes([nodes]):
            stated = list(
                workers.map(
                    run_stated, [(shape, seed, args.stated_slices) for seed in range(STATED_FROM)]
                )
            )
            for kind in args.stated_kinds:
                sizes = [getattr(s, kind) for s in stated]
                if None in sizes:
                    say(f"{shape.name:34} {kind:18} not stated")
                    continue
                size = float(np.mean(sizes))
                hits = list(
                    workers.map(
                        run_smallest,
                        [
                            (shape, seed, args.stated_slices, kind, size)
                            for seed in range(args.first_seed, args.first_seed + args.draws)
                        ],
                    )
                )
                say(f"{shape.name:34} {kind:18} {100 * size:6.2f} % "
                    f"({100 * min(sizes):.2f} to {100 * max(sizes):.2f}): found in "
                    f"{100 * sum(hits) / len(hits):5.1f} %")  # fmt: skip


def cost(args: argparse.Namespace, workers: Workers) -> None:
    say("CPU seconds of the login node for a slice of ten minutes; 5 % of a core are 30")
    for nodes in args.nodes:
        shape = Shape(nodes)
        clock = time.process_time()
        targets = targets_of(shape, 1, 0, SLICE_ROUNDS)
        planned = time.process_time() - clock
        obs = Fabric(shape, np.random.default_rng(0)).slice(targets, starts(0))
        clock = time.process_time()
        one = gather(obs)
        gathered = time.process_time() - clock
        clock = time.process_time()
        coverage(obs)
        covered = time.process_time() - clock
        clock = time.process_time()
        find_in([one] * 6, RISK)
        smallest_in([one] * 6, RISK)
        judged = time.process_time() - clock
        say(f"{shape.name:34} schedule {planned:.2f}, gather {gathered:.2f}, coverage "
            f"{covered:.2f}, find and smallest over an hour {judged:.2f}")  # fmt: skip


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", choices=TABLES, default=TABLES, metavar="TABLE")
    parser.add_argument("--planted", nargs="*", default=[], metavar="WORD",
                        help="plantings whose name has one of these words")  # fmt: skip
    parser.add_argument("--nodes", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--seeds", type=int, help="of a cell (100; 10 at 1,024 nodes)")
    parser.add_argument("--first-seed", type=int, default=0, help="tables in several parts")
    parser.add_argument("--slices", type=int, default=6, help="of a healthy run")
    parser.add_argument("--draws", type=int, default=1000, help="of a smallest defect")
    parser.add_argument("--stated-nodes", nargs="*", type=int, default=[64])
    parser.add_argument("--stated-slices", type=int, default=3)
    parser.add_argument("--stated-kinds", nargs="*", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(argv)
    workers = Workers(args.jobs)
    slices = max(args.slices, max(p.slices for p in PLANTED) if "found" in args.only else 1)
    prepare(args.nodes, slices if set(args.only) - {"cost", "smallest"} else 0)
    for name in args.only:
        clock = time.perf_counter()
        globals()[name](args, workers)
        say(f"({time.perf_counter() - clock:.0f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
