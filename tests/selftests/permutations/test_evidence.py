"""What one slice shows: sums of ports, means of pairs of leaves, interrupted rounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fixtures.permutations.evidence import BIN, gather
from fixtures.permutations.schedule import WITHIN
from tests.selftests.permutations import fabrics
from tests.tools.clos import ROUND_NOISE, Defects, Shape

pytestmark = pytest.mark.cpu


def test_a_port_is_judged_by_the_rounds_within_its_leaf():
    (one,) = fabrics.evidence()
    assert (
        one.port_count.sum(axis=2).tolist() == np.full((2, 64), fabrics.ROUNDS // WITHIN).tolist()
    )
    assert one.port_sum.shape[2] == fabrics.ROUNDS * 1.5 / BIN
    assert ROUND_NOISE * 0.6 < one.port_noise < ROUND_NOISE


def test_what_all_flows_of_a_round_share_is_nobodys():
    (obs,) = fabrics.slices()
    factor = np.random.default_rng(1).uniform(0.5, 1, (len(obs.start), 1))
    plain, changed = gather(obs), gather(dataclasses.replace(obs, rates=obs.rates * factor))
    assert changed.port_sum == pytest.approx(plain.port_sum, abs=1e-3)
    assert changed.interrupted.size == 0


def test_a_slow_port_does_not_speak_for_its_leaf():
    (slow,) = fabrics.evidence(Defects(port=[(2, 9, 0.4, 0, 1e9)]))
    leaf = fabrics.SMALL.ports.leaf[9]
    assert slow.mean[slow.source == leaf].mean() > -0.01  # with it, a loss of 8 %


def test_the_same_flows_have_the_same_key_and_others_another():
    (obs,) = fabrics.slices()
    one = gather(obs)
    assert len(np.unique(one.key)) > 0.9 * len(one.key)
    assert (gather(obs).key == one.key).all()


def test_noise_that_lasts_for_minutes_is_part_of_the_variance():
    (obs,) = fabrics.slices()
    dice = np.random.default_rng(3)
    minutes = np.repeat(dice.normal(0, 0.02, (10, len(obs.ports))), 40, axis=0)
    slow = gather(dataclasses.replace(obs, rates=obs.rates * np.exp(minutes)))
    assert slow.port_variance > 3 * gather(obs).port_variance


def test_a_port_whose_flows_both_stand_still_is_counted():
    (one,) = fabrics.evidence(Defects(flapping=[7]))
    assert set(one.interrupted[:, 0]) == {7}
    assert fabrics.evidence()[0].interrupted.size == 0


def test_a_slice_in_which_nothing_was_measured_says_nothing():
    (obs,) = fabrics.slices()
    one = gather(dataclasses.replace(obs, rates=np.full_like(obs.rates, np.nan)))
    assert not one.port_count.any()
    assert not np.isfinite(one.mean).any()


def test_leaves_with_fewer_ports_are_not_compared_with_full_ones():
    shape = Shape(nodes=32, oversubscription=2, adaptive=True, rails=2, leaf_nodes=8)
    half = frozenset(p for p in range(64) if p // 2 in range(24, 28))  # of the last group
    (one,) = fabrics.evidence(Defects(absent=half), shape=shape)
    few = np.isin(one.source, (6, 7)) | np.isin(one.to, (6, 7))
    assert np.nanmedian(one.mean[~few]) == pytest.approx(0, abs=0.01)
