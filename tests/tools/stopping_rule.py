"""Part of `make bench-gpu`: the rule of figures_in_turns.py, held against every recorded series.

python -m tests.tools.stopping_rule

Each series of starts is held 400 times against itself, and against itself moved by three times its
goal, as bench_gpu does: until it is decided. Exit status 1 where a series is wrong in more than 3 %
of them. The twelve series whose starts lie furthest apart are in test_bench_gpu.py.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tools import bench_gpu
from tests.tools.figures_in_turns import Figure

DATA = Path(__file__).resolve().parents[1] / "selftests" / "data"
SESSIONS = (
    "bench-h200", "bench-h200-again", "bench-h200-calls", "bench-h100", "bench-h100-again",
)  # fmt: skip
"""Starts of five sessions. A start has one of two rates at reduce-scatter of 4 GiB in the second,
and one of ours at send-receive of 16 MiB in the third; from the fourth NCCL's own is timed."""
DRAWS, MOST_WRONG = 400, 12


@dataclass(frozen=True)
class Series:
    """The starts of one program at one figure."""

    name: str
    starts: Sequence[float]
    goal: float

    @property
    def spread(self) -> float:
        """How far the starts lie apart, in goals: relative standard deviation / goal."""
        if len(self.starts) < 2:
            return 0.0
        return statistics.stdev(self.starts) / statistics.median(self.starts) / self.goal

    def missed_against_itself(self) -> int:
        """In how many draws it is found to differ from itself."""
        chance = random.Random(1)
        return sum(self._drawn(0, chance).met is False for _ in range(DRAWS))

    def met_when_off(self) -> int:
        """In how many draws it is called met, one side three times the goal higher."""
        chance = random.Random(2)
        return sum(self._drawn(3 * self.goal, chance).met is True for _ in range(DRAWS))

    def _drawn(self, shift: float, chance: random.Random) -> Figure:
        """Starts held against each other, one side SHIFT higher, until it is decided."""
        figure = Figure("drawn", "GB/s", self.goal, "drawn")
        while len(figure.ours) < 3 or (figure.open and len(figure.ours) < bench_gpu.MOST_ROUNDS):
            figure.ours.append((1 + shift) * chance.choice(self.starts))
            figure.theirs.append(chance.choice(self.starts))
        return figure


def recorded() -> list[Series]:
    """Every series of the recorded sessions, the widest first."""
    found = [
        Series(f"{session} {entry['name']}", entry["theirs"], entry["goal"])
        for session in SESSIONS
        for entry in json.loads((DATA / f"{session}.json").read_text(encoding="utf-8"))["figures"]
    ]
    return sorted(found, key=lambda series: -series.spread)


def main() -> int:
    """Print the series that are wrong too often; their number is the exit status, at most 1."""
    wrong = 0
    for series in recorded():
        missed, met = series.missed_against_itself(), series.met_when_off()
        if max(missed, met) > MOST_WRONG:
            wrong += 1
            print(f"{series.name}: of {DRAWS} draws {missed} missed against itself, {met} met off")
    print(f"stopping rule: {wrong} of {len(recorded())} recorded series are wrong too often")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
