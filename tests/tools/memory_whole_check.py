"""Does `memory.whole` find a bit that flips once, anywhere in the memory of a GPU?

python -m tests.tools.memory_whole_check [--flips 20] [--gpu 0] [--cpu] [--seed N]

Runs the workload once for each flip. Between writing and comparing one bit of one word is flipped,
in a pass, at an address and in a bit chosen at random; found is what the record has with that pass,
address, bit and direction, as the only wrong word. Exit status 1 if one was not found, or if less
than 95 % of the free memory was covered. On an H200 a flip should take 3 to 4 s.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time

from fixtures.workloads.memory import memory_whole
from fixtures.workloads.memory.memory_whole import Coverage
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks

COVERED = 0.95


class Flip:
    """One bit that flips in one pass, at a place that is drawn when the memory is known."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.number = self._random.randrange(memory_whole.PASSES)
        self.bit = self._random.randrange(64)
        self.offset = self.before = -1

    def __call__(self, coverage: Coverage, number: int) -> None:
        """Flip it, if it is the turn of its pass."""
        if number != self.number:
            return
        self.offset = self._random.randrange(coverage.bytes // 8) * 8
        word = coverage.word(self.offset)
        self.before = int(word.item()) >> self.bit & 1
        word ^= memory_whole.signed(1 << self.bit)

    @property
    def text(self) -> str:
        """What is to be found, in the words of the workload."""
        flip = f"bit {self.bit} from {self.before} to {1 - self.before}"
        return f"byte {self.offset:#x}, pass {self.number + 1}: {flip}"


def main(arguments: list[str] | None = None) -> int:
    """Flip, measure, and print a line for each flip."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.memory_whole_check", description=__doc__
    )
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--gpu", type=int, default=0, metavar="K")
    parser.add_argument("--cpu", action="store_true", help="a little of the host's memory")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    found = 0
    covered = 1.0
    with tempfile.TemporaryDirectory(prefix="acceptance-memory-") as folder:
        device = "cpu" if options.cpu else "cuda"
        spec = {
            "nodes": ["here"], "ranks_per_node": 1 + options.gpu, "directory": folder,
            "device": device,
        }  # fmt: skip
        place = Identity(rank=0, local_rank=options.gpu, world_size=1, node="here")
        ranks = Ranks(spec, place)
        for k in range(options.flips):
            flip = Flip(options.seed + k)
            begun = time.perf_counter()
            result = memory_whole.run(ranks, ["errors"], disturb=flip)
            took = time.perf_counter() - begun
            (measured,), facts = result.measurements, result.facts
            said = [f"byte {w['byte']:#x}, pass {w['pass']}: {w['what']}" for w in facts["wrong"]]
            right = measured.value == 1 and said == [flip.text]
            found += right
            covered = min(covered, measured.checks["covered"])
            print(
                f"{'found' if right else 'NOT FOUND'} {flip.text}"
                + ("" if right else f", but {measured.value} words: {said}")
                + f" ({measured.checks['covered']:.2%} of {facts['free_bytes'] / 1e9:.1f} GB free"
                f" and {measured.checks['of_total']:.2%} of all, in {facts['tensors']} tensors;"
                f" {facts['seconds_per_pass']:.3f} s a pass, {took:.1f} s in all)",
                flush=True,
            )
    print(f"{found} of {options.flips} found, at least {covered:.2%} of the free memory covered")
    return 0 if found == options.flips and covered >= COVERED else 1


if __name__ == "__main__":
    sys.exit(main())
