"""The rates of flows from those of ranks, which know their sending and receiving together."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.permutations.observations import flow_rates, joined
from tests.selftests.permutations import fabrics
from tests.tools.clos import rank_rates

pytestmark = pytest.mark.cpu

RING = np.array([[1, 2, 3, 0]])


def test_a_slow_flow_is_told_from_those_of_its_ends():
    flows = np.array([[10.0, 4.0, 10.0, 10.0]])
    assert rank_rates(flows, RING).tolist() == [[10, 4, 4, 10]]
    assert flow_rates(rank_rates(flows, RING), RING).tolist() == flows.tolist()


def test_what_an_end_did_not_measure_is_not_known():
    ranks = np.array([[10.0, np.nan, 10.0, 10.0]])
    assert np.isnan(flow_rates(ranks, RING)).tolist() == [[True, True, False, False]]


def test_who_rests_has_no_flow():
    assert np.isnan(flow_rates(np.ones((1, 4)), np.array([[1, -1, 3, -1]]))).tolist() == [
        [False, True, False, True]
    ]


def test_slices_are_joined_in_their_order():
    one, other = fabrics.slices(count=2)
    both = joined([one, other])
    assert both.rates.shape == (2 * fabrics.ROUNDS, len(one.ports))
    assert both.start[fabrics.ROUNDS] == other.start[0]
