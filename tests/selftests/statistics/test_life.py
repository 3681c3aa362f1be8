"""Life counters: who has counted far more than its siblings, by the law that is stated."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.statistics import life
from fixtures.statistics.life import Part, accused, tail
from tests.tools.bench_life import SHAPES, healthy, parts_of

pytestmark = pytest.mark.cpu


def node(counts: list[int], name: str = "n0", *, links: int = 1) -> list[Part]:
    """Parts of a node: `links` in a row are those of one GPU."""
    return [Part(name, f"GPU {k // links}", f"link {k % links}", c) for k, c in enumerate(counts)]


def names(found: list[life.Accused]) -> list[tuple[str, str, str]]:
    return [(a.part.node, a.part.device, a.part.name) for a in found]


def test_the_link_of_the_published_incident_is_named():
    """505 recoveries of one link, 0 of 319 others: it died five days later."""
    parts = [p for n in range(10) for p in node([0] * 32, f"n{n}", links=8)]
    parts[100] = Part("n3", "GPU 0", "link 4", 505)
    (found,) = accused(parts, share=1 / 20)
    assert names([found]) == [("n3", "GPU 0", "link 4")]
    assert (found.siblings, found.most, found.mean) == (24, 0, 0)


def test_of_one_node_and_sums_it_is_named_by_gpu():
    assert names(accused(node([0, 0, 505, 0]), share=1 / 20)) == [("n0", "GPU 2", "link 0")]


def test_several_are_named_and_none_hides_another():
    counts = [0] * 16
    counts[3], counts[9] = 90_000, 400
    assert [a.part.count for a in accused(node(counts), share=1 / 20)] == [90_000, 400]


def test_a_gpu_all_of_whose_links_count_is_named_by_each():
    counts = [0] * 18 * 7 + [300] * 18
    found = accused(node(counts, links=18), share=1 / 20)
    assert len(found) == 18
    assert {a.part.device for a in found} == {"GPU 7"}
    assert [*life.by_device(found)] == [("n0", "GPU 7")]


def test_a_fleet_in_which_all_count_is_not_accused_one_by_one():
    dice = np.random.default_rng(3)
    counts = [int(c) for c in dice.poisson(4000 * dice.gamma(2, 0.5, 144))]
    assert accused(node(counts, links=18)) == []


def test_a_node_that_has_been_up_for_longer_is_not_accused():
    young = [p for n in range(4) for p in node([0, 1, 0, 2, 0, 1, 0, 0], f"n{n}")]
    old = node([150, 90, 240, 60, 130, 210, 170, 120], "n9")
    assert accused([*young, *old]) == []


def test_few_errors_and_few_siblings_accuse_none():
    assert accused(node([life.FLOOR - 1, 0, 0, 0])) == []
    assert accused(node([10_000, 0, 0])) == [], "two siblings are too few"
    assert accused([Part(f"n{k}", "GPU 0", "", 10_000 * (k == 3)) for k in range(64)]) == []
    assert accused([]) == []


def test_the_bound_of_the_tail_is_above_what_is_drawn_and_near_it():
    dice = np.random.default_rng(1)
    for mean, shape, count in ((5, 2, 30), (40, 0.8, 200), (1, 0.5, 8)):
        drawn = dice.poisson(mean * dice.gamma(shape, 1 / shape, 400_000))
        share = float((drawn >= count).mean())
        assert share <= tail(count, mean, shape) * 1.1 <= 4 * share + 1e-5
    assert tail(5, 5, 2) == 1.0
    assert tail(10**6, 1, 2) == 0.0


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_healthy_fleets_of_the_law_accuse_hardly_anyone(shape):
    dice = np.random.default_rng(11)
    fleets = [healthy(dice, shape, 20.0) for _ in range(100)]
    known = [bool(accused(parts_of(*fleet), share=1 / 21)) for fleet in fleets]
    unknown = [bool(accused(parts_of(counts), share=1 / 21)) for counts, _ in fleets]
    assert sum(known) + sum(unknown) <= 1


@pytest.mark.parametrize("scale", [1e9, 1e15, 2**62 / 20])
def test_counts_of_any_size_are_compared_and_healthy_ones_accuse_none(scale):
    """A counter has 63 bits: logarithms of such numbers have no digits left of their difference."""
    dice = np.random.default_rng(5)
    counts = [int(scale * x) for x in dice.gamma(2, 0.5, 1152)]
    parts = [p for k in range(8) for p in node(counts[144 * k : 144 * k + 144], f"n{k}", links=18)]
    assert accused(parts, share=1 / 50) == []
    assert life.chance(2**53, 2**52, 9000) > life.RISK
    (found,) = accused([*parts, Part("n0", "GPU 9", "", 2**62)], share=1 / 50)
    assert found.part.device == "GPU 9"


def test_errors_of_a_driver_that_starts_accuse_no_part_of_a_node_that_booted_just_now():
    """Hours say little of them: an old node counts as many, so each is much by the hour."""
    dice = np.random.default_rng(8)
    for _ in range(8):
        parts = []
        for n in range(64):
            counts = dice.poisson(60 * dice.gamma(2, 0.5, 144))
            hours = 0.2 if n < 4 else 700.0
            parts += [Part(f"n{n}", f"GPU {k // 18}", f"link {k % 18}", int(c), hours)
                      for k, c in enumerate(counts)]  # fmt: skip
        assert accused(parts, share=0.3) == []
