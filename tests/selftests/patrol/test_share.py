"""Which idle nodes patrol visits: no more than its share, those longest without one first."""

from __future__ import annotations

import random

import pytest

from fixtures.patrol import share
from fixtures.patrol.share import HOUR_S, VISIT_S, Taken

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("seed", range(5))
def test_patrol_never_takes_more_than_its_share_of_any_hour(seed):
    rng = random.Random(seed)
    fleet, part = rng.choice([4, 30, 200]), rng.choice([0.01, 0.1, 0.5])
    names = [f"n{k}" for k in range(fleet)]
    visited: list[Taken] = []
    now = 0.0
    for _ in range(300):
        idle = [n for n in names if rng.random() < 0.7]
        for node in share.choose(idle, fleet=fleet, visits=visited, now=now, share=part):
            visited.append(Taken(node=node, start=now, end=now + VISIT_S * rng.random()))
        now += max(VISIT_S, rng.expovariate(1 / 120))
        assert share.used_s(visited, now) <= part * fleet * HOUR_S
    assert visited


def test_the_node_longest_without_a_visit_is_next():
    past = [Taken(node="a", start=0, end=60), Taken(node="b", start=100, end=160),
            Taken(node="gone", start=0, end=60)]  # fmt: skip
    chosen = share.choose(["b", "a", "c"], fleet=8, visits=past, now=500, share=0.25)
    assert chosen == ["c", "a"]
    assert share.choose([], fleet=8, visits=past, now=500, share=0.25) == []
    again = [*past, Taken(node="a", start=200, end=260), Taken(node="b", start=20, end=80)]
    assert share.choose(["a", "b"], fleet=1, visits=again, now=500, share=1) == ["b"]


def test_a_share_is_more_than_none_and_at_most_all():
    for part in (-0.1, 0, 1.01, 1.5, 3):
        with pytest.raises(ValueError, match="more than 0 and at most 1"):
            share.choose(["a"], fleet=1, visits=[], now=0, share=part)
    for part in (0.5, 1):
        assert share.choose(["a"], fleet=2, visits=[], now=0, share=part) == ["a"]


def test_visits_count_as_far_as_they_were_in_the_last_hour():
    visits = [Taken(node="a", start=0, end=60), Taken(node="b", start=3570, end=3630)]
    for now, used in ((60, 60), (3600, 60 + 30), (3630, 30 + 60), (3660, 60), (7200, 30),
                      (7230, 0)):  # fmt: skip
        assert share.used_s(visits, float(now)) == used, now


def test_an_hour_of_the_share_is_given_out_by_the_minute():
    """A tenth of one node: 360 s in the hour, of which one visit takes 60 at most."""
    for used, left in ((0, 1), (300, 1), (301, 0), (360, 0)):
        visits = [Taken(node="a", start=100.0, end=100.0 + used)]
        chosen = share.choose(["a"], fleet=1, visits=visits, now=3600.0, share=0.1)
        assert len(chosen) == left, used


def test_at_a_time_the_share_of_the_nodes_is_visited_and_one_at_least():
    idle = [f"n{k}" for k in range(10)]
    for part, count in ((0.05, 1), (0.19, 1), (0.2, 2), (0.5, 5), (1.0, 10)):
        assert len(share.choose(idle, fleet=10, visits=[], now=0.0, share=part)) == count, part
