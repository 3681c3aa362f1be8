"""Few values of one criterion as a line with a bar: the worst, its siblings, limit and ceiling.

Login side. Drawn by the page's own elements, so that it has the page's colours on screen and paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fixtures.wording import digits, quantity

WIDTH = 100.0
"""Units of the bar from 0 to the highest mark."""


@dataclass(frozen=True)
class Mark:
    """A limit or ceiling: its name, and its place on the bar; None where it is far off."""

    name: str
    text: str
    at: float | None


@dataclass(frozen=True)
class Bullet:
    """Where the marks of one line stand, and the texts beside them."""

    where: str
    """Which device has the worst value."""
    value: str
    at: float
    """Where its bar ends."""
    siblings: tuple[float, ...]
    """The other values, on the bar's scale."""
    others: str
    """How many there are, and their median; "" for a single value."""
    marks: tuple[Mark, ...]
    bad: bool
    """Whether the worst value is beyond the limit."""

    def text_of(self, name: str) -> str:
        """Return the number of a mark, "" where there is none."""
        return next((mark.text for mark in self.marks if mark.name == name), "")


def bullet(
    values: Sequence[tuple[str, float]],
    worst: tuple[str, float],
    lines: Sequence[tuple[float, str]],
    *,
    unit: str,
    counted: str,
    bad: bool,
    farthest: float,
) -> Bullet:
    """Return the line of these values; `lines` are (value, name) of limit and ceiling, of which one
    higher than `farthest` is only named."""
    shown = [at for at, _ in lines if at <= farthest]
    highest = max([abs(value) for _, value in values] + [abs(at) for at in shown]) or 1.0

    def on_bar(value: float) -> float:
        return round(WIDTH * max(0.0, value) / highest, 2)

    others = ""
    if len(values) > 1:
        median = quantity(statistics.median(value for _, value in values), unit)
        others = f"{len(values)} {counted}, median {median}"
    return Bullet(
        where=worst[0],
        value=quantity(worst[1], unit),
        at=on_bar(worst[1]),
        siblings=tuple(on_bar(value) for name, value in values if (name, value) != worst),
        others=others,
        marks=tuple(
            Mark(name, digits(at), on_bar(at) if at <= farthest else None) for at, name in lines
        ),
        bad=bad,
    )
