"""The smallest defect that is stated: found at that size, and not far below it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fixtures.permutations.evidence import gather
from fixtures.permutations.finding import MARGIN, find_in
from fixtures.permutations.smallest import smallest, smallest_in
from tests.selftests.permutations import fabrics
from tests.selftests.permutations.fabrics import RISK
from tests.tools.clos import Defects

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def stated():
    return smallest_in(fabrics.evidence(count=2), RISK)


def test_it_is_more_than_the_margin_and_less_than_a_tenth(stated):
    assert all(MARGIN < size < 0.1 for size in dataclasses.astuple(stated))


@pytest.mark.parametrize(("of_stated", "least", "most"), [(1.25, 12, 12), (0.5, 0, 0)])
def test_a_port_is_found_at_a_quarter_more_and_not_at_half(stated, of_stated, least, most):
    left = 1 - of_stated * stated.port
    hits = sum(
        bool(find_in(fabrics.evidence(Defects(port=[(0, 9, left, 0, 1e9)]), 2, seed=seed), RISK))
        for seed in range(12)
    )
    assert least <= hits <= most


@pytest.mark.parametrize(("of_stated", "least", "most"), [(1.25, 11, 12), (0.4, 0, 1)])
def test_a_leaf_is_found_at_a_quarter_more_and_not_at_less_than_half(
    stated, of_stated, least, most
):
    left = 1 - of_stated * stated.uplinks
    hits = sum(
        bool(find_in(fabrics.evidence(Defects(leaf={3: left}), 2, seed=seed), RISK))
        for seed in range(12)
    )
    assert least <= hits <= most


def test_a_longer_run_finds_smaller_defects(stated):
    longer = smallest_in(fabrics.evidence(count=5), RISK)
    assert longer.port < stated.port
    assert longer.uplinks < stated.uplinks


def test_what_was_not_measured_is_not_stated():
    assert smallest_in([], RISK).port is None
    (obs,) = fabrics.slices()
    blind = smallest(dataclasses.replace(obs, rates=np.full_like(obs.rates, np.nan)), RISK)
    assert dataclasses.astuple(blind) == (None, None, None)
    short = dataclasses.replace(
        obs, target=obs.target[:60], rates=obs.rates[:60], start=obs.start[:60],
        seconds=obs.seconds[:60],
    )  # fmt: skip
    assert smallest_in([gather(short)], RISK).port_ten_minutes is None
