"""Losses of ports and leaves over the slices of a run, with their precision."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.permutations.estimates import (
    LASTING,
    lasting_spread,
    of_leaves,
    of_ports,
    total_spread,
)
from fixtures.permutations.evidence import gather
from tests.selftests.permutations import fabrics
from tests.tools.clos import Defects, Fabric, Shape, starts, targets_of

pytestmark = pytest.mark.cpu


def test_the_loss_of_a_port_is_that_of_its_direction():
    loss, information = of_ports(fabrics.evidence(Defects(port=[(0, 9, 0.96, 0, 1e9)]))).total()
    assert loss[0, 9] == pytest.approx(0.04, abs=0.012)
    assert abs(loss[1, 9]) < 0.01
    assert np.delete(loss[0], 9).max() < 0.01
    assert (information**-0.5 < 0.0015).all()


def test_slices_add_up_and_the_minutes_between_them_are_empty():
    first, second = fabrics.evidence(count=2)
    series = of_ports([first, second])
    assert series.information.sum() == pytest.approx(
        of_ports([first]).information.sum() + of_ports([second]).information.sum(), rel=1e-5
    )


def test_a_leaf_that_lost_capacity_is_told_from_its_partners():
    leaves = of_leaves(fabrics.evidence(Defects(leaf={3: 0.95})), 8)
    assert leaves.loss[2, 3] == pytest.approx(0.05, abs=0.01)
    assert np.delete(leaves.loss[2], 3).max() < 0.01
    assert leaves.without_worst[2, 3] == pytest.approx(0.05, abs=0.01)


def test_a_slow_pair_is_not_its_leaves():
    leaves = of_leaves(fabrics.evidence(Defects(pair={(1, 5): 0.7}), count=2), 8)
    worst = tuple(leaves.pair[np.argmax(leaves.pair_loss)])
    assert worst == (1, 5)
    assert leaves.loss.max() < 0.05


@pytest.mark.parametrize("renewed", [False, True])
def test_repeated_pairs_of_ports_are_one_draw_of_the_hash_unless_it_is_renewed(renewed):
    shape = Shape(nodes=32, rails=2, leaf_nodes=8, renewed=renewed)
    (one,) = fabrics.evidence(shape=shape)
    once = of_leaves([one], 8)
    fabric = Fabric(shape, np.random.default_rng(5))
    targets = targets_of(shape, 3, 0, fabrics.ROUNDS)
    again = [gather(fabric.slice(targets, starts(k, fabrics.ROUNDS))) for k in range(4)]
    gained = of_leaves(again, 8).information[0].mean() / once.information[0].mean()
    assert gained > 3 if renewed else gained < 1.3


def test_a_spread_is_that_beyond_noise_and_at_least_the_recorded_one():
    dice = np.random.default_rng(1)
    information = np.full(400, 1e6)
    assert lasting_spread(dice.normal(0, 0.001, 400), information, LASTING) == LASTING
    assert lasting_spread(dice.normal(0, 0.01, 400), information, LASTING) == pytest.approx(
        0.01, rel=0.15
    )
    assert lasting_spread(np.array([0.0, 0.1]), information[:2], LASTING) == LASTING


@pytest.mark.parametrize("known", [0.5, 1.0, 4.0, 1e6])
def test_whatever_is_known_of_a_subject_counts_and_nothing_does_not(known):
    """What is known is the inverse of a variance: 0 is nothing, and from above 0 on it counts."""
    dice = np.random.default_rng(4)
    sigma = 10 / np.sqrt(known)
    loss = dice.normal(0, sigma, 400)
    information = np.full(400, known)
    expected = pytest.approx(sigma, rel=0.1)
    assert total_spread(loss, information) == expected
    assert lasting_spread(loss, information, 0.0) == expected
    unknown = np.concatenate([loss, np.full(400, 1000.0), np.full(400, np.nan)])
    of_unknown = np.concatenate([information, np.zeros(400), information])
    assert total_spread(unknown, of_unknown) == total_spread(loss, information)
    assert lasting_spread(unknown, of_unknown, 0.0) == lasting_spread(loss, information, 0.0)
    assert lasting_spread(loss, np.zeros(400), LASTING) == LASTING
