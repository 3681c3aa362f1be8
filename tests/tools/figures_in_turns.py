"""Figures that two programs measured in turns: their difference, and how well it is known.

A rate of one start differs from that of the next: all-to-all of 16 MiB on two H200 gave nccl-tests
150 to 161 GB/s in eight starts. The difference of two medians is then uncertain by more than the
goal it is held against, and "met" or "not met" would be chance.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from fixtures.statistics.fleet_slots import OF_MEDIAN

LAUNCH_BOUND = 0.9
"""Share of the time from which on launching is what takes it."""

T_QUANTILES = {2: 19.21, 4: 6.62, 6: 4.90, 8: 4.28, 10: 3.96, 12: 3.76, 16: 3.54, 22: 3.38}
"""Degrees of freedom -> quantile of Student's t, 0.27 % in both tails (3 sigma of a normal).

A standard error from three starts is itself uncertain: held to 3 of them, nccl-tests' recorded
starts missed the goal against themselves in up to 4.2 % of series.
"""


@dataclass
class Figure:
    """One quantity, measured by the suite (ours) and by the other tool (theirs) in each round."""

    name: str
    unit: str
    goal: float
    """Largest accepted relative difference of the medians."""
    part: str
    """Name of what measures it."""
    slack: float = 0.0
    """Largest accepted absolute difference: the goal is met where either holds."""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    launching: list[float] = field(default_factory=list)
    """Share of our time that the host took to launch, in each start; empty where nobody asked."""

    @property
    def difference(self) -> float | None:
        """Ours divided by theirs, minus 1; None where one of them is missing."""
        if not self.ours or not self.theirs:
            return None
        return statistics.median(self.ours) / statistics.median(self.theirs) - 1

    @property
    def uncertainty(self) -> float | None:
        """Standard error of the difference, from how far starts lie apart; None for fewer than two.

        Relative standard errors of both medians, added as squares.
        """
        if min(len(self.ours), len(self.theirs)) < 2:
            return None
        return math.hypot(_error_of_median(self.ours), _error_of_median(self.theirs))

    @property
    def allowed(self) -> float:
        """The largest accepted relative difference, slack included."""
        return max(self.goal, self.slack / statistics.median(self.theirs)) if self.theirs else 0.0

    @property
    def met(self) -> bool | None:
        """Whether the difference is allowed; None where these rounds cannot say.

        Met needs a difference that is allowed and known to half of what is allowed; missed one
        that is beyond it by its uncertainty times the quantile for so many starts (T_QUANTILES). A
        single round is taken as it is.
        """
        if self.difference is None:
            return None
        beyond, uncertainty = abs(self.difference) - self.allowed, self.uncertainty or 0.0
        if beyond <= 0:
            return True if uncertainty <= self.allowed / 2 else None
        freedom = max(len(self.ours) + len(self.theirs) - 2, min(T_QUANTILES))
        quantile = T_QUANTILES[max(known for known in T_QUANTILES if known <= freedom)]
        return False if beyond > quantile * uncertainty else None

    @property
    def of_the_host(self) -> list[int]:
        """The starts, from 1, in which the host launched all the time: our rate is the host's."""
        return [k for k, share in enumerate(self.launching, 1) if share >= LAUNCH_BOUND]

    @property
    def open(self) -> bool:
        """Whether both programs were measured, and more rounds can still say who is right."""
        return self.difference is not None and self.met is None

    def as_json(self) -> dict[str, Any]:
        """Return every round, and what follows from them."""
        derived = ("difference", "uncertainty", "open", "met")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def _error_of_median(values: Sequence[float]) -> float:
    """Return the relative standard error of the median."""
    error = OF_MEDIAN * statistics.stdev(values) / math.sqrt(len(values))
    return error / statistics.median(values)


def show(figures: Collection[Figure]) -> None:
    """Print one line per figure, with every round."""
    table = Table(title="ours beside the other program's, same GPUs, in turns")
    for name in ("figure", "unit", "ours", "theirs", "difference", "+-", "goal", "met"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for f in figures:
        goal = f"{100 * f.goal:g}%" + (f" or {f.slack:g} {f.unit}" if f.slack else "")
        table.add_row(
            f.name, f.unit, " ".join(f"{x:.5g}" for x in f.ours),
            " ".join(f"{x:.5g}" for x in f.theirs) or "not there",
            "" if f.difference is None else f"{f.difference:+.2%}",
            "" if f.uncertainty is None else f"{f.uncertainty:.2%}", goal,
            "open" if f.open else {True: "yes", False: "NO", None: "-"}[f.met],
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 190).print(table)
    for f in figures:
        if f.of_the_host:
            starts = ", ".join(map(str, f.of_the_host))
            print(f"{f.name}: launching took all of our time in start {starts}")
