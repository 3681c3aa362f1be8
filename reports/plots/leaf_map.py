"""The picture of a fabric under load: how long each ordered pair of leaves was driven (login side).

A square is a pair of leaves, or above MAX_LINES leaves the pairs of two groups of them: then it
shows the least of them. What was never driven bears a cross, so that it is told without colour.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.wording import abbreviated, counted, decimal, duration

MAX_LINES = 64
"""Most lines and columns: as many have names that can be read, on paper too."""
PITCHES = ((8, 46), (16, 32), (32, 16), (MAX_LINES, 10))
"""Most lines, and the pixels from one to the next."""
MAX_NUMBERED = 16
"""Most lines of a picture whose squares hold their numbers."""
SHADES = 4
"""Shades of the time, each a share of the longest."""
UNITS = ((1, "hours"), (60, "minutes"), (3600, "seconds"))
"""Number in an hour, and name: the numbers have the first of which the longest is two or more."""
MAX_NAME = 20
"""Most characters of a name in the picture."""
CHARACTER, LETTERS, AXIS = 5.4, 9, 16
"""Pixels: mean width of a letter, its height, and the title of an axis."""
SWATCH = {
    **dict.fromkeys(("t1", "t2", "t3", "t4"), "M0 0h12v12h-12z"),
    "never": "M0 0h12v12h-12zl12 12m0-12l-12 12", "part": "M0 12l12-12",
}  # fmt: skip
"""Style -> the path of a square of 12 pixels in the legend."""
MAX_NAMED = 3
"""Most pairs that the text alternative names."""

Hours = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Label:
    """A text of the picture, in pixels."""

    x: float
    y: float
    text: str
    style: str = ""


@dataclass(frozen=True)
class LeafMap:
    """The picture; paths are those of SVG."""

    title: str
    width: int
    height: int
    left: int
    top: int
    squares: Sequence[tuple[str, str]]
    """(style, path) of the squares of each shade, of those never driven and of those in part."""
    rows: Sequence[Label]
    columns: Sequence[Label]
    numbers: Sequence[Label]
    legend: Sequence[tuple[str, str]]
    """(style, meaning) of what is in the picture."""
    description: str
    """The content in words, for readers who cannot see the picture."""
    note: str
    """What a line is, where leaves share one."""
    empty: bool
    """Whether squares are empty, because there is no such pair."""


@dataclass(frozen=True)
class _Square:
    row: int
    column: int
    hours: float
    """The least of its pairs that were driven."""
    never: int
    pairs: int


def leaf_map(load: Mapping[str, Any]) -> LeafMap | None:
    """Return the picture of `fabric_load` of a verdict; None where there is no pair of leaves."""
    names = [str(name) for name in load["leaves"]]
    hours: Hours = load["matrix"]
    size = max(1, -(-len(names) // MAX_LINES))
    squares = list(_squares(hours, len(names), size))
    if not squares:
        return None
    most = max(square.hours for square in squares)
    lines = -(-len(names) // size)
    pitch = next(pixels for limit, pixels in PITCHES if lines <= limit)
    shown = [_shortened(name) for name in names[::size]]
    margin = round(CHARACTER * max(map(len, shown))) + 8
    left = top = margin + AXIS
    paths = dict.fromkeys((*(f"t{k}" for k in range(1, SHADES + 1)), "never", "part"), "")
    numbers, numbered = [], lines <= MAX_NUMBERED
    scale, unit = next((n, unit) for n, unit in UNITS if n * most >= 2 or n == 3600)
    for square in squares:
        x, y, side = left + pitch * square.column, top + pitch * square.row, pitch - 1
        if square.never < square.pairs:
            shade = _shade(square.hours, most)
            paths[shade] += f"M{x} {y}h{side}v{side}h-{side}z"
            if numbered:
                at = x + side / 2, y + side / 2 + LETTERS / 3
                numbers.append(Label(*at, decimal(scale * square.hours, 2), shade))
        if square.never == square.pairs:
            paths["never"] += (
                f"M{x} {y}h{side}v{side}h-{side}zl{side} {side}m0-{side}l-{side} {side}"
            )
        elif square.never:
            paths["part"] += f"M{x} {y + side}l{side}-{side}"
    middle = pitch / 2 + LETTERS / 3
    end = pitch * lines
    several = load["cells"] > sum(square.pairs for square in squares)
    title = "Time at 0.9 of the expected load and more, from leaf to leaf"
    title += ", on the rail that has the least" * several
    note = (
        f"A line is {counted(size, 'leaf')} that follow each other, named by the first. A square "
        "shows the pair of them that was driven least."
    )
    return LeafMap(
        title=f"{title}, in {unit}" if numbers else title, note=note if size > 1 else "",
        width=left + end + 2, height=top + end + 2, left=left, top=top,
        squares=[(style, path) for style, path in paths.items() if path],
        rows=[Label(left - 4, top + pitch * k + middle, text) for k, text in enumerate(shown)],
        columns=[Label(left + pitch * k + middle, top - 4, text) for k, text in enumerate(shown)],
        numbers=numbers, legend=list(_legend(paths, scale * most, unit, size, several)),
        description=_description(names, hours, several), empty=len(squares) < lines * lines,
    )  # fmt: skip


def _squares(hours: Hours, leaves: int, size: int) -> Iterator[_Square]:
    """Yield the squares that have a pair."""
    lines = -(-leaves // size)
    for row in range(lines):
        of_rows = hours[row * size : (row + 1) * size]
        for column in range(lines):
            of_columns = slice(column * size, (column + 1) * size)
            found = [h for line in of_rows for h in line[of_columns] if h is not None]
            if found:
                driven = [h for h in found if h > 0]
                never = len(found) - len(driven)
                yield _Square(row, column, min(driven, default=0.0), never, len(found))


def _shade(hours: float, most: float) -> str:
    return f"t{min(SHADES, int(SHADES * hours / most) + 1)}"


def _legend(
    paths: Mapping[str, str], most: float, unit: str, size: int, several: bool
) -> Iterator[tuple[str, str]]:
    on_a_rail = ", on one rail at least" * several
    for k in range(1, SHADES + 1):
        if paths[f"t{k}"]:
            low, high = (decimal(most * share / SHADES, 2) for share in (k - 1, k))
            yield f"t{k}", f"{low} to {high} {unit}" if k > 1 else f"up to {high} {unit}"
    if paths["never"]:
        yield "never", f"{'never' if size == 1 else 'none of its pairs ever'}{on_a_rail}"
    if paths["part"]:
        yield "part", f"some of its pairs never{on_a_rail}"


def _description(names: Sequence[str], hours: Hours, several: bool) -> str:
    pairs = [
        (h, f"{_shortened(a)} to {_shortened(b)}")
        for a, line in zip(names, hours, strict=True)
        for b, h in zip(names, line, strict=True)
        if h is not None
    ]
    driven = [pair for pair in pairs if pair[0] > 0]
    never = [name for h, name in pairs if h <= 0]
    text = f"{counted(len(pairs), 'ordered pair')} of {counted(len(names), 'leaf')}"
    if driven:
        least, most = min(driven), max(driven)
        middle = statistics.median(h for h, _ in driven)
        text += (
            f": at least {duration(3600 * least[0])} ({least[1]}), median "
            f"{duration(3600 * middle)}, at most {duration(3600 * most[0])}"
        )
    told = f" ({abbreviated(never, MAX_NAMED, 'pair')})" if never else ""
    on_a_rail = " on one rail at least" * several
    return f"{text}; {len(never) or 'none'} never driven{on_a_rail}{told}"


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."
