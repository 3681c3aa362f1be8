"""Which marked nodes of a row are a place, and how often chance makes one."""

from __future__ import annotations

import random

import pytest

from fixtures.statistics.neighbours import (
    CHANCE,
    can_be_a_place,
    chance_of_place,
    places,
    smallest_place,
)

pytestmark = pytest.mark.cpu


def marks(nodes: int, *marked: int) -> list[bool]:
    return [k in marked for k in range(nodes)]


def test_neighbours_that_are_marked_are_a_place_with_few_others_between_them():
    assert places(marks(32, *range(8, 16))) == [(8, 16)]
    assert places(marks(64, *range(8, 12), *range(13, 17), 40)) == [(8, 17)]
    assert places(marks(128, *range(8, 16), *range(60, 70))) == [(8, 16), (60, 70)]
    assert places(marks(32, *range(0, 32, 2))) == []
    assert places([True] * 32) == [], "all nodes are not a place"
    assert places([False] * 32) == places([]) == []


def test_a_place_is_dense_and_has_three_nodes():
    assert places(marks(512, 7, 8)) == []
    assert places(marks(512, 7, 8, 9)) == [(7, 10)]
    assert places(marks(512, 7, 9, 11, 13)) == [], "every second one"


def test_the_chance_is_the_share_of_placements():
    assert chance_of_place(32, 4, 4, 4) == pytest.approx(2 * 29 / 35960)
    assert chance_of_place(8, 4, 4, 4) == pytest.approx(2 * 5 / 70)
    assert places(marks(32, *range(8, 12)), 0.0016) == []
    assert places(marks(32, *range(8, 12)), 0.0017) == [(8, 12)]


def test_a_small_fleet_needs_more_neighbours():
    found = {nodes: smallest_place(nodes) for nodes in (8, 16, 32, 64, 512)}
    assert found == {8: None, 16: 6, 32: 4, 64: 3, 512: 3}
    assert can_be_a_place(32, 4)
    assert not can_be_a_place(32, 3)
    assert not can_be_a_place(1000, 2), "two are a pair"


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("nodes", [16, 32, 128])
def test_marks_without_a_place_make_one_as_seldom_as_stated(nodes: int, share: float):
    dice = random.Random(nodes)
    wrong = sum(
        bool(places([dice.random() < share for _ in range(nodes)])) for _ in range(300)
    )  # fmt: skip
    assert wrong <= 5, f"mean {300 * CHANCE:.1f} at most"
