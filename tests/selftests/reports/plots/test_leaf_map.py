"""The picture of a fabric under load: which squares there are, and what they and the words say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from reports.plots import leaf_map as module
from reports.plots.leaf_map import leaf_map
from tests.selftests.fabric_loads import fabric_load

pytestmark = pytest.mark.cpu


def of(*lines: Sequence[float | None], **more: Any) -> Any:
    names = [f"l{k}" for k in range(len(lines))]
    cells = sum(hours is not None for line in lines for hours in line)
    return leaf_map({"leaves": names, "matrix": lines, "cells": cells, **more})


def places(made: Any, style: str) -> list[tuple[int, int]]:
    """(row, column) of the squares of a style."""
    pitch = next(pixels for limit, pixels in module.PITCHES if len(made.rows) <= limit)
    found = re.findall(r"M(\d+) (\d+)", dict(made.squares).get(style, ""))
    return [((int(y) - made.top) // pitch, (int(x) - made.left) // pitch) for x, y in found]


def test_a_square_is_the_time_of_a_pair_in_quarters_of_the_longest():
    made = of([None, 1.0, 0.99], [0.5, None, 0.25], [0.24, 0.0, None])
    assert [places(made, f"t{k}") for k in range(1, 5)] == [
        [(2, 0)], [(1, 2)], [(1, 0)], [(0, 1), (0, 2)],
    ]  # fmt: skip
    assert places(made, "never") == [(2, 1)]
    assert [(label.text, label.style) for label in made.numbers] == [
        ("60", "t4"), ("59", "t4"), ("30", "t3"), ("15", "t2"), ("14", "t1"),
    ]  # fmt: skip
    assert made.legend == [
        ("t1", "up to 15 minutes"), ("t2", "15 to 30 minutes"), ("t3", "30 to 45 minutes"),
        ("t4", "45 to 60 minutes"), ("never", "never"),
    ]  # fmt: skip
    assert made.title == "Time at 0.9 of the expected load and more, from leaf to leaf, in minutes"
    assert (made.empty, made.note) == (True, "")
    assert [label.text for label in made.rows] == [label.text for label in made.columns]


def test_what_was_never_driven_bears_a_cross_and_no_number():
    made = of([None, 0.0], [3.0, None])
    (never,) = (path for style, path in made.squares if style == "never")
    assert never.count("l") == 2, "two strokes, told without colour"
    assert [label.text for label in made.numbers] == ["3"]
    assert made.title.endswith(", in hours")
    assert [style for style, _ in of([None, 0.0], [0.0, None]).squares] == ["never"]


def test_the_numbers_are_hours_minutes_or_seconds():
    for hours, unit, text in (
        (2.0, "hours", "2"), (1.99, "minutes", "119"), (2 / 60, "minutes", "2"),
        (1.9 / 60, "seconds", "114"), (0.1 / 3600, "seconds", "0.1"),
    ):  # fmt: skip
        made = of([None, hours], [0.0, None])
        assert made.title.endswith(f" in {unit}")
        assert [label.text for label in made.numbers] == [text]


def test_the_words_say_what_the_picture_shows():
    assert of([None, 0.25], [0.5, None]).description == (
        "2 ordered pairs of 2 leaves: at least 15 min (l0 to l1), median 22 min, at most 30 min; "
        "none never driven"
    )
    lines = [[None if a == b else 0.0 for b in range(3)] for a in range(3)]
    assert of(*lines).description == (
        "6 ordered pairs of 3 leaves; 6 never driven "
        "(l0 to l1, l0 to l2, l1 to l0 and 3 more pairs)"
    )


def test_without_a_pair_there_is_no_picture():
    assert of([None]) is None
    assert of([None, None], [None, None]) is None
    assert leaf_map({"leaves": [], "matrix": [], "cells": 0}) is None


@pytest.mark.parametrize(("leaves", "per_line", "lines"), [(64, 1, 64), (65, 2, 33), (256, 4, 64)])
def test_above_64_leaves_neighbours_share_a_line(leaves, per_line, lines):
    made = leaf_map(fabric_load(leaves))
    assert len(made.rows) == lines
    assert made.note.startswith(f"A line is {per_line} leaves" if per_line > 1 else "")
    assert bool(made.note) is (per_line > 1)
    assert made.rows[1].text == f"leaf {per_line}"
    assert not made.numbers
    assert made.title.endswith("to leaf")


def test_of_several_rails_it_is_the_least_and_never_is_on_one_of_them():
    made = leaf_map(fabric_load(3, rails=8, never=1))
    assert "to leaf, on the rail that has the least, in minutes" in made.title
    assert made.legend[-1] == ("never", "never, on one rail at least")
    assert made.description.endswith("1 never driven on one rail at least (leaf 0 to leaf 1)")
    assert places(made, "never") == [(0, 1)]
    assert leaf_map(fabric_load(65, rails=8, never=1)).legend[-1] == (
        "part", "some of its pairs never, on one rail at least"
    )  # fmt: skip


def test_a_square_of_several_pairs_shows_the_least():
    size, lines = 65, [[None if a == b else 1.0 for b in range(65)] for a in range(65)]
    lines[2][0], lines[4][0], lines[4][1] = 0.3, 0.0, 0.0
    lines[5][0] = lines[5][1] = 0.0
    made = of(*lines)
    assert len(lines) == size
    assert places(made, "t2") == [(1, 0)]
    assert places(made, "never") == [(2, 0)]
    assert (2, 0) not in places(made, "t4")


def test_a_long_name_is_cut_and_the_picture_stays_narrow():
    made = of([None, 1.0], [1.0, None], leaves=["x" * 4000, "y" * 20])
    assert [label.text for label in made.rows] == [f"{'x' * 17}...", "y" * 20]
    assert made.width < 300
